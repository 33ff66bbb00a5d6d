"""PEFT on the three readers: what an adapter trains, keeps and gives back, gates and readout to the last bit."""

import importlib.util
import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSeq2SeqLM, BitsAndBytesConfig

from tests.modeling.conftest import (
    byte_tokenizer,
    long_backbone_config,
    randomize,
    seq2seq_config,
    tiny_encoder_config,
)
from warrant_hf import AutoModelForEvidenceSelection, EvidenceWorld
from warrant_hf.data.readers import read_rows
from warrant_hf.modeling.checkpoint_loading import merged
from warrant_hf.recipes import Recipe, build, save, train_rows

#: Reader -> auto class and config of its backbone.
BACKBONES = {
    "encoder": (AutoModel, lambda size: tiny_encoder_config("roberta", size)),
    "fid": (AutoModelForSeq2SeqLM, lambda size: seq2seq_config("t5", size)),
    "led": (AutoModel, lambda size: long_backbone_config("led", size)),
}
METHODS = [{"r": 4, "alpha": 8}, {"method": "dora", "r": 4}, {"method": "ia3"}]
NAMES = ["lora", "dora", "ia3"]
SIZES = {"readout_size": 32, "readout_heads": 2, "gate_size": 16}
QUESTION, PASSAGES = "who wrote emma?", ["jane austen wrote emma.", "a longer passage about nothing", "d"]

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each reader a backbone in the folder of its name, and a selector on it in `NAME selector`; rows."""
    folder, tokenizer = tmp_path_factory.mktemp("peft"), byte_tokenizer()
    for name, (auto_class, config) in BACKBONES.items():
        torch.manual_seed(0)
        auto_class.from_config(config(len(tokenizer))).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        selector = AutoModelForEvidenceSelection.from_backbone(str(folder / name), **SIZES)
        randomize(selector).save_pretrained(folder / f"{name} selector")
    rows = [json.dumps(row.to_dict()) for row in EvidenceWorld(seed=1, candidates=3, hard=1, hops=(1,)).generate(4)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def recipe(files, reader, lora, selector=False, **changes):
    start = {"start_from": str(files / f"{reader} selector")} if selector else {"base_model": str(files / reader)}
    training = {"max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "use_cpu": True}
    training |= {"save_strategy": "no", "disable_tqdm": True}
    data = {"size": 3, "hard": 1, "lists_per_question": 2, "max_length": 256, "max_question_tokens": 96}
    return Recipe(**start, model={} if selector else SIZES, lora=lora, data=data, training=training, **changes)


def adapted(settings, seed=1):
    """A model with an adapter that has learned something: every weight that it trains is moved at random."""
    model, processor = build(settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval(), processor


def scores(model):
    result = model.rank(QUESTION, PASSAGES)
    order = sorted(result["evidence"], key=lambda item: item["index"])
    return torch.tensor([[item["score"], item["permission"], item["attention"]] for item in order])


def readout_of(model):
    """Weights of the readout that is in use, by name."""
    readout = model.get_base_model().readout if isinstance(model, PeftModel) else model.readout
    readout = readout.modules_to_save[readout.active_adapter] if hasattr(readout, "modules_to_save") else readout
    return dict(readout.state_dict())


def same_weights(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def fresh(files, reader):
    """A selector on the same backbone whose readout starts elsewhere."""
    torch.manual_seed(99)
    return AutoModelForEvidenceSelection.from_backbone(str(files / reader), **SIZES)


@pytest.mark.parametrize("lora", METHODS, ids=NAMES)
@pytest.mark.parametrize("reader", BACKBONES)
def test_reload_restores_readout_and_gates_exactly(reader, lora, files, tmp_path):
    settings = recipe(files, reader, lora)
    model, processor = adapted(settings)
    before, expected = readout_of(model), scores(model)
    assert any(name.startswith("gate.") for name in before)
    save(model, processor, settings, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()

    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert same_weights(readout_of(loaded), before)
    torch.testing.assert_close(scores(loaded), expected, atol=1e-4, rtol=1e-4)

    base = fresh(files, reader)
    assert not same_weights(readout_of(base), before)
    wrapped = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert same_weights(readout_of(wrapped), before)
    torch.testing.assert_close(scores(wrapped), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(scores(merged(wrapped)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("reader", BACKBONES)
def test_reload_through_transformers_restores_readout_and_gates(reader, files, tmp_path):
    """`load_adapter` of transformers, which has its own code for it."""
    settings = recipe(files, reader, METHODS[0])
    model, processor = adapted(settings)
    save(model, processor, settings, tmp_path)
    base = fresh(files, reader)
    base.load_adapter(str(tmp_path / "adapter"))
    assert same_weights(readout_of(base), readout_of(model))
    torch.testing.assert_close(scores(base.eval()), scores(model), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("reader", BACKBONES)
def test_gate_adapter_trains_the_gate_alone(reader, files, tmp_path):
    settings = recipe(files, reader, {"method": "gate"}, selector=True)
    trainer = train_rows(settings, read_rows(files / "rows.jsonl"), output_dir=tmp_path)
    model = trainer.model.eval()
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        f"base_model.model.readout.gate.modules_to_save.default.{name}"
        for name in ("query.weight", "query.bias", "key.weight", "score.weight", "score.bias")
    }
    start = AutoModelForEvidenceSelection.from_pretrained(files / f"{reader} selector")
    expected = scores(model)
    save(model, trainer.processing_class, settings, tmp_path)
    kept = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(".readout.gate." in name for name in kept) and len(kept) == 5

    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    moved = {name for name, value in start.state_dict().items() if not torch.equal(value, loaded.state_dict()[name])}
    assert moved and all(name.startswith("readout.gate.") for name in moved)
    torch.testing.assert_close(scores(loaded), expected, atol=1e-6, rtol=1e-6)
    on_start = PeftModel.from_pretrained(start, tmp_path / "adapter").eval()
    torch.testing.assert_close(scores(on_start), expected, atol=1e-6, rtol=1e-6)
    with on_start.disable_adapter():
        closed = scores(on_start)
    assert not torch.allclose(closed[:, 1], expected[:, 1]), "another permission"
    torch.testing.assert_close(closed[:, 2], expected[:, 2], msg="and the same attention")


@pytest.mark.parametrize("lora", [METHODS[0], {"method": "ia3"}, {"method": "gate"}], ids=["lora", "ia3", "gate"])
@pytest.mark.parametrize("reader", BACKBONES)
def test_adapters_are_switched_at_run_time(reader, lora, files, tmp_path):
    settings, expected = recipe(files, reader, lora, selector=True), {}
    for seed, name in enumerate(("one", "two"), start=1):
        model, _ = adapted(settings, seed)
        model.save_pretrained(tmp_path / name)
        expected[name] = scores(model)
    base = AutoModelForEvidenceSelection.from_pretrained(files / f"{reader} selector")
    expected["none"] = scores(base)
    assert not torch.allclose(expected["one"], expected["two"])
    both = PeftModel.from_pretrained(base, tmp_path / "one", adapter_name="one").eval()
    both.load_adapter(tmp_path / "two", adapter_name="two")
    for name in ("one", "two", "one"):
        both.set_adapter(name)
        torch.testing.assert_close(scores(both), expected[name], atol=1e-6, rtol=1e-6)
    with both.disable_adapter():
        torch.testing.assert_close(scores(both), expected["none"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("lora", METHODS, ids=NAMES)
def test_run_of_a_method(lora, files, tmp_path):
    """Trained, and merged into a selector that it went on from."""
    settings = recipe(files, "encoder", lora, selector=True)
    trainer = train_rows(settings, read_rows(files / "rows.jsonl"), output_dir=tmp_path)
    expected = scores(trainer.model.eval())
    base = AutoModelForEvidenceSelection.from_pretrained(files / "encoder selector")
    assert not torch.allclose(expected, scores(base))
    save(trainer.model, trainer.processing_class, settings, tmp_path)
    torch.testing.assert_close(
        scores(AutoModelForEvidenceSelection.from_pretrained(tmp_path)), expected, atol=1e-4, rtol=1e-4
    )
    again = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(scores(again), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"method": "qlora"}}, "method.*input should be 'lora', 'dora', 'ia3' or 'gate'"),
        ({"lora": {"method": "ia3", "r": 4}}, "r is a setting of lora and dora, and method is 'ia3'; remove it"),
        ({"lora": {"method": "gate", "dropout": 0.1}}, "dropout is a setting of lora and dora, and method is 'gate'"),
        ({"lora": {"method": "gate"}}, "lora.method gate trains no readout, and base_model has none yet; give start"),
    ],
)
def test_bad_settings(tmp_path, changes, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"base_model": "an/encoder"} | changes))
    with pytest.raises(ValueError, match=f"(?i){message}"):
        Recipe.from_yaml(path)


@pytest.mark.parametrize("variant", ["open", "param_mlp"])
def test_gate_of_a_selector_whose_gate_is_fixed(files, tmp_path, variant):
    model = AutoModelForEvidenceSelection.from_backbone(str(files / "encoder"), variant=variant, **SIZES)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"lora.method is gate, but variant '{variant}' learns none"):
        build(Recipe(start_from=str(tmp_path), lora={"method": "gate"}))


has_bitsandbytes = importlib.util.find_spec("bitsandbytes") is not None


@pytest.mark.skipif(has_bitsandbytes, reason="bitsandbytes is installed")
def test_quantised_base_without_bitsandbytes(files):
    with pytest.raises(ImportError) as caught:
        AutoModelForEvidenceSelection.from_pretrained(
            files / "encoder selector", quantization_config=BitsAndBytesConfig(load_in_8bit=True)
        )
    assert "bitsandbytes" in str(caught.value) and "pip install" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.skipif(not has_bitsandbytes, reason="bitsandbytes is not installed; pip install bitsandbytes")
@pytest.mark.parametrize("reader", BACKBONES)
def test_adapter_on_a_quantised_base(reader, files, tmp_path):
    """Only the encoder is quantised; readout and gates keep float32, learn, and come back exactly."""

    def base():
        return AutoModelForEvidenceSelection.from_pretrained(
            files / f"{reader} selector", quantization_config=BitsAndBytesConfig(load_in_8bit=True)
        )

    model = base()
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert "Linear8bitLt" in kinds.values()
    assert not any(kind == "Linear8bitLt" for name, kind in kinds.items() if name.startswith("readout"))
    targets = [name for name, kind in kinds.items() if kind == "Linear8bitLt"]
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, modules_to_save=["readout"]))
    randomize(model.get_base_model().readout)
    expected = scores(model.eval())
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(base(), tmp_path).eval()
    assert same_weights(readout_of(again), readout_of(model))
    torch.testing.assert_close(scores(again), expected, atol=1e-4, rtol=1e-4)
