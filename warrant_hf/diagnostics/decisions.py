"""Decisions of a selector with the masses behind them, as the diagnostics of permission take them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..data.schema import EvidenceRow
from ..evaluation.predictions import Prediction
from ..modeling import WarrantFiDForEvidenceSelection
from ..modeling.evidence_readout import MASS_FLOOR

#: Which candidates an intervention closes, as a function of the labels `[C]`.
CLOSINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "evidence": lambda labels: labels == 1,
    "other": lambda labels: labels == 0,
}
#: A score further than this, relative to its size, from what the masses say is not made by them.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class ScoreRule:
    r"""How effective masses make the scores of a decision (see [`EvidenceReadout`]), in float64.

        logit_c = beta log(max(C m_c, floor)) + bias
        answerability logit = mass_scale log(max(sum_c m_c, floor)) + mass_bias

    `renormalised` is the control in which what is left of the masses is divided by its sum.
    """

    beta: float
    bias: float
    mass_scale: float
    mass_bias: float
    renormalised: bool = False
    floor: float = MASS_FLOOR

    @classmethod
    def of(cls, model) -> ScoreRule:
        readout = model.readout
        constants = (float(getattr(readout, name)) for name in ("beta", "bias", "mass_scale", "mass_bias"))
        return cls(*constants, renormalised=readout.variant.acts == "shares")

    def logits(self, effective: np.ndarray) -> np.ndarray:
        """Support logits for masses `[..., C]` of one list of C candidates."""
        return self.beta * np.log(np.maximum(effective.shape[-1] * effective, self.floor)) + self.bias

    def answerability(self, effective: np.ndarray) -> np.ndarray:
        """Answerability logits `[...]` for masses `[..., C]`."""
        return self.mass_scale * np.log(np.maximum(effective.sum(-1), self.floor)) + self.mass_bias


@dataclass(frozen=True)
class DecisionCase:
    """What a selector did with one question; arrays are float64 with one entry per candidate, in input order.

    Attributes:
        id: of the row. kinds: "gold", "hard", "random", another text or `None` for each candidate.
        labels (`[C]`, int): 1 supports, 0 does not.
        attention, permission, effective, logits (`[C]`): as in [`EvidenceOutput`].
        answerability_logit: of the list. rule: how masses make the scores.
    """

    id: str
    labels: np.ndarray
    kinds: Sequence[str | None]
    attention: np.ndarray
    permission: np.ndarray
    effective: np.ndarray
    logits: np.ndarray
    answerability_logit: float
    rule: ScoreRule

    def with_open(self, keep: np.ndarray) -> np.ndarray:
        """Masses `[..., C]` when only the candidates of `keep` (`[..., C]`, bool) keep their learned permission.

        The others' is 0. Where gates are not renormalised, a closed one takes its own mass away and leaves the rest.
        """
        if not self.rule.renormalised:
            return np.where(keep, self.effective, 0.0)
        masses = np.where(keep, self.attention * self.permission, 0.0)
        return masses / np.maximum(masses.sum(-1, keepdims=True), np.finfo(np.float32).tiny)

    def to_prediction(self) -> Prediction:
        """For [`evidence_metrics`]."""
        return Prediction(
            id=self.id,
            scores=self.logits,
            labels=self.labels,
            kinds=self.kinds,
            permission=self.permission,
            attention=self.attention,
            effective=self.effective,
            probabilities=np.exp(log_sigmoid(self.logits)),
            mass=float(self.effective.sum()),
            answerability=float(np.exp(log_sigmoid(self.answerability_logit))),
        )


@dataclass(frozen=True)
class Decisions:
    """One model's decisions on rows: as learned, and with `permission_override` 0 on a part of the candidates.

    Attributes:
        learned: one case per row. closed: of each name in `CLOSINGS`, one case per row, from the model's forward pass.
        gap: largest difference between a score of a closed case and the one that `learned` predicts for it.
    """

    learned: list[DecisionCase]
    closed: dict[str, list[DecisionCase]]
    gap: float


def log_sigmoid(logit):
    """Logarithm of the probability of a logit, in float64."""
    return -np.logaddexp(0.0, -np.asarray(logit, dtype=np.float64))


def require_permission(model) -> None:
    """Raises a `ValueError` for a selector whose score does not come from effective masses."""
    if not model.readout.variant.path:
        raise ValueError(
            f"variant is {model.config.variant!r}, whose score does not come from the mass that a permission lets "
            "through; give a selector of another variant, such as 'pair' or 'open'."
        )


def require_labels(rows: Sequence[EvidenceRow]) -> None:
    """Raises a `ValueError` for no rows, or a candidate without a label."""
    if not rows:
        raise ValueError("rows is empty; give at least one labelled question.")
    for row in rows:
        if row.labels is None:
            raise ValueError(f"row {row.id!r} has a candidate without label; label every candidate 0 or 1.")


def to_device(model, encoded) -> dict:
    """The padded batch of encoded rows, with the encoder's states where the reader can use them again (FiD)."""
    inputs = dict(model.processor.pad(encoded).to(model.device))
    if isinstance(model, WarrantFiDForEvidenceSelection):
        inputs["encoder_states"] = model.encode(inputs["input_ids"], inputs["segment_ids"])
    return inputs


