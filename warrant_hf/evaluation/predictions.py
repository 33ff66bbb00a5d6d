"""Predictions as the metrics take them, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

_PER_CANDIDATE = ("permission", "attention", "effective", "probabilities")
_PER_QUESTION = ("mass", "answerability")


@dataclass
class Prediction:
    """What a model said about one question; lists have one entry per candidate, in input order.

    `scores` rank the candidates (logits, larger is better); `labels` are 0/1; `kinds` are "gold", "hard", "random" or
    None.
    """

    id: str
    scores: Sequence[float]
    labels: Sequence[int]
    kinds: Sequence[str | None] | None = None
    permission: Sequence[float] | None = None
    attention: Sequence[float] | None = None
    effective: Sequence[float] | None = None
    probabilities: Sequence[float] | None = None
    mass: float | None = None
    answerability: float | None = None


def count_predictions(predictions: Iterable[Prediction | Mapping[str, Any]]) -> dict[str, Any]:
    """How many questions, candidates and golds were scored, and the ids of questions without any gold."""
    checked = as_predictions(predictions)
    return {
        "n": len(checked),
        "candidates": sum(len(prediction.labels) for prediction in checked),
        "golds": int(sum(sum(prediction.labels) for prediction in checked)),
        "without_evidence": [prediction.id for prediction in checked if not any(prediction.labels)],
    }


def as_predictions(
    predictions: Iterable[Prediction | Mapping[str, Any]], expected_ids: Iterable[str] | None = None
) -> list[Prediction]:
    """Copies with float64 arrays for lists. Unknown keys of mappings are ignored.

    Raises:
        ValueError: nothing to score, lengths that differ, non-finite numbers, a number that only some predictions
            have, or an expected id without prediction.
    """
    names = {field.name for field in fields(Prediction)}
    checked = []
    for number, item in enumerate(predictions):
        if isinstance(item, Mapping):
            lacking = [name for name in ("id", "scores", "labels") if item.get(name) is None]
            if lacking:
                raise ValueError(f"prediction {number} lacks `{lacking[0]}`; give id, scores and labels.")
            item = Prediction(**{name: value for name, value in item.items() if name in names})
        values = {"id": item.id, "mass": _number(item, "mass"), "answerability": _number(item, "answerability")}
        values["labels"] = np.asarray(_plain(item.labels), dtype=np.float64)
        if not values["labels"].size or not np.isin(values["labels"], (0, 1)).all():
            raise ValueError(f"prediction {item.id!r}: `labels` must be a non-empty list of 0 and 1.")
        for name in ("scores", *_PER_CANDIDATE):
            values[name] = _per_candidate(item, name, len(values["labels"]))
        p = values["probabilities"]
        if p is not None and not ((p >= 0) & (p <= 1)).all():
            raise ValueError(f"prediction {item.id!r}: `probabilities` must lie between 0 and 1.")
        if item.kinds is not None and len(item.kinds) != len(values["labels"]):
            raise ValueError(_length_sentence(item.id, "kinds", len(item.kinds), len(values["labels"])))
        checked.append(Prediction(kinds=item.kinds, **values))
    if not checked:
        raise ValueError("there are no predictions; score at least one question.")
    for name in (*_PER_CANDIDATE, *_PER_QUESTION):
        lacking = [prediction.id for prediction in checked if getattr(prediction, name) is None]
        if 0 < len(lacking) < len(checked):
            raise ValueError(
                f"{len(lacking)} of {len(checked)} predictions lack `{name}` (first: {lacking[0]!r}); give it for all."
            )
    if expected_ids is not None:
        known = {prediction.id for prediction in checked}
        absent = [identifier for identifier in expected_ids if identifier not in known]
        if absent:
            raise ValueError(missing_sentence(absent))
    return checked


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values  # NumPy has no bfloat16; tensors go through lists


def _number(item: Prediction, name: str) -> float | None:
    value = getattr(item, name)
    if value is None:
        return None
    if not np.isfinite(float(value)):
        raise ValueError(f"prediction {item.id!r}: `{name}` is {float(value)}; it must be finite.")
    return float(value)


def _per_candidate(item: Prediction, name: str, length: int) -> np.ndarray | None:
    values = getattr(item, name)
    if values is None:
        return None
    array = np.asarray(_plain(values), dtype=np.float64)
    if array.shape != (length,):
        raise ValueError(_length_sentence(item.id, name, array.size, length))
    if not np.isfinite(array).all():
        raise ValueError(f"prediction {item.id!r}: `{name}` holds a number that is not finite.")
    return array


def _length_sentence(identifier: str, name: str, length: int, expected: int) -> str:
    return f"prediction {identifier!r}: `{name}` has {length} values for {expected} labels; give one per candidate."


def missing_sentence(ids: list[str]) -> str:
    shown = ", ".join(map(repr, ids[:5])) + (", …" if len(ids) > 5 else "")
    return f"{len(ids)} questions have no prediction ({shown}); score every question."
