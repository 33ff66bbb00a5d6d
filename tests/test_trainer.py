"""Fine-tuning: the collator's columns, what each variant trains, and what evaluation keeps."""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from warrant_hf import AutoModelForEvidenceSelection, EvidenceCollator, EvidenceTrainer, EvidenceTrainingArguments
from warrant_hf.trainer import NO_LABEL

ROWS = [
    {
        "id": f"row-{at}",
        "question": f"question {at}",
        "passages": [{"title": None, "text": f"passage {number} of {at}"} for number in range(2 + at % 3)],
        "labels": [int(number == at % 2) for number in range(2 + at % 3)],
    }
    for at in range(8)
]


@pytest.fixture
def model(tiny_model_dir):
    return AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir)


def variant_of(model, **changes):
    """An untrained selector like `model`, with other settings."""
    torch.manual_seed(0)
    config = type(model.config)(**(model.config.to_dict() | changes))
    other = type(model)(config)
    other.processor = model.processor
    return other


def arguments(folder, kind=EvidenceTrainingArguments, **changes):
    settings = {"per_device_train_batch_size": 4, "max_steps": 2, "report_to": "none", "save_strategy": "no"}
    settings |= {"use_cpu": True, "disable_tqdm": True, "learning_rate": 0.01, "warmup_steps": 0}
    return kind(output_dir=str(folder), **(settings | changes))


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def changed(model, before):
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


# Collator -----------------------------------------------------------------------------------------------------------


def test_batches(model):
    rows = [dict(row) for row in ROWS[:3]]
    rows[0]["lists"], rows[1]["lists"], rows[2]["lists"] = [[0, 1], [1]], [[0, 1, 2]], [[0, 1, 2, 3], [2]]
    batch = EvidenceCollator(model.processor)(rows)
    assert batch["labels"].tolist() == [[1, 0, -100, -100], [0, 1, 0, -100], [1, 0, 0, 0]]
    assert batch["candidate_lists"].shape == (3, 2, 4) and batch["candidate_lists"].sum().item() == 11
    output = model(**batch)
    assert torch.isfinite(output.loss) and output.logits.shape == (3, 4)


def test_rows_without_labels(model):
    rows = [{"question": "a", "passages": ["b", "c"]}, ROWS[0]]
    assert "labels" not in EvidenceCollator(model.processor)(rows[:1])
    assert EvidenceCollator(model.processor)(rows)["labels"].tolist() == [[-100, -100], [1, 0]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"labels": [1]}, "row 0 of the batch lacks question and passages \\(it has labels\\).*columns=False"),
        ({"question": "a"}, "lacks passages \\(it has question\\)"),
        ({}, "it has nothing"),
        ({"question": "a", "passages": ["b"], "labels": [1, 0]}, "has 2 labels for 1 passages; give one label"),
        ({"question": "a", "passages": ["b"], "labels": [2]}, "has the label 2; give 0, 1, or -100 where unknown"),
        ({"question": "", "passages": ["b"], "labels": [1]}, "question 0 is ''"),
        ({"question": "a", "passages": [], "labels": []}, "passages\\[0\\] is empty"),
        (
            {"question": "a", "passages": None, "labels": [1]},
            "row 0 of the batch: passages is a NoneType; give a list",
        ),
        (
            {"question": "a", "passages": ["b"], "labels": 1},
            "row 0 of the batch: labels is a int; give a list of 0 and",
        ),
        ({"question": "a", "passages": ["b"], "lists": [0]}, "an entry of lists is a int; give a list of candidate"),
        ({"question": "a", "passages": ["b"], "lists": [[1]]}, "lists candidate 1, but has 1; count from 0"),
    ],
)
def test_bad_rows(model, row, message):
    with pytest.raises(ValueError, match=message):
        EvidenceCollator(model.processor)([row])


# Stock Trainer ------------------------------------------------------------------------------------------------------


def datasets_rows():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(ROWS)


@pytest.mark.parametrize("rows", [lambda: ROWS, datasets_rows], ids=["list", "datasets.Dataset"])
def test_stock_trainer(model, tmp_path, rows):
    before = weights(model)
    args = arguments(tmp_path, TrainingArguments, remove_unused_columns=False)
    collator = EvidenceCollator(model.processor)
    trainer = Trainer(model, args, train_dataset=rows(), eval_dataset=rows(), data_collator=collator)
    assert np.isfinite(trainer.train().training_loss)
    assert np.isfinite(trainer.evaluate()["eval_loss"]) and changed(model, before)
    logits, permission = trainer.predict(rows()).predictions
    assert logits.shape == permission.shape == (8, 4), "only arrays of [rows, candidates] are kept"


@pytest.mark.parametrize("rows", [lambda: ROWS, datasets_rows], ids=["list", "datasets.Dataset"])
def test_stock_trainer_with_default_columns_says_what_to_set(model, tmp_path, rows):
    args = arguments(tmp_path, TrainingArguments)
    trainer = Trainer(model, args, train_dataset=rows(), data_collator=EvidenceCollator(model.processor))
    with pytest.raises(ValueError, match="columns must be question, passages and labels.*unused_columns=False"):
        trainer.train()


# EvidenceTrainer ----------------------------------------------------------------------------------------------------


