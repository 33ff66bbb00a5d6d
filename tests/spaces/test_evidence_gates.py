import json
import runpy
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

gradio_client = pytest.importorskip("gradio_client")
pytest.importorskip("gradio")

from tests.spaces.conftest import HOSTILE, PASSAGES, QUESTION  # noqa: E402
from warrant_hf.space import about, render  # noqa: E402
from warrant_hf.space.app import launch  # noqa: E402
from warrant_hf.space.examples import EXAMPLES  # noqa: E402
from warrant_hf.space.inputs import (  # noqa: E402
    MAX_CHARACTERS,
    MAX_PASSAGES,
    MAX_QUESTION,
    bounded,
    read_passage_list,
    read_passages,
    read_positions,
    read_table,
)
from warrant_hf.space.selectors import named  # noqa: E402

SPACE = Path(__file__).parents[2] / "spaces" / "evidence_gates"
ENDPOINTS = {"/select", "/revoke", "/intervene", "/compare"}


def post(server, endpoint, *data):
    """The answer to a call as any HTTP client gets it: event and data."""
    body = json.dumps({"data": data}).encode()
    request = urllib.request.Request(f"{server}gradio_api/call/{endpoint}", body, {"Content-Type": "application/json"})
    event = json.load(urllib.request.urlopen(request))["event_id"]
    return urllib.request.urlopen(f"{server}gradio_api/call/{endpoint}/{event}").read().decode()


def test_select_gives_what_rank_gives(client, tiny_model):
    result = client.predict(QUESTION, PASSAGES, api_name="/select")
    expected = tiny_model.rank(QUESTION, PASSAGES)
    assert [item["index"] for item in result["evidence"]] == [item["index"] for item in expected["evidence"]]
    for item, other in zip(result["evidence"], expected["evidence"], strict=True):
        assert item["score"] == other["score"] and "tokens" not in item
    assert result["mass"] == expected["mass"]


def test_revoke_removes_exactly_the_closed_terms(client, tiny_model):
    result = client.predict(QUESTION, PASSAGES, [2, 0], api_name="/revoke")
    before = {item["index"]: item for item in result["before"]["evidence"]}
    after = {item["index"]: item for item in result["after"]["evidence"]}
    assert [after[at]["revoked"] for at in range(4)] == [True, False, True, False]
    assert after[0]["effective"] == after[2]["effective"] == 0
    assert after[1]["effective"] == pytest.approx(before[1]["effective"], abs=1e-6)
    assert result["after"]["mass"] == pytest.approx(before[1]["effective"] + before[3]["effective"], abs=1e-6)
    revoked = {item["index"]: item for item in tiny_model.rank(QUESTION, PASSAGES, revoke=[2, 0])["evidence"]}
    assert all(after[at]["score"] == pytest.approx(revoked[at]["score"], abs=1e-5) for at in range(4))


def test_intervene_gives_what_permission_override_gives(client, tiny_model, overridden):
    permissions = [0.5, None, 0, None]
    result = client.predict(QUESTION, PASSAGES, permissions, [], [], [], "tiny", api_name="/intervene")
    logits = overridden(tiny_model, QUESTION, PASSAGES, permissions).logits[0].tolist()
    assert {item["index"]: item["score"] for item in result["after"]["evidence"]} == dict(enumerate(logits))
    before = {item["index"]: item["score"] for item in result["before"]["evidence"]}
    for change in result["changes"]:
        assert change["effect"]["total"] == pytest.approx(logits[change["index"]] - before[change["index"]])


def test_compare_gives_both_results(client, tiny_fid):
    result = client.predict(QUESTION, PASSAGES, "tiny, all gates open", "tiny fid", api_name="/compare")
    assert {item["permission"] for item in result["first"]["evidence"]} == {1.0}
    scores = [item["score"] for item in tiny_fid.rank(QUESTION, PASSAGES)["evidence"]]
    assert [item["score"] for item in result["second"]["evidence"]] == scores


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


def test_a_model_cannot_be_named_by_a_visitor(client, tiny_model_dir):
    for name in ("other", str(tiny_model_dir), "google-bert/bert-base-uncased"):
        with pytest.raises(gradio_client.exceptions.AppError, match="must be one of: tiny"):
            client.predict(QUESTION, PASSAGES, [], [], [], [], name, api_name="/intervene")
        with pytest.raises(gradio_client.exceptions.AppError, match="must be one of: tiny"):
            client.predict(QUESTION, PASSAGES, name, "tiny", api_name="/compare")


def test_what_the_model_refuses_is_said(server):
    """Half a surrogate pair, which no client of ours can send, but any other can."""
    assert "half a surrogate pair" in post(server, "select", "q\ud800", ["x"])


@pytest.mark.parametrize("closed", [[4], [-1], ["0"], [True], "0"])
def test_closed_gates_must_be_positions(client, closed):
    with pytest.raises(gradio_client.exceptions.AppError, match="closed must"):
        client.predict(QUESTION, PASSAGES, closed, api_name="/revoke")


