import json
import runpy
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest

gradio_client = pytest.importorskip("gradio_client")
pytest.importorskip("gradio")

from warrant_hf.space import render  # noqa: E402
from warrant_hf.space.app import launch  # noqa: E402
from warrant_hf.space.examples import EXAMPLES, as_text  # noqa: E402
from warrant_hf.space.inputs import (  # noqa: E402
    MAX_CHARACTERS,
    MAX_PASSAGES,
    MAX_QUESTION,
    read_closed,
    read_passage_list,
    read_passages,
)

SPACE = Path(__file__).parents[2] / "spaces" / "evidence_gates"
QUESTION = "where was ada born?"
PASSAGES = ["ada was born in york.", {"title": "york", "text": "york is a city."}, "the thames is a river."]
HOSTILE = (
    "<img src=x onerror=\"document.title='X'\"><style>*{display:none}</style> [a](javascript:alert(1)) "
    "$\\href{}{}$ ${alert(1)} {{this}} </div><script>alert(1)</script> /etc/passwd"
)


@pytest.fixture(scope="module")
def server(tiny_model):
    blocks = launch(tiny_model, host="127.0.0.1", block=False)
    yield blocks.local_url
    blocks.close()


@pytest.fixture(scope="module")
def client(server):
    return gradio_client.Client(server, verbose=False)


def test_select_gives_what_rank_gives(client, tiny_model):
    result = client.predict(QUESTION, PASSAGES, api_name="/select")
    expected = tiny_model.rank(QUESTION, PASSAGES)
    assert [item["index"] for item in result["evidence"]] == [item["index"] for item in expected["evidence"]]
    for item, other in zip(result["evidence"], expected["evidence"], strict=True):
        assert item["score"] == pytest.approx(other["score"], abs=1e-6)
        assert "tokens" not in item
    assert result["mass"] == pytest.approx(expected["mass"])


def test_revoke_removes_exactly_the_closed_terms(client):
    result = client.predict(QUESTION, PASSAGES, [2, 0], api_name="/revoke")
    before = {item["index"]: item for item in result["before"]["evidence"]}
    after = {item["index"]: item for item in result["after"]["evidence"]}
    assert [after[at]["revoked"] for at in range(3)] == [True, False, True]
    assert after[0]["effective"] == after[2]["effective"] == 0
    assert after[1]["effective"] == pytest.approx(before[1]["effective"], abs=1e-6)
    assert result["after"]["mass"] == pytest.approx(before[1]["effective"], abs=1e-6)


def test_the_page_ranks_then_closes_a_gate(client):
    question, passages = EXAMPLES["Two passages hold the answer"]
    gates, gauge, bars, words, data = client.predict(question, as_text(passages), "attention", api_name="/show")
    assert len(gates["choices"]) == len(passages) and gates["value"] == []
    assert "was" not in gauge and bars.count("eg-row") == len(passages)
    assert passages[0]["title"] in bars
    first = gates["choices"][0][1]
    gauge, bars, words, closed = client.predict(
        question, as_text(passages), [first], "permission", api_name="/show_closed"
    )
    assert bars.count("eg-closed") == 1 and "was" in bars and "was" in gauge
    assert closed["mass"] < data["mass"]


def test_highlights_spell_the_passages_and_stay_in_range(tiny_model):
    passages = [{"title": "York", "text": "York is a city,  in the north."}, {"text": "second\ntext"}]
    result = tiny_model.rank(QUESTION, passages, return_tokens=True)
    for measure in render.MEASURES:
        pieces = render.highlights(result, measure)
        text = "".join(piece for piece, _ in pieces)
        for item in result["evidence"]:
            assert item["text"] in text and (not item["title"] or f"{item['title']} — " in text)
        strengths = [value for _, value in pieces if value is not None]
        assert strengths and all(0 <= value <= 1 for value in strengths)


@pytest.mark.parametrize(
    "question, passages, expected",
    [
        ("", ["x"], "question is empty"),
        ("x" * (MAX_QUESTION + 1), ["x"], "1,001 characters"),
        ("q", [], "at least one"),
        ("q", "", "at least one"),
        ("q", ["x"] * (MAX_PASSAGES + 1), "more than 32"),
        ("q", ["x"] * 5 + ["x" * MAX_CHARACTERS], "20,005 characters"),
        ("q", ["x", 3], "passages[1]"),
        ("q", [{"title": 1, "text": "x"}], "passages[0]"),
        ("q", "x\n\n# only a title", "Passage 2"),
    ],
)
def test_limits_hold_on_the_server(client, question, passages, expected):
    with pytest.raises(gradio_client.exceptions.AppError, match=expected.replace("[", r"\[")):
        client.predict(question, passages, api_name="/select")


def test_what_the_model_refuses_is_said(server):
    """Half a surrogate pair, which no client of ours can send, but any other can."""
    body = json.dumps({"data": ["q\ud800", ["x"]]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server + "gradio_api/call/select", body, headers)
    event = json.load(urllib.request.urlopen(request))["event_id"]
    answer = urllib.request.urlopen(f"{server}gradio_api/call/select/{event}").read().decode()
    assert "half a surrogate pair" in answer


@pytest.mark.parametrize("closed", [[3], [-1], ["0"], [True], "0"])
def test_closed_gates_must_be_positions(client, closed):
    with pytest.raises(gradio_client.exceptions.AppError, match="closed must"):
        client.predict(QUESTION, PASSAGES, closed, api_name="/revoke")


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.text = set(), ""

    def handle_starttag(self, tag, attributes):
        self.seen |= {(tag, name) for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


def test_what_visitors_write_is_shown_not_run(client):
    text = f"# {HOSTILE}\nfirst\n\n{HOSTILE}"
    _, gauge, bars, _, _ = client.predict(HOSTILE, text, "effective", api_name="/show")
    page = _Tags()
    page.feed(gauge + bars)
    assert page.seen <= {("div", "class"), ("div", "style"), ("span", "class")}
    assert "<img src=x onerror=" in page.text


def test_files_cannot_be_read(server):
    for path in ("gradio_api/file=/etc/passwd", "file=/etc/passwd", "gradio_api/file=../../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server + path)
        assert caught.value.code in (403, 404)


def test_only_two_endpoints_are_documented(client):
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(endpoints) == {"/select", "/revoke"}


def test_reading_passages():
    text = "# A title\r\nfirst line\r\nsecond line\n \n\nno title\n\n#hash is text"
    assert read_passages(text) == (("A title", "first line\nsecond line"), (None, "no title"), (None, "#hash is text"))
    assert read_passage_list(["a", {"text": "b", "title": "t", "more": 1}]) == ((None, "a"), ("t", "b"))
    assert read_closed([1, 0, 1], ((None, "a"), (None, "b"))) == (0, 1)


def test_examples_fit_the_limits():
    for question, passages in EXAMPLES.values():
        assert read_passages(as_text(passages)) == tuple((item["title"], item["text"]) for item in passages)
        assert len(question) <= MAX_QUESTION


def test_the_space_folder_starts_the_same_page():
    space = runpy.run_path(str(SPACE / "app.py"), run_name="app")
    assert space["launch"] is launch
    front_matter = (SPACE / "README.md").read_text("utf-8").split("---\n")[1]
    assert "sdk: gradio" in front_matter and "app_file: app.py" in front_matter
