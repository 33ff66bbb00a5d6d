"""The exported graph gives the selector's scores, whatever the sizes; what cannot be exported says why."""

import numpy as np
import pytest
import torch

from tests.conftest import character_tokenizer, tiny_backbone_config
from warrant_hf import EvidenceProcessor, WarrantEncoderConfig, WarrantEncoderForEvidenceSelection

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from warrant_hf.export import OnnxSelector, SelectionPath, export_onnx, export_program, largest_difference  # noqa: E402
from warrant_hf.export.selection_path import INPUTS  # noqa: E402

CASES = {
    "one of each": (["who"], [["austen"]]),
    "many rows": (["who wrote emma?"] * 5, [["austen", "a novel " * 20]] * 5),
    "many candidates": (["who"], [[f"passage number {number}" for number in range(60)]]),
    "split over windows": (["who wrote emma?"], [["a long text " * 130, {"title": "emma", "text": "a novel"}]]),
    "uneven": (["who wrote emma?", "no"], [["one"], ["two", "three " * 50, "four", "a long text " * 60]]),
}


def made(**settings):
    """A random selector with one layer: an export takes its time."""
    tokenizer = character_tokenizer()
    backbone = tiny_backbone_config(len(tokenizer))
    backbone.num_hidden_layers = 1
    config = WarrantEncoderConfig(backbone_config=backbone, readout_size=32, readout_heads=2, gate_size=16, **settings)
    torch.manual_seed(0)
    model = WarrantEncoderForEvidenceSelection(config).eval()
    with torch.no_grad():  # far from the initial state, where all gates are equal
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.processor = EvidenceProcessor(tokenizer, features=config.precision_features)
    return model


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "made"
    export_onnx(model, folder, int8=True)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_selector(model, exported, case):
    questions, passages = CASES[case]
    assert largest_difference(model, exported, questions=questions, passages=passages) <= 1e-4


def test_a_text_goes_in_and_its_scores_come_out(model, exported):
    question, passages = "who wrote emma?", ["austen did.", {"title": "emma", "text": "a novel"}]
    scores, ranked = OnnxSelector(exported)([question], [passages]), model.rank(question, passages)
    for item in ranked["evidence"]:
        for name, ours in (("logits", "score"), ("attention", "attention"), ("permission", "permission")):
            assert scores[name][0, item["index"]] == pytest.approx(item[ours], abs=1e-4)
    assert scores["mass"][0] == pytest.approx(ranked["mass"], abs=1e-4)


def test_a_gate_is_closed(model, exported):
    question, passages = "who wrote emma?", ["austen did.", "a novel", "no"]
    selector, ranked = OnnxSelector(exported), model.rank(question, passages, revoke=[1])
    found = selector.run(selector.processor([question], [passages]), [[np.nan, 0.0, np.nan]])
    assert found["permission"][0, 1] == 0 and found["effective"][0, 1] == 0
    assert found["mass"][0] == pytest.approx(ranked["mass"], abs=1e-4)


@pytest.mark.parametrize(
    ("override", "message"), [([[2.0, 0.0]], "permission_override has 2; give 0 to 1"), ([[0.0]], "has the shape")]
)
def test_wrong_permissions_are_refused(exported, override, message):
    selector = OnnxSelector(exported)
    with pytest.raises(ValueError, match=message):
        selector.run(selector.processor(["who"], [["one", "two"]]), override)


def test_threads_do_not_race(exported):
    """As sums over tokens by `ScatterND` do: onnxruntime adds to one place from several threads."""
    import onnx

    nodes = [node for node in onnx.load(exported / "model.onnx").graph.node if node.op_type == "ScatterND"]
    assert {attribute.s for node in nodes for attribute in node.attribute if attribute.name == "reduction"} <= {
        b"none"
    }
    selector = OnnxSelector(exported, threads=4)
    batch = selector.processor(["who wrote emma?"], [["a long text " * 130, "austen"]])
    first = selector.run(batch)
    for _ in range(20):
        again = selector.run(batch)
        assert all(np.allclose(first[name], again[name], rtol=0, atol=1e-5) for name in first)


def test_folder_reads_text_on_its_own(exported):
    assert {path.name for path in exported.iterdir()} >= {"model.onnx", "config.json", "tokenizer.json", "README.md"}
    assert not [path for path in exported.iterdir() if path.suffix in (".bin", ".pt", ".data", ".partial")]
    text = (exported / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert "not an access control" in text and "model_int8.onnx" in text


def test_eight_bits_are_smaller_and_near(model, exported):
    sizes = [(exported / name).stat().st_size for name in ("model.onnx", "model_int8.onnx")]
    assert sizes[1] < sizes[0]
    assert 0 < largest_difference(model, exported, "model_int8.onnx") < 1


def test_readout_keeps_its_numbers(exported):
    import onnx

    graph = onnx.load(exported / "model_int8.onnx").graph
    small = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    integer = [weight.name for weight in graph.initializer if weight.data_type in small]
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 6  # of one layer of the encoder
    assert any("word_embeddings" in name for name in integer) and not any("readout" in name for name in integer)


def test_program_of_torch_export(model):
    program = export_program(model).module(check_guards=False)
    for questions, passages in CASES.values():
        batch = model.processor(questions, passages)
        batch["permission_override"] = torch.full(batch["candidate_mask"].shape, float("nan"))
        with torch.no_grad():
            found, expected = program(*(batch[name] for name in INPUTS)), model(**batch)
        for name, values in zip(SelectionPath(model).names, found, strict=True):
            torch.testing.assert_close(values, expected[name], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"variant": "base"}, {"variant": "shuffled"}, {"packing": "joint"}])
def test_other_selectors(settings, tmp_path):
    model = made(**settings)
    export_onnx(model, tmp_path / "made")
    assert largest_difference(model, tmp_path / "made") <= 1e-4


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: torch.nn.Linear(1, 1), "model is a Linear; only encoder readers"),
        (lambda: made(precision_features=["age"]), "precision_features is .'age'.; the exported graph"),
        (lambda: made().to(torch.bfloat16), "model is in torch.bfloat16; load it with"),
    ],
)
def test_what_cannot_be_exported(model, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_onnx(model(), tmp_path / "none")


def test_no_graph_there(tmp_path):
    with pytest.raises(ValueError, match="model.onnx does not exist; write it with: warrant-hf export"):
        OnnxSelector(tmp_path)


@pytest.mark.slow
def test_command(tiny_model_dir, tmp_path, capsys):
    from warrant_hf.commands.export import run

    run(out=tmp_path / "made", model=str(tiny_model_dir), int8=False)
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'made' / 'model.onnx'}  " in printed and "differ from those of the selector by" in printed
    assert not (tmp_path / "made" / "model_int8.onnx").exists()
