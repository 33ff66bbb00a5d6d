"""Percentile bootstrap over questions.

The unit that is resampled is a question, never a candidate: candidates of one question depend on each other. A
resample is a vector of counts, one per question, so every statistic is computed from weights without copying data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def resample_counts(questions: int, resamples: int, seed: int = 0) -> np.ndarray:
    """[resamples, questions] float counts; each row draws `questions` questions with replacement."""
    rng = np.random.default_rng(seed)
    counts = np.empty((resamples, questions))
    for row in counts:  # one at a time: [resamples, questions] int64 draws would be as large again
        row[:] = np.bincount(rng.integers(questions, size=questions), minlength=questions)
    return counts


def interval(value: float, replicates: np.ndarray, confidence: float = 0.95) -> dict[str, float]:
    """`{"value", "low", "high"}` from bootstrap replicates; replicates that are undefined (NaN) are left out."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; use a number between 0 and 1, such as 0.95.")
    defined = replicates[~np.isnan(replicates)]
    if not defined.size:  # no resample asked for, or none on which the statistic exists
        return {"value": float(value), "low": float("nan"), "high": float("nan")}
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return {"value": float(value), "low": float(low), "high": float(high)}


def bootstrap_interval(
    values: Sequence[float], *, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> dict[str, float]:
    """Mean of one number per question, with its interval."""
    array = _finite(values, "values")
    counts = resample_counts(len(array), resamples, seed)
    return interval(array.mean(), counts @ array / len(array), confidence)


def paired_difference(
    metric_a: Sequence[float],
    metric_b: Sequence[float],
    *,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float]:
    """Mean of a − b over questions answered by both: `{"value", "low", "high", "p"}`.

    The two sequences hold one number per question, in the same order; a question is resampled for both at once. `p` is
    two-sided.
    """
    a, b = _finite(metric_a, "metric_a"), _finite(metric_b, "metric_b")
    if len(a) != len(b):
        raise ValueError(f"metric_a has {len(a)} values and metric_b {len(b)}; give one value per question in both.")
    difference = a - b
    counts = resample_counts(len(difference), resamples, seed)
    replicates = counts @ difference / len(difference)
    return {**interval(difference.mean(), replicates, confidence), "p": two_sided_p(replicates)}


def two_sided_p(differences: np.ndarray) -> float:
    """Twice the smaller share of replicates on either side of zero, counting the sample itself once (never 0)."""
    defined = differences[~np.isnan(differences)]
    if not defined.size:
        return float("nan")
    smaller = min(np.count_nonzero(defined <= 0), np.count_nonzero(defined >= 0))
    return float(min(1.0, 2 * (smaller + 1) / (defined.size + 1)))


def _finite(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a non-empty list of finite numbers, one per question.")
    return array
