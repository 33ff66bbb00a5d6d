"""Whether a list holds evidence at all, as a probability: the two numbers that make one of the total mass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from .bootstrap import bootstrap_interval
from .calibration import expected_calibration_error

FOLDS = 5
#: Fewer questions than this give folds that say nothing.
FEWEST = 20
# Keeps the scale finite where the two kinds of list part completely, and does nothing elsewhere.
_RIDGE = 1e3


@dataclass(frozen=True)
class AnswerabilityFit:
    """P(evidence in the list) = sigmoid(scale * x + bias), x the logarithm of the total mass, or the best score.

    Args:
        scale, bias (`float`): fitted on all questions.
        before, after (`dict`): `ece` (15 bins) and `brier` with interval, of the probabilities as they were, and of
            those that folds without the question give it.
        questions (`int`): each has lists with its evidence and without.
    """

    scale: float
    bias: float
    before: dict
    after: dict
    questions: int

    @property
    def is_worse(self) -> bool:
        """Whether the probabilities were better as they were, by the Brier score."""
        return self.after["brier"]["value"] > self.before["brier"]["value"]


def fit_answerability(
    present: Sequence[float],
    absent: Sequence[float],
    *,
    scale: float,
    bias: float,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> AnswerabilityFit:
    """Logistic regression (Platt) of "the list holds evidence" on what the answerability is made of.

    Args:
        present, absent: answerability of each pair of lists, with the evidence and with distractors in its place.
        scale, bias: `mass_scale` and `mass_bias` of the readout that gave them.
        names: of the question of each pair; pairs of one name count as one question and share a fold. Without them,
            each pair is a question of its own.
        seed: of the intervals.

    Raises:
        ValueError: too few questions, a scale of 0, or an x that is not larger where there is evidence.
    """
    pairs = len(present)
    if pairs != len(absent):
        raise ValueError(f"present has {pairs} values and absent {len(absent)}; give two lists a question.")
    question = np.unique(np.arange(pairs) if names is None else names, return_inverse=True)[1]
    if len(question) != pairs:
        raise ValueError(f"names has {len(question)} values and present {pairs}; give one name a pair.")
    questions = len(np.unique(question))
    if questions < FEWEST:
        raise ValueError(f"{questions} questions have lists with and without evidence; give at least {FEWEST}.")
    if scale == 0:
        raise ValueError("mass_scale is 0, so that the answerability is the same for every list; train the selector.")
    was = np.concatenate([np.asarray(present, dtype=float), np.asarray(absent, dtype=float)])
    inside = np.clip(was, 1e-15, 1 - 1e-15)
    x = ((np.log(inside) - np.log1p(-inside) - bias) / scale)[:, None]
    y, group = np.repeat([1, 0], pairs), np.tile(question, 2)
    model = LogisticRegression(C=_RIDGE)
    unseen = cross_val_predict(model, x, y, groups=group, cv=GroupKFold(FOLDS), method="predict_proba")[:, 1]
    model.fit(x, y)
    found = float(model.coef_[0, 0])
    if found <= 0:
        raise ValueError(
            "What the answerability is made of is not larger where a list holds evidence, so no threshold on it can "
            "tell; train the selector on lists without evidence too (data.none_rate)."
        )
    before, after = (_quality(values, y, group, seed) for values in (was, unseen))
    return AnswerabilityFit(found, float(model.intercept_[0]), before, after, questions)


def _quality(probabilities, labels, group, seed):
    errors = np.bincount(group, (probabilities - labels) ** 2) / np.bincount(group)  # one a question
    return {
        "ece": expected_calibration_error(probabilities, labels),
        "brier": bootstrap_interval(errors, seed=seed),
    }


__all__ = ["FEWEST", "AnswerabilityFit", "fit_answerability"]