def override(closed: Sequence[np.ndarray], like: torch.Tensor) -> torch.Tensor:
    """`permission_override` of a batch: 0 where `closed` (`[C]`, bool, per row) says so, else NaN for the learned."""
    values = torch.full(like.shape, float("nan"))
    for at, chosen in enumerate(closed):
        values[at, np.flatnonzero(chosen)] = 0.0
    return values.to(like.device)


@torch.no_grad()
def read_decisions(
    model, rows: Sequence[EvidenceRow], *, batch_size: int = 8, advance: Callable[[int], None] = lambda count: None
) -> Decisions:
    """Decides about each row as learned, with its evidence closed, and with everything else closed.

    The diagnostics then follow any other choice of open gates from the masses of the learned decision, without another
    forward pass. That this is what the model does is checked here on two closings of every row.

    Args:
        model: a selector of any reader, with its processor.
        rows: labelled; `build_candidates` makes short lists and the kinds.
        batch_size: questions read together. advance: hears how many rows are done.

    Raises:
        ValueError: no rows, a candidate without label, a variant without permission, scores that are not finite, or a
            model whose scores do not follow from the masses.
    """
    require_permission(model)
    require_labels(rows)
    rule, was_training = ScoreRule.of(model), model.training
    parts: dict[str, Callable] = {"learned": lambda labels: np.zeros(len(labels), dtype=bool), **CLOSINGS}
    found: dict[str, list] = {name: [None] * len(rows) for name in parts}
    model.eval()
    try:
        step = 8 * batch_size  # more than one batch at a time: questions of similar length share one
        for start in range(0, len(rows), step):
            chunk = range(start, min(start + step, len(rows)))
            passages = [[candidate.to_passage() for candidate in rows[at].candidates] for at in chunk]
            encoded = dict(zip(chunk, model.processor.encode([rows[at].question for at in chunk], passages)))
            order = sorted(chunk, key=lambda at: encoded[at].input_ids.size)
            for batch in (order[at : at + batch_size] for at in range(0, len(order), batch_size)):
                inputs = to_device(model, [encoded[at] for at in batch])
                for name, part in parts.items():
                    closed = [part(np.array(rows[at].labels)) for at in batch]
                    output = model(**inputs, permission_override=override(closed, inputs["candidate_mask"]))
                    for place, at in enumerate(batch):
                        found[name][at] = _case(rows[at], output, place, rule)
                advance(len(batch))
    finally:
        model.train(was_training)
    learned = found.pop("learned")
    return Decisions(learned, found, _gap(learned, found))


def _case(row, output, place, rule) -> DecisionCase:
    count = len(row.candidates)
    names = ("attention", "permission", "effective", "logits")
    values = {name: getattr(output, name)[place, :count].double().cpu().numpy() for name in names}
    answerable = float(output.answerability_logits[place])
    if not all(np.isfinite(value).all() for value in (*values.values(), answerable)):
        raise ValueError(f"row {row.id!r}: the scores are not finite; load the model in bfloat16 or float32 instead.")
    return DecisionCase(
        id=row.id,
        labels=np.array(row.labels),
        kinds=row.kinds,
        answerability_logit=answerable,
        rule=rule,
        **values,
    )


def _gap(learned, closed) -> float:
    largest = 0.0
    for name, cases in closed.items():
        for before, after in zip(learned, cases, strict=True):
            masses = before.with_open(~CLOSINGS[name](before.labels))
            expected = np.append(before.rule.logits(masses), before.rule.answerability(masses))
            given = np.append(after.logits, after.answerability_logit)
            difference = np.abs(expected - given)
            if (difference > TOLERANCE * (1 + np.abs(given))).any():
                raise ValueError(
                    f"row {before.id!r}: with its {name} closed a score is {difference.max():.3g} from what the "
                    "masses say; these diagnostics need scores that are made by the masses alone."
                )
            largest = max(largest, float(difference.max()))
    return largest


__all__ = [
    "CLOSINGS",
    "DecisionCase",
    "Decisions",
    "ScoreRule",
    "log_sigmoid",
    "override",
    "read_decisions",
    "require_labels",
    "require_permission",
    "to_device",
]
