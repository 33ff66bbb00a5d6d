"""On ZeroGPU hardware the weights are there only inside a function that `spaces.GPU` decorates."""

import copy
import importlib
import pickle
import sys
import types
from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio")

from tests.spaces.conftest import PASSAGES, QUESTION  # noqa: E402
from warrant_hf.diagnostics.ledger_files import read_ledger  # noqa: E402
from warrant_hf.space import batch, uploads, zero_gpu  # noqa: E402
from warrant_hf.space.api import Api  # noqa: E402
from warrant_hf.space.page import Page  # noqa: E402
from warrant_hf.space.selectors import Selectors  # noqa: E402
from warrant_hf.space.sessions import Asked  # noqa: E402

ROWS = [[passage.get("title", ""), passage["text"]] for passage in PASSAGES]


class Hardware:
    """What `spaces.GPU` does, without the hardware: weights are elsewhere until it is called, what goes in and comes
    out is pickled, and of an exception only the name comes back."""

    def __init__(self, models):
        self.calls = 0
        self._weights = [(tensor, tensor.data) for model in models for tensor in model.parameters()]

    def start(self):
        """From now on there are weights nowhere else."""
        for tensor, values in self._weights:
            tensor.data = values * float("nan")

    def GPU(self, task):
        def handler(*values):
            self.calls += 1
            values = pickle.loads(pickle.dumps(values))
            for tensor, weights in self._weights:
                tensor.data = weights
            try:
                result = task(*values)
            except Exception as error:
                raise gr.Error(f"worker error: {type(error).__name__}", print_exception=False) from None
            finally:
                self.start()
            return pickle.loads(pickle.dumps(result))

        return handler


@pytest.fixture
def hardware(monkeypatch, tiny_model, tiny_fid):
    """(hardware, the models on it, the same models as they are elsewhere)."""
    models = {"tiny": tiny_model, "tiny fid": tiny_fid}
    here = Selectors(models)
    copies = {name: copy.deepcopy(model) for name, model in models.items()}
    package, machine = types.ModuleType("spaces"), Hardware(copies.values())
    package.GPU = machine.GPU
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "spaces", package)
        importlib.reload(zero_gpu)
        there = Selectors(copies)
        machine.start()
        yield machine, there, here
    importlib.reload(zero_gpu)


def handlers(selectors, cache):
    """Every way that leads to a model, from the page and from its endpoints."""
    api, page = Api(selectors), Page(selectors, str(cache))
    request = SimpleNamespace(session_hash="a")
    asked = Asked(0, "tiny fid", QUESTION, tuple((title or None, text) for title, text in ROWS))
    sliders = [0.25, *page._learned(asked)[1:], *[0] * 28]
    edited = (asked, 0, request, [1], [2], [], [], *sliders)
    return {
        "select": lambda: api.select(QUESTION, PASSAGES),
        "revoke": lambda: api.revoke(QUESTION, PASSAGES, [0]),
        "intervene": lambda: api.intervene(QUESTION, PASSAGES, [0.5, None, 0, None], [3], [0], [], "tiny fid"),
        "compare": lambda: api.compare(QUESTION, PASSAGES, "tiny", "tiny fid, all gates open"),
        "rank on the page": lambda: shown(page.rank("tiny", QUESTION, ROWS, request)),
        "close on the page": lambda: shown(page.close(*edited)),
        "answers": lambda: page.answers(*edited),
        "compare on the page": lambda: page.compare(asked, 0, request, "tiny", "tiny, all gates open"),
    }


def shown(outputs):
    """What the page shows of it: texts and numbers."""
    return [value for value in outputs if isinstance(value, str | float)]


@pytest.mark.parametrize(
    "name",
    ["select", "revoke", "intervene", "compare", "rank on the page", "close on the page", "answers",
     "compare on the page"],
)  # fmt: skip
def test_what_needs_the_weights_runs_there(hardware, tmp_path, name):
    machine, there, here = hardware
    given = handlers(there, tmp_path)[name]()
    assert machine.calls and given == handlers(here, tmp_path)[name]()


def test_a_batch_runs_there_and_its_ledger_names_the_weights(hardware, rows_file, tmp_path):
    machine, there, here = hardware
    rows = uploads.read_batch(str(rows_file(3)[0]), "sentence")
    done, expected = ([*batch.run(selectors["tiny"], rows, lambda: False)][-1] for selectors in (there, here))
    assert machine.calls == 1 + len(rows) and done.rows == expected.rows
    digests = set()
    for ledger in (done.ledger, expected.ledger):
        (tmp_path / "ledger.jsonl").write_bytes(ledger)
        digests |= {record.weights_sha256 for record in read_ledger(tmp_path / "ledger.jsonl")}
    assert len(digests) == 1


def test_what_the_model_refuses_is_still_said(hardware):
    _, there, _ = hardware
    with pytest.raises(gr.Error, match="half a surrogate pair"):
        Api(there).select("q\ud800", ["x"])


def test_without_the_package_nothing_is_wrapped(monkeypatch):
    monkeypatch.setitem(sys.modules, "spaces", None)
    importlib.reload(zero_gpu)
    assert zero_gpu.on_gpu(len) is len