def test_fifty_at_once_get_their_own_answer_or_are_told_to_wait(server, tiny_model):
    def ask(number):
        question = f"where was number {number} born?"
        try:
            return question, post(server, "select", question, PASSAGES)
        except urllib.error.HTTPError as error:
            return question, f"{error.code} {error.read().decode()}"

    with ThreadPoolExecutor(50) as clients:
        answers = dict(clients.map(ask, range(50)))
    right = 0
    for question, answer in answers.items():
        if "event: complete" in answer:
            (result,) = json.loads(answer.partition("data: ")[2])
            expected = tiny_model.rank(question, PASSAGES)["evidence"]
            assert [item["score"] for item in result["evidence"]] == [item["score"] for item in expected]
            right += 1
        else:
            assert "Queue is full" in answer or answer.startswith("503"), answer
    assert right >= 2


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.text = set(), ""

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.seen |= {name for name, _ in attributes if name.startswith("on") or name in ("src", "href")}

    def handle_data(self, data):
        self.text += data


def test_what_visitors_write_is_shown_not_run(tiny_model):
    page = _Tags()
    result = tiny_model.rank(HOSTILE, [{"title": HOSTILE, "text": HOSTILE}, HOSTILE * 4], return_tokens=True)
    page.feed(render.headline(result) + render.gauge(result) + render.cards(result) + render.asked(HOSTILE, 2, "m"))
    allowed = {"div", "span", "ol", "li", "b", "bdi", "p", "h2", "details", "summary"}
    assert page.seen <= allowed and "<img src=x onerror=" in page.text


def test_files_cannot_be_read(server):
    for path in ("gradio_api/file=/etc/passwd", "file=/etc/passwd", "gradio_api/file=../../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server + path)
        assert caught.value.code in (403, 404)


def test_another_site_cannot_call(server):
    request = urllib.request.Request(server + "config", headers={"Origin": "https://elsewhere.example"})
    answer = urllib.request.urlopen(request)
    assert answer.headers.get("Access-Control-Allow-Origin") is None


def test_the_endpoints_are_documented_and_no_others_can_be_called(client):
    endpoints = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(endpoints) == ENDPOINTS
    for described in endpoints.values():
        assert described["description"] and all(parameter["python_type"] for parameter in described["parameters"])
    assert {dependency["api_visibility"] for dependency in client.config["dependencies"]} == {"public", "private"}


def test_errors_of_ours_are_not_shown(client):
    assert client.config["show_error"] is False


def test_reading_passages():
    text = "# A title\r\nfirst line\r\nsecond line\n \n\nno title\n\n#hash is text"
    assert read_passages(text) == (("A title", "first line\nsecond line"), (None, "no title"), (None, "#hash is text"))
    assert read_passage_list(["a", {"text": "b", "title": "t", "more": 1}]) == ((None, "a"), ("t", "b"))
    assert read_positions([1, 0, 1], 2) == (0, 1)
    assert read_table([["t", " a "], ["", ""], [None, "b"], ["", 3]]) == (("t", "a"), (None, "b"), (None, "3"))


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([["t", ""]], "Row 1 has a title but no text"),
        ([["a", "b", "c"]], "Row 1 of the passages must have a title and a text"),
        ([["", ""]], "no passages"),
        ("text", "must be rows"),
        ([["", "x"]] * (MAX_PASSAGES + 1), "more than 32"),
    ],
)
def test_tables_are_checked(rows, expected):
    with pytest.raises(ValueError, match=expected):
        read_table(rows)


def test_examples_fit_the_limits():
    for question, passages in EXAMPLES.values():
        assert bounded(read_passage_list(passages)) and len(question) <= MAX_QUESTION
    assert max(len(passages) for _, passages in EXAMPLES.values()) > 20


def test_results_on_the_page_are_those_of_the_card(tmp_path):
    class Model:
        name_or_path = str(tmp_path)

    assert "no card" in about.results(Model) and about.card(Model) is None
    (tmp_path / "README.md").write_text(
        "---\nmodel-index:\n- name: m\n  results:\n  - dataset: {name: A <set>}\n    metrics:\n"
        "    - {type: support_mrr, value: 0.7654}\n---\n# Card\n\ntext\n"
    )
    shown = about.results(Model)
    assert "A &lt;set&gt;" in shown and "<td>0.7654</td>" in shown and "support_mrr" in shown
    assert about.card(Model) == "# Card\n\ntext" and about.link(Model) is None
    Model.name_or_path = "some-org/some-model"
    assert about.link(Model) == "https://huggingface.co/some-org/some-model"
    (tmp_path / "README.md").write_text("# Card without front matter\n")
    Model.name_or_path = str(tmp_path)
    assert "states no measured results" in about.results(Model) and about.card(Model) == "# Card without front matter"


def test_one_model_is_an_allow_list_too(tiny_model):
    assert list(named(tiny_model)) == [Path(tiny_model.name_or_path).name]
    assert named({"a": tiny_model}) == {"a": tiny_model}


def test_the_space_folder_starts_the_same_page():
    space = runpy.run_path(str(SPACE / "app.py"), run_name="app")
    assert space["launch"] is launch
    front_matter = (SPACE / "README.md").read_text("utf-8").split("---\n")[1]
    assert "sdk: gradio" in front_matter and "app_file: app.py" in front_matter
