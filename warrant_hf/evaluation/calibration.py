"""Calibration of candidate probabilities: expected calibration error, reliability bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BINS = 15


def bin_index(probabilities: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Equal-width bins [0, 1/bins), …, [1 − 1/bins, 1]; 1.0 belongs to the last."""
    return np.minimum((probabilities * bins).astype(np.int64), bins - 1)


def reliability_bins(
    probabilities: Sequence[float], labels: Sequence[int], *, bins: int = BINS
) -> list[dict[str, float]]:
    """For each non-empty bin: `low`, `high`, `count`, mean `probability`, and `frequency` of evidence."""
    p, y = _checked(probabilities, labels)
    index = bin_index(p, bins)
    count = np.bincount(index, minlength=bins)
    mean_p = np.bincount(index, p, bins) / np.maximum(count, 1)
    mean_y = np.bincount(index, y, bins) / np.maximum(count, 1)
    return [
        {
            "low": b / bins,
            "high": (b + 1) / bins,
            "count": int(count[b]),
            "probability": float(mean_p[b]),
            "frequency": float(mean_y[b]),
        }
        for b in range(bins)
        if count[b]
    ]


def expected_calibration_error(probabilities: Sequence[float], labels: Sequence[int], *, bins: int = BINS) -> float:
    """Σ_b n_b/n · |mean probability − frequency of evidence| over equal-width bins of the candidate probability."""
    table = reliability_bins(probabilities, labels, bins=bins)
    return sum(row["count"] * abs(row["probability"] - row["frequency"]) for row in table) / len(labels)


def _checked(probabilities: Sequence[float], labels: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if p.shape != y.shape or p.ndim != 1 or not p.size:
        raise ValueError("probabilities and labels must be lists of equal length, not empty.")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("probabilities must lie between 0 and 1; pass probabilities, not logits.")
    return p, y