def test_train_evaluate_predict(model, tmp_path):
    trainer = EvidenceTrainer(
        model,
        arguments(tmp_path, per_device_eval_batch_size=3),
        train_dataset=ROWS,
        eval_dataset=ROWS,
        processing_class=model.processor,
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_support_mrr", "eval_permission_auc"} <= set(metrics)
    assert all(np.isfinite(value) for value in metrics.values())
    prediction = trainer.predict(ROWS)
    scores, permission = prediction.predictions
    assert scores.shape == permission.shape == prediction.label_ids.shape == (8, 4)
    expected = model.rank_batch([row["question"] for row in ROWS], [row["passages"] for row in ROWS])
    for at, result in enumerate(expected):
        for item in result["evidence"]:
            assert scores[at, item["index"]] == pytest.approx(item["score"], abs=1e-4)
            assert permission[at, item["index"]] == pytest.approx(item["permission"], abs=1e-4)
    assert (scores[prediction.label_ids == NO_LABEL] == NO_LABEL).all()
    unlabelled = [{"question": row["question"], "passages": row["passages"]} for row in ROWS]
    np.testing.assert_allclose(trainer.predict(unlabelled).predictions[0], scores, atol=1e-5)


def test_metrics_of_a_variant_without_permission(model, tmp_path):
    base = variant_of(model, variant="base")
    trainer = EvidenceTrainer(base, arguments(tmp_path), eval_dataset=ROWS, processing_class=model.processor)
    metrics = trainer.evaluate()
    assert "eval_support_mrr" in metrics
    assert trainer.predict(ROWS).predictions.shape == (8, 4)


def test_every_parameter_of_pair_trains(model, tmp_path):
    pair = variant_of(model, readout_dropout=0.0)
    before = weights(pair)
    rows = [row | {"lists": [list(range(len(row["labels"]))), [0]]} for row in ROWS]
    EvidenceTrainer(
        pair, arguments(tmp_path, weight_decay=0.0), train_dataset=rows, processing_class=model.processor
    ).train()
    # w = 0 hides the gate's MLP from the first step; the second one reaches it.
    assert set(before) - changed(pair, before) == set()


def test_base_trains_the_gate_network(model, tmp_path):
    base = variant_of(model, variant="base")
    before = weights(base)
    EvidenceTrainer(
        base, arguments(tmp_path, weight_decay=0.0), train_dataset=ROWS, processing_class=model.processor
    ).train()
    assert set(before) == changed(base, before)


def test_open_gate_is_left_alone(model, tmp_path):
    other = variant_of(model, variant="open")
    before = weights(other)
    trainer = EvidenceTrainer(
        other, arguments(tmp_path, weight_decay=0.5), train_dataset=ROWS, processing_class=model.processor
    )
    trainer.train()
    assert {name for name in before if ".gate." in name} == set(before) - changed(other, before)
    held = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
    assert not held & {id(parameter) for parameter in other.readout.gate.parameters()}
    assert [item["permission"] for item in other.rank("q", ["a", "b"])["evidence"]] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("wrapped", [False, True], ids=["full", "peft"])
def test_learning_rates(model, tmp_path, wrapped):
    trained = variant_of(model)
    if wrapped:
        from peft import LoraConfig, get_peft_model

        trained = get_peft_model(trained, LoraConfig(target_modules=["query"], modules_to_save=["readout"]))
    multipliers = {"readout_lr_multiplier": 10.0, "gate_lr_multiplier": 0.5}
    args = arguments(tmp_path, learning_rate=1e-3, weight_decay=0.1, **multipliers)
    optimizer = EvidenceTrainer(trained, args, train_dataset=ROWS, processing_class=model.processor).create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    seen = set()
    for name, parameter in trained.named_parameters():
        if parameter.requires_grad:
            part = "gate" if ".gate." in name else "readout" if "readout" in name else "backbone"
            seen.add(part)
            assert rates[id(parameter)] == {"backbone": 1e-3, "readout": 1e-2, "gate": 5e-3}[part], name
            assert decays[id(parameter)] == (0.0 if name.endswith("bias") or "LayerNorm" in name else 0.1), name
        else:
            assert id(parameter) not in rates
    assert seen == {"backbone", "readout", "gate"}


@pytest.mark.parametrize("loss", ["bce", "listwise"])
def test_loss_terms(model, loss):
    batch = EvidenceCollator(model.processor)(ROWS)

    def value(**changes):
        other = variant_of(model, evidence_loss=loss, **changes)
        other.load_state_dict(model.state_dict())
        return other.eval()(**batch).loss.item()

    plain = value(answerability_weight=0.0)
    half, whole = value(answerability_weight=0.5) - plain, value(answerability_weight=1.0) - plain
    assert half > 0 and whole == pytest.approx(2 * half, rel=1e-4)
    one, two = (value(answerability_weight=0.0, permission_supervision=w) - plain for w in (1.0, 2.0))
    assert one > 0 and two == pytest.approx(2 * one, rel=1e-4)
    same = value(answerability_weight=0.0, permission_supervision=1.0, variant="open")
    assert same == pytest.approx(value(answerability_weight=0.0, variant="open"), abs=1e-7)


def test_wrong_arguments(model, tmp_path):
    with pytest.raises(ValueError, match="processing_class is missing; give the EvidenceProcessor"):
        EvidenceTrainer(model, arguments(tmp_path))
    with pytest.raises(ValueError, match="args is a TrainingArguments; use EvidenceTrainingArguments, or the stock"):
        EvidenceTrainer(model, arguments(tmp_path, TrainingArguments), processing_class=model.processor)
