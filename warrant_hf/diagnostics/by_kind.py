"""Permission, attention and effective mass of gold candidates and of each kind of distractor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..evaluation.areas import segment_auc
from ..evaluation.bootstrap import bootstrap_interval, interval, resample_counts
from .decisions import DecisionCase

QUANTITIES = ("permission", "attention", "effective")


def kind_report(cases: Sequence[DecisionCase], *, resamples: int = 1000, seed: int = 0) -> dict:
    """Means by kind, and how well each quantity tells two kinds apart.

    Kinds are "gold" (whatever the row calls it), those that the distractors have, and "distractor" for one without.

    Returns:
        `means`: `{kind: {quantity: {"value", "low", "high"}, "candidates": n}}`, pooled over candidates; `auc`:
        `{"gold > hard": {quantity: {"value", "low", "high", "questions"}}}`, the share of pairs within a question in
        which the first kind has more, ties counting half. Intervals are over questions.

    Raises:
        ValueError: no cases.
    """
    if not cases:
        raise ValueError("cases is empty; give at least one question.")
    question = np.repeat(np.arange(len(cases)), [len(case.labels) for case in cases])
    kind = np.array([name for case in cases for name in _kinds(case)])
    values = {name: np.concatenate([getattr(case, name) for case in cases]) for name in QUANTITIES}
    order = ["gold", "hard", "random"]
    present = sorted(set(kind), key=lambda name: (order.index(name) if name in order else len(order), name))
    weights = np.concatenate([np.ones((1, len(cases))), resample_counts(len(cases), resamples, seed)])

    means: dict[str, dict] = {}
    for name in present:
        chosen = kind == name
        counts = weights @ np.bincount(question, chosen, len(cases))
        means[name] = {"candidates": int(chosen.sum())}
        for quantity, array in values.items():
            sums = weights @ np.bincount(question, array * chosen, len(cases))
            drawn = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
            means[name][quantity] = interval(drawn[0], drawn[1:])
    auc: dict[str, dict] = {}
    for first, second in combinations(present, 2):
        chosen = (kind == first) | (kind == second)
        for quantity, array in values.items():
            pairs = segment_auc(array[chosen], kind[chosen] == first, question[chosen], len(cases))
            pairs = pairs[~np.isnan(pairs)]
            if pairs.size:
                entry = bootstrap_interval(pairs, resamples=resamples, seed=seed) | {"questions": len(pairs)}
                auc.setdefault(f"{first} > {second}", {})[quantity] = entry
    return {"means": means, "auc": auc}


def _kinds(case: DecisionCase) -> list[str]:
    # A label decides what is gold; a distractor that the row calls so is no gold.
    others = ["distractor" if kind in (None, "gold") else kind for kind in case.kinds]
    return ["gold" if label == 1 else kind for label, kind in zip(case.labels, others, strict=True)]


__all__ = ["QUANTITIES", "kind_report"]
