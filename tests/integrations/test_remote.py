"""A selector behind a server gives what it gives here, and every way of failing is one sentence."""

import http.server
import threading

import pytest

from tests.serving.running import running
from warrant_hf.integrations.remote import RemoteSelector

QUESTION = "where was ada born?"
KNOWN = {"id": "b", "seen": object(), "score": "mine", "rank": 3, "source": {"age": 2, "file": object()}}
PASSAGES = ["ada was born in york.", {"title": "york", "text": "york is a city.", **KNOWN}, "no"]


@pytest.fixture(scope="module")
def client(tiny_model):
    with running(tiny_model, api_key="secret", max_candidates=5) as made:
        yield made


@pytest.fixture
def remote(client):
    return RemoteSelector(f"{client.base_url}/", api_key="secret")


@pytest.mark.parametrize("settings", [{}, {"revoke": [1]}, {"revoke": [1], "revoke_by": "mask"}, {"top_k": 1}])
def test_result_is_that_of_rank(remote, tiny_model, settings):
    assert remote.rank(QUESTION, PASSAGES, **settings) == tiny_model.rank(QUESTION, PASSAGES, **settings)


def test_nothing_to_read_needs_no_server():
    assert RemoteSelector("http://127.0.0.1:9").rank(QUESTION, [])["evidence"] == []


def test_numbers_that_a_precision_needs_are_sent():
    from warrant_hf.integrations.remote import _sent

    given = {"text": "a", "source": {"reliability": 0.5, "name": "x", "at": object()}, "age": 3, "tags": ["b"]}
    assert _sent(given) == {"text": "a", "source": {"reliability": 0.5}, "age": 3}


def test_key_comes_from_the_environment(client, tiny_model, monkeypatch):
    monkeypatch.setenv("WARRANT_HF_API_KEY", "secret")
    assert RemoteSelector(str(client.base_url)).rank(QUESTION, PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)


def test_what_the_server_refuses_is_its_sentence(client, remote):
    with pytest.raises(ValueError, match=r"passages.1.*give it words"):
        remote.rank(QUESTION, ["a", " "])
    with pytest.raises(OSError, match="answers 401: The API key is missing or wrong"):
        RemoteSelector(str(client.base_url), api_key="wrong").rank(QUESTION, PASSAGES)
    with pytest.raises((OSError, ValueError), match="5"):
        remote.rank(QUESTION, ["a"] * 6)


def test_no_server_or_another_one():
    with pytest.raises(OSError, match="http://127.0.0.1:9 does not answer .*warrant-hf serve"):
        RemoteSelector("http://127.0.0.1:9").rank(QUESTION, PASSAGES)
    with pytest.raises(ValueError, match="url is 'localhost:8080'"):
        RemoteSelector("localhost:8080")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(OSError, match="answers 501 to /select, and is no server of"):
            RemoteSelector(f"http://127.0.0.1:{other.server_port}").rank(QUESTION, PASSAGES)
        other.shutdown()
