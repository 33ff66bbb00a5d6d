"""Checkpoints: what comes back is what was saved, and what cannot be loaded says what to do."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoProcessor

from tests.modeling.conftest import randomize, tiny_encoder_config
from warrant_hf import (
    AutoModelForEvidenceSelection,
    EvidenceProcessor,
    WarrantEncoderConfig,
    WarrantEncoderForEvidenceSelection,
)
from warrant_hf.modeling.auto_evidence import READERS

QUESTION, PASSAGES = "who wrote emma?", ["austen did.", {"title": "emma", "text": "a novel"}, "no", "word " * 30]
LOADERS = [AutoModelForEvidenceSelection, WarrantEncoderForEvidenceSelection]
ROOT = Path(__file__).parents[2]


def run(code, *arguments):
    """Output of Python code in a new process that finds this repository and no network."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


RANK = """
import json, sys, warrant_hf
model = warrant_hf.AutoModelForEvidenceSelection.from_pretrained(sys.argv[1])
print(json.dumps(model.rank(sys.argv[2], json.loads(sys.argv[3]))))
"""


@pytest.fixture
def saved(selector, tmp_path):
    """A selector and the folder it was saved to."""
    model = selector("roberta")
    model.save_pretrained(tmp_path / "saved")
    model.processor.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


@pytest.mark.parametrize("loader", LOADERS)
def test_same_scores_after_loading(saved, loader):
    model, folder = saved
    loaded, info = loader.from_pretrained(folder, output_loading_info=True)
    assert not loaded.training and not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.rank(QUESTION, PASSAGES) == model.rank(QUESTION, PASSAGES)
    assert isinstance(AutoModel.from_pretrained(folder), WarrantEncoderForEvidenceSelection)
    assert isinstance(AutoProcessor.from_pretrained(folder), EvidenceProcessor)


def test_same_scores_in_a_new_process(saved):
    model, folder = saved
    assert json.loads(run(RANK, folder, QUESTION, json.dumps(PASSAGES))) == model.rank(QUESTION, PASSAGES)


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "modernbert", "deberta-v2"])
def test_buffers_are_those_of_a_model_built_in_code(selector, kind, tmp_path):
    """transformers loads on the meta device: a buffer that nobody restores holds whatever was in memory."""

    def digest(model):
        total = hashlib.sha256()
        for name, buffer in sorted(model.named_buffers()):
            total.update(name.encode() + buffer.float().numpy().tobytes())
        return total.hexdigest()

    model = selector(kind)
    model.save_pretrained(tmp_path)
    loads = [WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path) for _ in range(4)]
    loads.append(WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path, device_map="cpu"))
    assert {digest(loaded) for loaded in loads} == {digest(model)}


# Errors -------------------------------------------------------------------------------------------------------------


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def another_class(folder):
    edit_config(folder, model_type="bert")


def damaged(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def not_a_weight_file(folder):
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def weights_missing(folder):
    path = folder / "model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if "gate" not in k}, path, metadata={"format": "pt"})


def other_sizes(folder):
    edit_config(folder, readout_size=64)


def only_a_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def unknown_variant(folder):
    edit_config(folder, variant="best")


def null_config(folder):
    (folder / "config.json").write_text("null")


def impossible_encoder(folder):
    edit_config(folder, backbone_config={"model_type": "bert", "hidden_size": "wide"})


def decoder(folder):
    edit_config(folder, backbone_config={"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2})


def no_config(folder):
    (folder / "config.json").unlink()


def broken_config(folder):
    (folder / "config.json").write_text("{")


def no_folder(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (another_class, ValueError, "is a 'bert' checkpoint, not an evidence selector; to train one .*from_backbone"),
        (damaged, OSError, "is damaged .*; download or copy it again"),
        (not_a_weight_file, OSError, "is damaged .*; download or copy it again"),
        (weights_missing, ValueError, "lacks 5 weights .*, such as readout.gate.key.weight; load a complete"),
        (other_sizes, ValueError, "lacks .* weights of the selector that its config describes"),
        (only_a_pickle, OSError, "has no readable model.safetensors; copy the complete checkpoint"),
        (unknown_variant, ValueError, "variant is 'best'; choose one of"),
        (no_config, OSError, "neither a folder with a readable config.json nor in the Hub cache; check the name"),
        (broken_config, OSError, "neither a folder with a readable config.json"),
        (null_config, OSError, "neither a folder with a readable config.json"),
        (impossible_encoder, ValueError, "has a config.json that cannot be used .*'wide'.*; copy it again"),
        (decoder, ValueError, "'gpt2' is not a text encoder of a supported kind; take one like"),
        (no_folder, OSError, "neither a folder with a readable config.json"),
    ],
)
def test_bad_checkpoint(saved, loader, spoil, kind, message):
    _, folder = saved
    spoil(folder)
    with pytest.raises(kind, match=message) as caught:
        loader.from_pretrained(folder)
    assert "\n" not in str(caught.value), "one sentence"


@pytest.mark.parametrize("loader", LOADERS)
def test_hub_id_without_network(loader):
    with pytest.raises(OSError, match="someone/something is neither .*; check the name, or load it once with a net"):
        loader.from_pretrained("someone/something")
    with pytest.raises(OSError, match="The encoder someone/something is neither"):
        WarrantEncoderForEvidenceSelection.from_backbone("someone/something")


def test_checkpoint_without_processor(selector, tmp_path):
    selector("bert").save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "tokenizer.json").unlink()
    model = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    with pytest.raises(
        OSError, match="has no readable (processor|tokenizer); save the EvidenceProcessor with the model"
    ):
        model.rank(QUESTION, PASSAGES)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("content", ["", "null", "[1]", "{}x"])
def test_damaged_processor(tiny_model_dir, tmp_path, name, content):
    shutil.copytree(tiny_model_dir, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(content)
    model = AutoModelForEvidenceSelection.from_pretrained(tmp_path / "copy")
    with pytest.raises(
        OSError, match="has no readable (processor|tokenizer); save the EvidenceProcessor with the model"
    ):
        model.rank(QUESTION, PASSAGES)


def test_checkpoint_without_a_name():
    with pytest.raises(ValueError, match="The name of the checkpoint is empty; give a folder or a Hub id"):
        AutoModelForEvidenceSelection.from_pretrained("")


# Encoders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("head", [AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification])
def test_encoder_of_a_model_with_any_head(kind, head, tmp_path):
    torch.manual_seed(0)
    whole = randomize(head.from_config(tiny_encoder_config(kind, 60)))
    whole.save_pretrained(tmp_path)
    model = WarrantEncoderForEvidenceSelection.from_backbone(tmp_path, readout_size=32)
    source = whole if head is AutoModel else whole.base_model
    expected, found = source.state_dict(), model.backbone.state_dict()
    assert not any("pooler" in name for name in found)
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], atol=0, rtol=0)
    assert model.config.packing == ("joint" if kind == "deberta-v2" else "isolated")


