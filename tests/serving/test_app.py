import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from tests.serving.running import Gated, running  # noqa: E402

QUESTION = "where was ada born?"
PASSAGES = ["ada was born in york.", "york is a city.", "the thames is a river."]
TITLED = [{"text": "ada was born there.", "title": "york", "page": 7}, "york is a city."]


@pytest.fixture(scope="module")
def client(tiny_model):
    with running(tiny_model, max_candidates=50, max_characters=5_000, max_body_bytes=20_000) as client:
        yield client


def scores_of(result, name="probability"):
    return [(item["index"], pytest.approx(item[name], abs=1e-5)) for item in result["evidence"]]


def test_rerank_gives_what_rank_gives_in_its_order(client, tiny_model):
    expected = tiny_model.rank(QUESTION, PASSAGES)
    got = client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES}).json()
    assert [(item["index"], item["score"]) for item in got] == scores_of(expected)
    assert all(item.keys() == {"index", "score"} for item in got)
    asked = {"query": QUESTION, "texts": PASSAGES, "raw_scores": True, "return_text": True, "truncate": True}
    got = client.post("/rerank", json=asked).json()
    assert [(item["index"], item["score"]) for item in got] == scores_of(expected, "score")
    assert all(item["text"] == PASSAGES[item["index"]] for item in got)


def test_rerank_refuses_a_query_that_would_be_cut_unless_told_to(client, tiny_model):
    asked = {"query": "why " * 100, "texts": PASSAGES}
    refused = client.post("/rerank", json=asked)
    assert refused.status_code == 422 and "set truncate to true" in refused.json()["error"]
    got = client.post("/rerank", json=asked | {"truncate": True}).json()
    assert [(item["index"], item["score"]) for item in got] == scores_of(tiny_model.rank("why " * 100, PASSAGES))
    documents = client.post("/v2/rerank", json={"query": "why " * 100, "documents": PASSAGES}).json()
    assert "only its first" in documents["meta"]["warnings"][0]


@pytest.mark.parametrize("version", ["1", "2"])
def test_documents_keep_their_fields_and_their_title_is_read(client, tiny_model, version):
    asked = {"query": QUESTION, "documents": TITLED, "top_n": 5, "return_documents": True, "model": "any"}
    got = client.post(f"/v{version}/rerank", json=asked).json()
    expected = tiny_model.rank(QUESTION, TITLED)
    assert [(item["index"], item["relevance_score"]) for item in got["results"]] == scores_of(expected)
    given = {0: TITLED[0], 1: {"text": TITLED[1]}}
    assert all(item["document"] == given[item["index"]] for item in got["results"])
    assert got["meta"]["api_version"]["version"] == version and got["id"]
    best = client.post(f"/v{version}/rerank", json=asked | {"top_n": 1, "return_documents": False}).json()["results"]
    assert best == [
        {"index": expected["evidence"][0]["index"], "relevance_score": pytest.approx(best[0]["relevance_score"])}
    ]


def test_the_client_of_cohere(client):
    cohere = pytest.importorskip("cohere")
    url = str(client.base_url).rstrip("/")
    got = cohere.ClientV2("none", base_url=url).rerank(model="tiny", query=QUESTION, documents=PASSAGES, top_n=2)
    expected = client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES}).json()[:2]
    assert [(item.index, item.relevance_score) for item in got.results] == [
        (item["index"], pytest.approx(item["score"], abs=1e-6)) for item in expected
    ]
    old = cohere.Client("none", base_url=url).rerank(
        model="tiny", query=QUESTION, documents=TITLED[:1], return_documents=True
    )
    assert old.results[0].document.text == TITLED[0]["text"]
    with pytest.raises(cohere.UnprocessableEntityError) as refused:
        cohere.ClientV2("none", base_url=url).rerank(model="tiny", query=" ", documents=PASSAGES)
    assert refused.value.body["message"] == "query is ' '; give a text that is not empty."


