"""Areas under curves for many bootstrap resamples at once.

A resample gives each question a weight. Scores are sorted once; for each resample only a cumulative sum of weights in
score order is taken, and everything else is looked up at the golds, which are few.
"""

from __future__ import annotations

import numpy as np


def weighted_auc(scores: np.ndarray, positive: np.ndarray, unit: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """ROC AUC over pooled items, ties counting half, for each row of `weights`.

    Args:
        scores, positive, unit: [N]; `unit` is the column of `weights` an item belongs to.
        weights: [R, units].

    Returns:
        [R]; NaN where a class has no weight.
    """
    golds, gold_unit, others, other_unit = _split(scores, positive, unit)
    low, high = np.searchsorted(others, golds, "left"), np.searchsorted(others, golds, "right")
    areas = np.full(len(weights), np.nan)
    for r, weight in enumerate(weights):
        below = _cumulative(weight[other_unit])
        gold_weight = weight[gold_unit]
        pairs = gold_weight.sum() * below[-1]
        if pairs > 0:
            areas[r] = gold_weight @ (below[low] + below[high]) / (2 * pairs)
    return areas


def weighted_average_precision(
    scores: np.ndarray, positive: np.ndarray, unit: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Average precision over pooled items for each row of `weights`; equal scores form one threshold. [R]."""
    golds, gold_unit, others, other_unit = _split(scores, positive, unit)
    below_gold = np.searchsorted(golds, golds, "left")
    below_other = np.searchsorted(others, golds, "left")
    areas = np.full(len(weights), np.nan)
    for r, weight in enumerate(weights):
        gold_weight = weight[gold_unit]
        gold_sum, other_sum = _cumulative(gold_weight), _cumulative(weight[other_unit])
        if gold_sum[-1] > 0:
            true = gold_sum[-1] - gold_sum[below_gold]
            false = other_sum[-1] - other_sum[below_other]
            total = true + false
            precision = np.divide(true, total, out=np.zeros_like(true), where=total > 0)
            areas[r] = gold_weight @ precision / gold_sum[-1]
    return areas


def segment_auc(scores: np.ndarray, positive: np.ndarray, segment: np.ndarray, segments: int) -> np.ndarray:
    """ROC AUC within each segment (question), ties counting half. [segments]; NaN where a class is absent."""
    order = np.lexsort((scores, segment))
    s, y, q = scores[order], positive[order].astype(float), segment[order]
    new_group = np.ones(len(s), dtype=bool)
    new_group[1:] = (s[1:] != s[:-1]) | (q[1:] != q[:-1])
    group = np.cumsum(new_group) - 1
    negatives = _cumulative(1 - y)
    first = np.flatnonzero(new_group)
    last = np.append(first[1:], len(s))
    # Negatives of the same question below an item: those before its tie group, minus those of earlier questions.
    question_start = np.searchsorted(q, q, "left")
    wins = 0.5 * (negatives[first[group]] + negatives[last[group]]) - negatives[question_start]
    golds = np.bincount(q, y, segments)
    others = np.bincount(q, 1 - y, segments)
    pairs = golds * others
    total = np.bincount(q, wins * y, segments)
    return np.divide(total, pairs, out=np.full(segments, np.nan), where=pairs > 0)


def _split(scores: np.ndarray, positive: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, ...]:
    """Positives and the others, each in ascending score order, with their units."""
    parts = []
    for chosen in (positive, ~positive):
        order = np.argsort(scores[chosen], kind="stable")
        parts += [scores[chosen][order], unit[chosen][order]]
    return tuple(parts)


def _cumulative(weights: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(weights)])