def test_encoder_errors(saved, tmp_path):
    _, folder = saved
    from_backbone = WarrantEncoderForEvidenceSelection.from_backbone
    with pytest.raises(ValueError, match="is an evidence selector already; use from_pretrained"):
        from_backbone(folder)
    encoder = AutoModel.from_config(tiny_encoder_config("bert", 60))
    encoder.save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="'varient' is not a field of WarrantEncoderConfig that can be set; choose"):
        from_backbone(tmp_path / "bert", varient="open")
    with pytest.raises(ValueError, match="encoder: 'dropout' is not a field of a bert config; remove it"):
        from_backbone(tmp_path / "bert", encoder={"dropout": 0.0})
    with pytest.raises(ValueError, match="'backbone_config' is not a field of WarrantEncoderConfig that can be set"):
        from_backbone(tmp_path / "bert", **{"backbone_config": 5})
    with pytest.raises(ValueError, match="encoder: hidden_dropout_prob is 'x'; give a value like 0.1"):
        from_backbone(tmp_path / "bert", encoder={"hidden_dropout_prob": "x"})
    with pytest.raises(ValueError, match="do not have the sizes of the bert config; change no size of the encoder"):
        from_backbone(tmp_path / "bert", encoder={"hidden_size": 64})
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}')
    with pytest.raises(ValueError, match="is no encoder that transformers knows .*; give another.$"):
        from_backbone(tmp_path)
    assert (
        from_backbone(tmp_path / "bert", encoder={"hidden_dropout_prob": 0.25}).backbone.embeddings.dropout.p == 0.25
    )
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lack encoder.layer.1.output.dense.weight; they are not those of a complete"):
        from_backbone(tmp_path / "bert")