@pytest.mark.parametrize(
    "settings", [{}, {"revoke": [1]}, {"revoke": [0, 2], "revoke_by": "mask"}, {"return_tokens": True}]
)
def test_select_gives_the_whole_result(client, tiny_model, settings):
    got = client.post("/select", json={"question": QUESTION, "passages": TITLED + PASSAGES} | settings).json()
    expected = tiny_model.rank(QUESTION, TITLED + PASSAGES, **settings)
    assert got.keys() == expected.keys() and got["notes"] == expected["notes"]
    assert got["mass"] == pytest.approx(expected["mass"], abs=1e-5)
    for item, other in zip(got["evidence"], expected["evidence"], strict=True):
        numbers = {"score", "probability", "attention", "permission", "effective"}
        assert {name: item[name] for name in numbers} == pytest.approx(
            {name: other[name] for name in numbers}, abs=1e-5
        )
        assert {k: v for k, v in item.items() if k not in numbers | {"tokens"}} == {
            k: v for k, v in other.items() if k not in numbers | {"tokens"}
        }
        assert [t["start"] for t in item.get("tokens", [])] == [t["start"] for t in other.get("tokens", [])]
    assert ("tokens" in got["evidence"][0]) == ("return_tokens" in settings)
    best = client.post("/select", json={"question": QUESTION, "passages": TITLED + PASSAGES, "top_k": 1} | settings)
    assert [item["index"] for item in best.json()["evidence"]] == [expected["evidence"][0]["index"]]


DEEP = b'{"query": "a", "texts": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
NESTED = b'{"question": "a", "passages": [{"text": "b", "more": ' + b"[" * 200 + b"]" * 200 + b"}]}"
# Body -> status, and part of the sentence; for /rerank, /v2/rerank and /select.
# fmt: off
BAD = [
    ("/rerank", b"", 400, "The body is not JSON"),
    ("/rerank", b"{", 400, "The body is not JSON"),
    ("/rerank", b"\xff\xfe{}", 400, "The body is no UTF-8 (byte 0)"),
    ("/rerank", b'{"query": "a", "texts": ["b", NaN]}', 400, "NaN is no JSON number"),
    ("/rerank", b'{"query": "a", "texts": ["b"], "raw_scores": 1e999}', 400, "a number is too large"),
    ("/rerank", DEEP, 400, "nested too deep"),
    ("/select", NESTED, 422, "more than 32 levels deep"),
    ("/rerank", b"[]", 422, "The request is []; send a JSON object with query, texts."),
    ("/rerank", b"{}", 422, "query is missing; add it."),
    ("/rerank", b'{"query": "a"}', 422, "texts is missing; add it."),
    ("/rerank", b'{"query": 3, "texts": ["b"]}', 422, "query is 3; input should be a valid string."),
    ("/rerank", b'{"query": " ", "texts": ["b"]}', 422, "query is ' '; give a text that is not empty."),
    ("/rerank", b'{"query": "a", "texts": []}', 422, "texts is empty; give at least one."),
    ("/rerank", b'{"query": "a", "texts": "b"}', 422, "texts is 'b'; input should be a valid list."),
    ("/rerank", b'{"query": "a", "texts": ["b", 3]}', 422, "texts[1] is 3; input should be a valid string."),
    ("/rerank", b'{"query": "a", "texts": ["b", "\\n"]}', 422, "texts[1] is '\\n'; give a text that is not empty."),
    ("/rerank", b'{"query": "a", "texts": ["b", "x\\ud800"]}', 422, "texts[1] has half a surrogate pair"),
    ("/rerank", b'{"query": "a", "texts": ["b"], "\\ud800": 1}', 422, "half a surrogate pair in a field's name"),
    ("/rerank", b'{"query": "a", "texts": ["b"], "top_k": 1}', 422, "top_k is not a field of this request"),
    ("/rerank", b'{"query": "a", "texts": ["b"], "raw_scores": "yes"}', 422, "raw_scores is 'yes'; input should be"),
    ("/v2/rerank", b'{"query": "a", "documents": ["b", 3]}', 422, "documents[1] is 3; give a text, or an object"),
    ("/v2/rerank", b'{"query": "a", "documents": [{"title": "b"}]}', 422, "documents[0] is {"),
    ("/v2/rerank", b'{"query": "a", "documents": [{"text": ""}]}', 422, "give it words, or leave it out."),
    ("/v2/rerank", b'{"query": "a", "documents": ["b"], "top_n": 0}', 422, "top_n is 0; input should be greater than"),
    ("/v1/rerank", b'{"query": "a", "documents": ["b"], "top_n": 1.5}', 422, "top_n is 1.5; input should be"),
    ("/select", b'{"question": "a", "passages": [{"text": "b", "title": 1}]}', 422, "its title has to"),
    ("/select", b'{"question": "a", "passages": [{"text": "b", "x": {"y": "\\udfff"}}]}', 422, "passages[0].x.y"),
    ("/select", b'{"question": "a", "passages": ["b"], "revoke": [1]}', 422, "revoke: 1 is not a passage"),
    ("/select", b'{"question": "a", "passages": ["b"], "revoke": [-1]}', 422, "revoke[0] is -1; input should be"),
    ("/select", b'{"question": "a", "passages": ["b"], "revoke_by": "x"}', 422, "revoke_by is 'x'; input should be"),
    ("/rerank", json.dumps({"query": "a", "texts": ["b"] * 51}).encode(), 413, "texts has 51 entries; send"),
    ("/rerank", json.dumps({"query": "a", "texts": ["b" * 6_000]}).encode(), 413, "send at most 5,000 at a time."),
    ("/rerank", b" " * 20_001, 413, "The body has more than 20,000 bytes"),
]
# fmt: on


