"""One page on a loopback port for all tests of the Space: a random encoder and a random Fusion-in-Decoder."""

import time

import pytest

QUESTION = "where was ada born?"
PASSAGES = [
    {"title": "ada", "text": "ada was born in york."},
    {"title": "york", "text": "york is a city."},
    {"text": "the thames is a river."},
    {"title": "bert", "text": "bert was born in leeds."},
]
HOSTILE = (
    "<img src=x onerror=\"document.title='X'\"><style>*{display:none}</style> [a](javascript:alert(1)) "
    "$\\href{}{}$ ${alert(1)} {{this}} </div><script>document.title='X'</script> /etc/passwd **b** "
    "\x1b[31mred \u202eabc \U0001f9d1\u200d\U0001f680 " + "z\u0335\u0336" * 20
)


@pytest.fixture(scope="session")
def tiny_fid():
    """A random T5 as Fusion-in-Decoder; do not change it."""
    import torch

    from tests.modeling.conftest import byte_tokenizer, randomize, seq2seq_config
    from warrant_hf import EvidenceProcessor, WarrantFiDConfig, WarrantFiDForEvidenceSelection

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = WarrantFiDConfig(
        backbone_config=seq2seq_config("t5", len(tokenizer)), readout_size=32, readout_heads=2, gate_size=16
    )
    model = WarrantFiDForEvidenceSelection(config)
    model.processor = EvidenceProcessor(tokenizer, 128, 30, **model.processor_settings())
    return randomize(model).eval()


class Slow:
    """A model that takes its time, so that a person can stop it."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def rank(self, *args, **settings):
        time.sleep(0.5)
        return self._model.rank(*args, **settings)


@pytest.fixture(scope="session")
def server(tiny_model, tiny_fid):
    pytest.importorskip("gradio")
    from warrant_hf.space.app import launch

    models = {"tiny": tiny_model, "tiny fid": tiny_fid, "slow": Slow(tiny_model)}
    blocks = launch(models, host="127.0.0.1", block=False)
    yield blocks.local_url
    blocks.close()


@pytest.fixture(scope="session")
def client(server):
    return pytest.importorskip("gradio_client").Client(server, verbose=False)


@pytest.fixture
def overridden():
    """What `permission_override` gives in Python: `overridden(model, question, passages, permissions)`."""
    import torch

    def run(model, question, passages, permissions):
        inputs = model.processor([question], [passages])
        values = [float("nan") if value is None else value for value in permissions]
        with torch.no_grad():
            return model(**inputs, permission_override=torch.tensor([values]))

    return run


@pytest.fixture
def rows_file(tmp_path):
    """`rows_file(count, name=..., candidates=...)`: generated questions, their candidates and labels."""
    import json

    from warrant_hf.data.evidence_world import EvidenceWorld

    def write(count, name="questions.jsonl", candidates=8):
        rows = [row.to_dict() for row in EvidenceWorld(1, candidates=candidates).generate(count)]
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return file, rows

    return write