def test_a_peft_adapter_is_no_backbone(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a PEFT adapter and no model; merge it"):
        WarrantEncoderForEvidenceSelection.from_backbone(tmp_path)


# Adapters -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(selector, tmp_path):
    """A LoRA model after three steps, saved by `recipes.save`; its encoder is a folder with another head."""
    from warrant_hf import recipes

    processor = selector("roberta").processor
    torch.manual_seed(0)
    encoder = randomize(AutoModelForMaskedLM.from_config(tiny_encoder_config("roberta", len(processor.tokenizer))))
    encoder.save_pretrained(tmp_path / "base")
    processor.tokenizer.save_pretrained(tmp_path / "base")
    recipe = recipes.Recipe(
        base_model=str(tmp_path / "base"),
        model={"readout_size": 32, "readout_heads": 2, "gate_size": 16},
        lora={"r": 4, "alpha": 8},
    )
    model, processor = recipes.build(recipe)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model.train()
    batch = processor([QUESTION], [PASSAGES]) | {"labels": torch.tensor([[1, 0, 0, 1]])}
    for _ in range(3):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    recipes.save(model.eval(), processor, recipe, tmp_path / "adapter model")
    return model, recipe, tmp_path / "adapter model"


def check_equal(one, two):
    assert one["mass"] == pytest.approx(two["mass"], abs=1e-6)
    for item, other in zip(one["evidence"], two["evidence"]):
        assert item["index"] == other["index"]
        assert item["score"] == pytest.approx(other["score"], abs=2e-6)


def test_adapter_checkpoint(adapter, tmp_path):
    from peft import PeftModel

    model, recipe, folder = adapter
    expected = model.get_base_model().rank(QUESTION, PASSAGES)
    fresh = WarrantEncoderForEvidenceSelection.from_backbone(recipe.base_model, **recipe.model)
    fresh.processor = model.get_base_model().processor
    assert fresh.eval().rank(QUESTION, PASSAGES)["mass"] != pytest.approx(expected["mass"], abs=1e-3)

    check_equal(json.loads(run(RANK, folder, QUESTION, json.dumps(PASSAGES))), expected)
    merged = AutoModelForEvidenceSelection.from_pretrained(folder)
    assert type(merged) is WarrantEncoderForEvidenceSelection and merged.config.base_model is None
    assert not any("lora" in name for name, _ in merged.named_parameters()) and not merged.training
    check_equal(merged.rank(QUESTION, PASSAGES), expected)
    merged.save_pretrained(tmp_path / "full")
    merged.processor.save_pretrained(tmp_path / "full")
    full = AutoModelForEvidenceSelection.from_pretrained(tmp_path / "full")
    assert full.rank(QUESTION, PASSAGES) == merged.rank(QUESTION, PASSAGES)

    wrapped = PeftModel.from_pretrained(fresh, folder / "adapter").eval()
    check_equal(wrapped.get_base_model().rank(QUESTION, PASSAGES), expected)
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in folder.rglob("*"))


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", torch.float16])
def test_adapter_in_other_dtypes(adapter, dtype):
    _, _, folder = adapter
    model = AutoModelForEvidenceSelection.from_pretrained(folder, dtype=dtype)
    expected = {"auto": torch.float32, "bfloat16": torch.bfloat16}.get(dtype, dtype)
    assert model.backbone.dtype == expected and model.readout.beta.dtype == torch.float32
    assert type(model.rank(QUESTION, PASSAGES)["mass"]) is float


def test_adapter_through_the_pipeline(adapter):
    from transformers import pipeline

    _, _, folder = adapter
    expected = AutoModelForEvidenceSelection.from_pretrained(folder).rank(QUESTION, PASSAGES)
    assert pipeline("evidence-selection", model=str(folder))(question=QUESTION, passages=PASSAGES) == expected


def test_adapter_errors(adapter):
    _, recipe, folder = adapter
    load = AutoModelForEvidenceSelection.from_pretrained
    weights = folder / "adapter" / "adapter_model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-40])
    with pytest.raises(OSError, match="is damaged"):
        load(folder)
    weights.unlink()
    torch.save({}, folder / "adapter" / "adapter_model.bin")
    with pytest.raises(OSError, match="has no adapter/adapter_model.safetensors; copy the complete checkpoint"):
        load(folder)
    weights.write_bytes(kept)
    values = load_file(weights)
    save_file({k: v for k, v in values.items() if "gate" not in k}, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks .* weights of its adapter, such as .*gate.*; copy the complete"):
        load(folder)
    weights.write_bytes(kept)
    base = Path(recipe.base_model) / "model.safetensors"
    save_file({k: v + 1 for k, v in load_file(base).items()}, base, metadata={"format": "pt"})
    with pytest.raises(OSError, match="are not those the adapter was trained on"):
        load(folder)
    shutil.rmtree(recipe.base_model)
    with pytest.raises(OSError, match="are not on this machine; load once with a network"):
        load(folder)


def test_open_gate_stays_frozen_under_an_adapter(selector, tmp_path):
    from warrant_hf import recipes

    processor = selector("bert").processor
    AutoModel.from_config(tiny_encoder_config("bert", len(processor.tokenizer))).save_pretrained(tmp_path)
    processor.tokenizer.save_pretrained(tmp_path)
    recipe = recipes.Recipe(base_model=str(tmp_path), model={"variant": "open", "frozen_layers": 1}, lora={})
    model, _ = recipes.build(recipe)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and not any("gate" in name for name in trained)
    assert all("lora_" in name and ".layer.1." in name or ".readout." in name for name in trained)


def test_config_class_of_the_auto_mapping():
    expected = {reader.config_class for reader in READERS}
    assert WarrantEncoderConfig in expected and set(AutoModelForEvidenceSelection._model_mapping.keys()) == expected


def test_what_was_frozen_is_frozen_again(tmp_path):
    config = tiny_encoder_config("bert", 60)
    model = WarrantEncoderForEvidenceSelection(
        WarrantEncoderConfig(backbone_config=config, variant="open", frozen_layers=1, readout_size=16, gate_size=8)
    )
    model.save_pretrained(tmp_path)
    again = WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path)
    frozen = [{n for n, p in m.named_parameters() if not p.requires_grad} for m in (model, again)]
    assert frozen[0] == frozen[1] and any("readout.gate" in name for name in frozen[0])