def sentence_of(response):
    body = response.json()
    if response.request.url.path.startswith("/v"):
        assert body.keys() == {"message", "detail"} and body["message"] == body["detail"]
        sentence = body["message"]
    else:
        assert body.keys() == {"error", "error_type"}
        sentence = body["error"]
    assert "\n" not in sentence and "Traceback" not in sentence and sentence.endswith((".", "again in 1 s."))
    return sentence


@pytest.mark.parametrize("path, body, status, part", BAD)
def test_bad_input_gets_one_sentence(client, path, body, status, part):
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, part in sentence_of(response)) == (status, True), response.text


def test_what_is_no_request_gets_one_sentence(client):
    for method, path, status in (("GET", "/rerank", 405), ("DELETE", "/v2/rerank", 405), ("POST", "/embed", 404)):
        response = client.request(method, path)
        assert response.status_code == status and path in sentence_of(response)
    assert "There is no /ab" in sentence_of(client.get("/a%0Ab"))
    response = client.post("/rerank", content=b'{"query": "a", "texts": ["b"]}')
    assert response.status_code == 415 and "application/json" in sentence_of(response)


def test_a_body_without_a_declared_length_is_bounded_too(client):
    parts = (b" " * 1_000 for _ in range(1_000))
    response = client.post("/rerank", content=parts, headers={"Content-Type": "application/json"})
    assert response.status_code == 413 and "20,000 bytes" in sentence_of(response)


def test_no_json_brings_the_server_down(client):
    pytest.importorskip("hypothesis")
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("\ud800")
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    )
    names = ["query", "texts", "documents", "question", "passages", "revoke", "top_n", "text", "model"]
    bodies = st.dictionaries(st.sampled_from(names) | st.text(max_size=3), values, max_size=5)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["/rerank", "/v1/rerank", "/select"]), bodies)
    def send(path, body):
        content = json.dumps(body).encode()
        response = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code in (200, 400, 422)
        if response.status_code != 200:
            sentence_of(response)

    send()


def test_many_clients_get_what_they_would_get_alone(client, tiny_model):
    rng = random.Random(0)
    words = "ada york river city born thames lovelace engine where was in the of".split()

    def some(count):
        return " ".join(rng.choice(words) for _ in range(count))

    asked = [(some(5), [some(rng.randint(1, 30)) for _ in range(rng.randint(1, 9))]) for _ in range(96)]
    alone = [tiny_model.rank(*given) for given in asked]

    def send(at):
        if at % 4 == 3:  # every fourth is bad
            return client.post("/select", json={"question": asked[at][0], "passages": [*asked[at][1], 3]})
        return client.post("/select", json={"question": asked[at][0], "passages": asked[at][1]})

    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(send, range(len(asked))))
    for at, (response, expected) in enumerate(zip(responses, alone, strict=True)):
        if at % 4 == 3:
            assert response.status_code == 422 and f"passages[{len(asked[at][1])}] is 3" in sentence_of(response)
            continue
        assert response.status_code == 200
        got = {item["index"]: item for item in response.json()["evidence"]}
        for item in expected["evidence"]:
            for name in ("score", "probability", "attention", "permission", "effective"):
                assert got[item["index"]][name] == pytest.approx(item[name], abs=1e-5)


