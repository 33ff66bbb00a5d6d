"""A real server on a loopback port, in a thread of the test process."""

import threading
import time
from contextlib import contextmanager

import httpx
import uvicorn

from warrant_hf.serving import ServingLimits, create_app
from warrant_hf.serving.server import listen


@contextmanager
def running(ranker, api_key=None, **bounds):
    """Serves `ranker`; gives an `httpx.Client` of the server. Bounds are those of `ServingLimits`."""
    app = create_app(ranker, name="tiny", limits=ServingLimits(**bounds), api_key=api_key)
    with listen("127.0.0.1", 0) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=30) as client:
            until = time.monotonic() + 20
            while not server.started:
                assert time.monotonic() < until and thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            yield client
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


class Gated:
    """A ranker that waits for `open` before each batch, and counts the batches that it has begun."""

    def __init__(self, model):
        self._model, self.open, self.begun = model, threading.Event(), threading.Semaphore(0)

    def rank_batch(self, questions, passages, *, progress, **settings):
        self.begun.release()
        while not self.open.wait(0.01):
            progress(0, 1)
        return self._model.rank_batch(questions, passages, progress=progress, **settings)
