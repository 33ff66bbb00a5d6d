"""`warrant-hf serve` as a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

RUN = (
    "import sys; from warrant_hf.commands.serve import run; "
    "run(model=sys.argv[1], host='127.0.0.1', port=int(sys.argv[2]), api_key=None)"
)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_sigterm_answers_what_was_accepted(tiny_model_dir):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tiny_model_dir), "0"], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        said = []
        while not (found := re.search(r"http://[\d.:]+", said[-1] if said else "")):
            said.append(server.stderr.readline())
            assert said[-1], f"the server ended: {said}"
        url = found[0]
        with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(12) as pool:
            wait_until_ready(client)
            asked = {"query": "where was ada born?", "texts": ["ada was born in york. " * 20] * 20}
            pending = [pool.submit(client.post, "/rerank", json=asked) for _ in range(12)]
            wait_until(lambda: waiting(client) >= 3)
            server.send_signal(signal.SIGTERM)
            answers = [future.result() for future in pending]
        assert [answer.status_code for answer in answers] == [200] * 12
        assert all(len(answer.json()) == 20 for answer in answers)
        assert server.wait(120) == 0
        assert server.stderr.read() == ""
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def test_a_port_that_is_taken_is_one_sentence():
    from warrant_hf.serving.server import listen

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"cannot listen on 127.0.0.1, port {port} \(.*\); give another --port"):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match="give another --port or --host"):
        listen("192.0.2.1", 1)  # an address for documents, which no machine has


def test_what_is_made_in_passing_comes_from_a_thread_that_has_ended():
    from warrant_hf.serving.server import in_passing

    made = in_passing(threading.current_thread)
    assert made is not threading.current_thread() and not made.is_alive()
    with pytest.raises(ValueError, match="no such model"):
        in_passing(fail)


def fail():
    raise ValueError("no such model")


def wait_until_ready(client):
    def ready():
        try:
            return client.get("/health").status_code == 200
        except httpx.ConnectError:
            return False

    wait_until(ready)


def waiting(client):
    text = client.get("/metrics").text
    return float(re.search(r"^warrant_hf_waiting_requests (.*)$", text, re.M)[1])


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