def test_a_full_queue_turns_the_next_one_away(tiny_model):
    ranker = Gated(tiny_model)
    with running(ranker, max_waiting=2, batch_wait_ms=0.01) as client, ThreadPoolExecutor(3) as pool:
        asked = {"query": QUESTION, "texts": PASSAGES}
        first = pool.submit(client.post, "/rerank", json=asked)
        assert ranker.begun.acquire(timeout=10)  # the model is busy with it
        others = [pool.submit(client.post, "/rerank", json=asked) for _ in range(2)]
        wait_for(lambda: metric(client, "warrant_hf_waiting_requests") == 2)
        refused = client.post("/v2/rerank", json={"query": QUESTION, "documents": PASSAGES})
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        assert "2 requests wait already" in refused.json()["message"]
        ranker.open.set()
        answers = [future.result() for future in (first, *others)]
        assert [answer.status_code for answer in answers] == [200] * 3


def test_who_waits_too_long_is_told_so_and_frees_the_model(tiny_model):
    ranker = Gated(tiny_model)
    with running(ranker, request_seconds=0.3) as client:
        late = client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES})
        assert late.status_code == 504 and "no answer within 0.3 s" in sentence_of(late)
        ranker.open.set()
        assert client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES}).status_code == 200


def test_who_leaves_frees_the_model(tiny_model):
    ranker = Gated(tiny_model)
    with running(ranker, max_waiting=1) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES}, timeout=0.3)
        wait_for(lambda: metric(client, 'warrant_hf_requests_total{route="/rerank",status="499"}') == 1)
        wait_for(lambda: metric(client, "warrant_hf_batch_requests_count") == 1)  # given up, not waited for
        assert not ranker.open.is_set()


def test_a_key_is_asked_for_everywhere_but_at_the_health_check(tiny_model):
    with running(tiny_model, api_key="s3cret é") as client:
        asked = {"query": QUESTION, "texts": PASSAGES}
        assert client.get("/health").json() == {"status": "ok"}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "é"},
        ):
            headers = {name: value.encode("utf-8") for name, value in headers.items()}
            for response in (
                client.post("/rerank", json=asked, headers=headers),
                client.get("/metrics", headers=headers),
            ):
                assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"
                assert "s3cret" not in sentence_of(response)
        right = {"Authorization": "Bearer s3cret é".encode()}
        assert client.post("/rerank", json=asked, headers=right).status_code == 200


def test_what_is_counted(tiny_model):
    with running(tiny_model) as client:
        for _ in range(3):
            client.post("/rerank", json={"query": QUESTION, "texts": PASSAGES})
        client.post("/rerank", json={})
        client.get("/no/such/path")
        assert metric(client, 'warrant_hf_requests_total{route="/rerank",status="200"}') == 3
        assert metric(client, 'warrant_hf_requests_total{route="/rerank",status="422"}') == 1
        assert metric(client, 'warrant_hf_requests_total{route="other",status="404"}') == 1
        assert metric(client, "warrant_hf_candidates_total") == 9
        assert metric(client, 'warrant_hf_request_seconds_count{route="/rerank"}') == 4
        assert metric(client, "warrant_hf_batch_requests_sum") == 3


def test_info_names_model_and_limits(client):
    info = client.get("/info").json()
    assert info["model_id"] == "tiny" and info["max_client_batch_size"] == 50


def test_the_schema_knows_the_bodies(client):
    paths = client.get("/openapi.json").json()["paths"]
    body = paths["/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["query", "texts"]
    assert {"/rerank", "/v1/rerank", "/v2/rerank", "/select", "/health", "/info", "/metrics"} <= paths.keys()


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), None)


def wait_for(condition, seconds=10):
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen in time")
