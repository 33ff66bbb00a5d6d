"""Whatever stands at the address, or does not: a request ends within its time, with one sentence."""

import http.server
import json
import threading
import time
from contextlib import contextmanager

import pytest

from warrant_hf.integrations.remote import RemoteSelector

QUESTION, PASSAGES = "where was ada born?", ["ada was born in york.", "york is a city."]
ZERO = {"score": 0.0, "probability": 0.5, "attention": 0.5, "permission": 1.0, "effective": 0.5, "revoked": False}
ITEMS = [{"index": at, "rank": at + 1, "id": None, "title": None, "text": "x", **ZERO} for at in (0, 1)]
ANSWER = {"question": QUESTION, "evidence": ITEMS, "mass": 1.0, "answerability": 0.5, "notes": []}


@contextmanager
def answering(write):
    """The address of a server of which `write` answers each request; it gets the request's handler."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            try:
                write(self)
            except OSError:  # the client has left
                pass

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def whole(content, status=200, **headers):
    def write(handler):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return write


def with_items(*items):
    return ANSWER | {"evidence": list(items)}


def test_the_form_that_is_taken():
    with answering(whole(json.dumps(ANSWER).encode())) as url:
        result = RemoteSelector(url).rank(QUESTION, PASSAGES)
        assert [item["text"] for item in result["evidence"]] == PASSAGES
        with pytest.raises(OSError, match="is no server of"):  # no tokens, though they were asked for
            RemoteSelector(url).rank(QUESTION, PASSAGES, return_tokens=True)


@pytest.mark.parametrize(
    "answer",
    [
        ["a"],
        None,
        {"evidence": None},
        {"evidence": ["a"]},
        {"evidence": [{"index": 9}]},
        {"evidence": [{"a": 1}]},
        {"error": "none"},
        with_items(),
        with_items(ITEMS[0]),
        with_items(ITEMS[0], ITEMS[0]),
        with_items(*ITEMS, ITEMS[1]),
        with_items(ITEMS[0], ITEMS[1] | {"index": -1}),
        with_items(ITEMS[0], ITEMS[1] | {"index": 2}),
        with_items(ITEMS[0], ITEMS[1] | {"index": 1.0}),
        with_items(ITEMS[0], ITEMS[1] | {"index": True}),
        with_items(ITEMS[0], ITEMS[1] | {"probability": "high"}),
        with_items(ITEMS[0], {"index": 1}),
        ANSWER | {"answerability": None},
    ],
)
def test_json_of_something_else(answer):
    with answering(whole(json.dumps(answer).encode())) as url:
        with pytest.raises(OSError, match=f"^{url} answers 200 to /select, and is no server of `warrant-hf serve`"):
            RemoteSelector(url).rank(QUESTION, PASSAGES)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xfe", b"[" * 200_000, b"NaN", b"1" * 10_000])
@pytest.mark.parametrize("status", [200, 404])
def test_no_json(content, status):
    with answering(whole(content, status)) as url:
        with pytest.raises(OSError, match=f"answers {status} to /select, and is no server of"):
            RemoteSelector(url).rank(QUESTION, PASSAGES)


def test_a_redirect_is_named():
    with answering(whole(b"", 307, Location="https://elsewhere/select")) as url:
        with pytest.raises(OSError, match="answers 307 and sends requests on to 'https://elsewhere/select'; give the"):
            RemoteSelector(url).rank(QUESTION, PASSAGES)


def in_drops(head):
    def write(handler):
        handler.wfile.write(head)
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.05)

    return write


def silent(handler):
    time.sleep(6)


@pytest.mark.parametrize("write", [in_drops(b"HTTP/1.1 200 OK\r\nA: "), in_drops(b"HTTP/1.1 200 OK\r\n\r\n"), silent])
def test_the_time_is_that_of_the_whole_request(write):
    with answering(write) as url:
        began = time.monotonic()
        with pytest.raises(OSError, match=f"^{url} has not answered within 0.5 s; check that .* longer timeout"):
            RemoteSelector(url, timeout=0.5).rank(QUESTION, PASSAGES)
        assert time.monotonic() - began < 5


def test_an_answer_without_end():
    def write(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            handler.wfile.write(b" " * 2**20)

    with answering(write) as url:
        with pytest.raises(OSError, match="answers with more than 64 MiB; send less at a time"):
            RemoteSelector(url).rank(QUESTION, PASSAGES)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9",
        "http://[::1",
        "http://a b",
        "http://a:port",
        "http://127.0.0.1:99999",
        f"http://{'a' * 64}.invalid",
        "http://..",
    ],
)
def test_an_address_without_a_server(url):
    with pytest.raises(OSError, match="does not answer .*warrant-hf serve|cannot be asked .*; check the address"):
        RemoteSelector(url).rank(QUESTION, PASSAGES)


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:9", "http://[", "http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used(proxy, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(OSError, match=r"^http://server.invalid (does not answer|cannot be asked \(.+ HTTP_PROXY)"):
        RemoteSelector("http://server.invalid").rank(QUESTION, PASSAGES)
