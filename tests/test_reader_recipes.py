"""The three readers, trained from a recipe that differs in `base_model` alone: resumed, adapted, loaded again."""

import json
import shutil

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM

from tests.modeling.conftest import byte_tokenizer, long_backbone_config, seq2seq_config, tiny_encoder_config
from warrant_hf import AutoModelForEvidenceSelection, EvidenceWorld
from warrant_hf.recipes import Recipe, train

#: Reader -> auto class and config of what it starts from.
BACKBONES = {
    "encoder": (AutoModel, lambda size: tiny_encoder_config("roberta", size)),
    "fid": (AutoModelForSeq2SeqLM, lambda size: seq2seq_config("t5", size)),
    "led": (AutoModel, lambda size: long_backbone_config("led", size)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a base model per reader, and labelled rows."""
    folder, tokenizer = tmp_path_factory.mktemp("readers"), byte_tokenizer()
    for name, (auto_class, config) in BACKBONES.items():
        torch.manual_seed(0)
        auto_class.from_config(config(len(tokenizer))).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rows = [json.dumps(row.to_dict()) for row in EvidenceWorld(seed=1, candidates=3, hard=1, hops=(1,)).generate(8)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def recipe(files, reader, **changes):
    return Recipe(
        base_model=str(files / reader),
        model={"readout_size": 32, "readout_heads": 2, "gate_size": 16, **changes.pop("model", {})},
        data={"size": 3, "hard": 1, "lists_per_question": 2, "max_length": 256, "max_question_tokens": 96},
        training={
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "save_strategy": "steps",
            "save_steps": 4,
            "use_cpu": True,
            "disable_tqdm": True,
        },
        **changes,
    )


def run(settings, files, output, **options):
    return train(
        settings, train_file=files / "rows.jsonl", eval_file=files / "rows.jsonl", output_dir=output, **options
    )


@pytest.mark.parametrize("reader", BACKBONES)
def test_resumed_run_ends_at_the_same_weights(reader, files, tmp_path):
    settings = recipe(files, reader)
    metrics = run(settings, files, tmp_path / "whole")
    assert 0 <= metrics["eval_support_mrr"] <= 1
    (tmp_path / "half").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "half" / "checkpoint-4")
    resumed = run(settings, files, tmp_path / "half", resume=True)
    assert resumed["eval_support_mrr"] == metrics["eval_support_mrr"] and resumed["eval_loss"] == metrics["eval_loss"]
    whole, half = (AutoModelForEvidenceSelection.from_pretrained(tmp_path / name) for name in ("whole", "half"))
    for (name, one), other in zip(whole.state_dict().items(), half.state_dict().values()):
        assert torch.equal(one, other), name
    fresh = AutoModelForEvidenceSelection.from_backbone(str(files / reader), **settings.model)
    assert any(not torch.equal(a, b) for a, b in zip(fresh.parameters(), whole.parameters()))


@pytest.mark.parametrize("reader", BACKBONES)
def test_adapter_run(reader, files, tmp_path):
    run(recipe(files, reader, lora={"r": 4, "alpha": 8}), files, tmp_path / "run")
    saved = {path.name for path in (tmp_path / "run").iterdir()}
    assert "adapter" in saved and "model.safetensors" not in saved
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path / "run")
    passages = ["jane austen wrote emma.", "nothing"]
    result = loaded.rank("who?", passages)
    loaded.save_pretrained(tmp_path / "merged")
    again = AutoModelForEvidenceSelection.from_pretrained(tmp_path / "merged").rank("who?", passages)
    for one, other in zip(result["evidence"], again["evidence"]):
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def test_joint_loss_from_a_recipe(files, tmp_path):
    run(recipe(files, "fid", model={"answer_weight": 0.5}), files, tmp_path)
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert loaded.processor.answers and isinstance(loaded.answer("who?", ["jane"], max_new_tokens=3)["answer"], str)
