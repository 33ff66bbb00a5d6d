"""The peer: a pairwise cross-encoder of sentence-transformers on the same encoder, data and budget.

It reads every (question, candidate) pair on its own and sees the same candidate draws as a selector of the same
recipe: same seed, same distractors, the same number of optimiser steps over the same candidates, the same frozen
layers, encoder settings, precision and schedule. What it has no use for is the choice of sub-lists, because its score
of a candidate does not depend on a list.
"""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

from warrant_hf.data.candidates import CandidateDataset
from warrant_hf.evaluation.predictions import Prediction
from warrant_hf.modeling.base_weights import find_backbone
from warrant_hf.modeling.processing_evidence import full_text


def train_peer(recipe, rows, output_dir: Path) -> CrossEncoder:
    """Fine-tunes the cross-encoder with the recipe's encoder, data and training settings."""
    data = recipe.data
    items = CandidateDataset(rows, size=data.size, hard=data.hard, seed=recipe.seed, draws=data.draws)
    pairs = {"question": [], "passage": [], "label": []}
    for at in range(len(items)):
        item = items[at]
        pairs["question"] += [item["question"]] * len(item["passages"])
        pairs["passage"] += [full_text(passage) for passage in item["passages"]]
        pairs["label"] += [float(label) for label in item["labels"]]
    model = CrossEncoder(
        find_backbone(recipe.base_model),
        num_labels=1,
        max_length=512,
        config_kwargs=dict(recipe.encoder),
        local_files_only=True,
    )
    encoder = model.model.base_model
    frozen = recipe.model.get("frozen_layers", 0)
    for module in (encoder.embeddings, *encoder.encoder.layer[:frozen]) if frozen else ():
        module.requires_grad_(False)
    questions_per_step = recipe.training["per_device_train_batch_size"]
    per_question = len(pairs["label"]) / len(items)
    settings = {
        **{key: value for key, value in recipe.training.items() if key in _SHARED},
        # The same candidates a step, in small parts, because the library pads a part to its longest pair.
        "per_device_train_batch_size": round(per_question) * 2,
        "gradient_accumulation_steps": questions_per_step // 2,
        "seed": recipe.seed,
        "bf16": recipe.bf16,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "save_strategy": "no",
        "report_to": "none",
    }
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(output_dir=str(output_dir), **settings),
        train_dataset=Dataset.from_dict(pairs),
        loss=BinaryCrossEntropyLoss(model),
    )
    trainer.train()
    return model


_SHARED = {"learning_rate", "num_train_epochs", "logging_steps", "use_cpu", "disable_tqdm"}


def predict_peer(model: CrossEncoder, rows, batch_size: int = 64) -> list[Prediction]:
    """Scores all pairs of all rows in one call, so that the library can put pairs of similar length together."""
    pairs = [(row.question, full_text(candidate.to_dict())) for row in rows for candidate in row.candidates]
    logits = model.predict(pairs, batch_size=batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    predictions, start = [], 0
    for row in rows:
        scores = torch.as_tensor(logits[start : start + len(row.candidates)]).double()
        start += len(row.candidates)
        best = float(scores.max().sigmoid())  # the only list-level signal that a pairwise scorer has
        predictions.append(
            Prediction(
                id=row.id,
                scores=scores.tolist(),
                labels=row.labels,
                kinds=row.kinds,
                probabilities=scores.sigmoid().tolist(),
                answerability=best,
            )
        )
    return predictions
