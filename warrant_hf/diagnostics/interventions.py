"""What a decision loses when the mass of its evidence is taken away, and when all other mass is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..data.schema import EvidenceRow
from ..evaluation.bootstrap import paired_difference
from ..evaluation.metrics import compare_runs
from ..modeling import WarrantFiDForEvidenceSelection
from .decisions import CLOSINGS, Decisions, override, require_labels, require_permission, to_device
from .utilities import UTILITIES

# Of these an intervention sets the permission itself, so a difference in them is no effect.
_SET = ("permission", "effective", "attention")


def intervention_report(decisions: Decisions, *, resamples: int = 1000, seed: int = 0) -> dict:
    """The drop in each metric and utility when a part of the mass is zeroed by `permission_override`.

    A drop is what it is as learned minus what it is after; for errors such as `brier` a harm is therefore negative.
    Both are computed from the forward pass of the model. Closing the evidence of a question changes no score of the
    other candidates, only the order, what passes the threshold, and the total mass.

    Returns:
        `{"evidence" | "other": {name: {"value", "low", "high", "p"}}}`; `mass` is the effective mass itself.
    """
    learned = [case.to_prediction() for case in decisions.learned]
    settings = {"resamples": resamples, "seed": seed}
    report = {}
    for name, cases in decisions.closed.items():
        drop = compare_runs([learned], [[case.to_prediction() for case in cases]], bootstrap=resamples, seed=seed)
        drop = {metric: entry for metric, entry in drop.items() if not metric.startswith(_SET)}
        for utility, row in UTILITIES.items():
            at = [i for i, case in enumerate(cases) if not row.needs_gold or (case.labels == 1).any()]
            if at:
                before, after = ([_utility(side[i], utility) for i in at] for side in (decisions.learned, cases))
                drop[utility] = paired_difference(before, after, **settings)
        before, after = ([case.effective.sum() for case in side] for side in (decisions.learned, cases))
        drop["mass"] = paired_difference(before, after, **settings)
        report[name] = drop
    return report


def _utility(case, name) -> float:
    # Of the scores that the forward pass gave, not of the masses.
    return float(UTILITIES[name].of(case.labels, case.logits, np.asarray(case.answerability_logit)))


def reads_answers(model) -> bool:
    """Whether the selector was trained on answers, so that what it would say can be looked at too."""
    return isinstance(model, WarrantFiDForEvidenceSelection) and model.config.answer_weight > 0


@torch.no_grad()
def answer_report(
    model,
    rows: Sequence[EvidenceRow],
    *,
    resamples: int = 1000,
    seed: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> dict:
    """Fusion-in-Decoder: how much likelier the known answer is with a part of the passages than without it.

    The gates are in the decoder's cross-attention, so a closed one is out of the answer as it is out of the evidence.

    Args:
        model: a FiD selector trained with `answer_weight`.
        rows: labelled. Those without an `answer` that is a text are left out and counted.

    Returns:
        `questions`, `skipped` (ids), `log_likelihood` (mean per token of the answer, as learned), and for each of
        `CLOSINGS` the `drop` in it, `{"value", "low", "high", "p"}`; none of these two where no row has an answer.

    Raises:
        ValueError: another model, no rows, or a candidate without label.
    """
    if not reads_answers(model):
        raise ValueError("answer_report needs a FiD selector trained with answer_weight; leave it out for others.")
    require_permission(model)
    require_labels(rows)
    known = [row for row in rows if isinstance(row.answer, str) and row.answer.strip()]
    was_training = model.training
    likelihood: dict[str, list[float]] = {name: [] for name in ("learned", *CLOSINGS)}
    model.eval()
    try:
        for row in known:
            passages = [candidate.to_passage() for candidate in row.candidates]
            answer = model.processor.encode_answers([row.answer]).to(model.device)
            labels = torch.tensor([row.labels], device=model.device)
            inputs = to_device(model, model.processor.encode([row.question], [passages]))
            for name in likelihood:
                closed = CLOSINGS[name](np.array(row.labels)) if name in CLOSINGS else np.zeros(len(passages), bool)
                gates = override([closed], inputs["candidate_mask"])
                settings = {**inputs, "labels": labels, "permission_override": gates}
                # The loss is a sum, and the evidence's part of it comes without the answer.
                loss = model(**settings, answer_labels=answer).loss - model(**settings).loss
                likelihood[name].append(-float(loss) / model.config.answer_weight)
            advance(1)
    finally:
        model.train(was_training)
    ids = {row.id for row in known}
    report = {"questions": len(known), "skipped": [row.id for row in rows if row.id not in ids]}
    if known:
        report["log_likelihood"] = float(np.mean(likelihood["learned"]))
        report["drop"] = {
            name: paired_difference(likelihood["learned"], likelihood[name], resamples=resamples, seed=seed)
            for name in CLOSINGS
        }
    return report


__all__ = ["answer_report", "intervention_report", "reads_answers"]
