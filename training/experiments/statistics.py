"""Whether a difference between two contestants is one: over questions, over seeds, over both, and how large.

Seeds are few, so every statement has two sources of error, the questions and the training run. `crossed_bootstrap`
resamples both; `paired_over_seeds` treats a seed as one observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

#: Smallest size of a difference of a rate, and what it is called. Below the first it makes no difference in practice.
TIERS = ((0.02, "large"), (0.01, "moderate"), (0.005, "small"), (0.0, "negligible"))


def tier(difference: float) -> str:
    """What a difference of two rates (MRR, AUC, …) means in practice."""
    return next(name for least, name in TIERS if abs(difference) >= least)


def paired_over_seeds(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """a − b with one number per seed in both: mean, Student's 95 % interval, and three two-sided p.

    Returns:
        `{"value", "low", "high", "up", "of", "t_p", "wilcoxon_p", "sign_p"}`; `up` of `of` seeds rose, seeds without
        a difference left out of the sign test. With five seeds, p of Wilcoxon and of the sign test is at least .0625.

    Raises:
        ValueError: fewer than two seeds, or sequences of different lengths.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape or a.size < 2:
        raise ValueError(f"a has {a.size} values and b {b.size}; give one per seed, at least two, in both.")
    d = a - b
    moved = d[d != 0]
    up = int((d > 0).sum())
    result = {"value": float(d.mean()), "up": up, "of": d.size}
    if not moved.size:
        return result | {"low": 0.0, "high": 0.0, "t_p": 1.0, "wilcoxon_p": 1.0, "sign_p": 1.0}
    if np.ptp(d) == 0:  # Student's t is undefined
        low = high = t_p = float("nan")
    else:
        t = stats.ttest_1samp(d, 0.0)
        low, high = t.confidence_interval(0.95)
        t_p = t.pvalue
    return result | {
        "low": float(low),
        "high": float(high),
        "t_p": float(t_p),
        "wilcoxon_p": float(stats.wilcoxon(d).pvalue),
        "sign_p": float(stats.binomtest(up, moved.size, 0.5).pvalue),
    }


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p of several endpoints; those without a p keep none and are not counted."""
    known = {name: value for name, value in p.items() if not np.isnan(value)}
    if not known:
        return dict(p)
    adjusted = multipletests(list(known.values()), method="holm")[1]
    return dict(p) | dict(zip(known, map(float, adjusted)))


def crossed_bootstrap(
    differences: np.ndarray, *, resamples: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> dict[str, float]:
    """Mean of an array of paired differences with one axis per crossed factor, such as [data set, seed, question].

    Each resample draws the levels of every factor with replacement, independently of the other factors, and takes the
    mean over the drawn cells (Owen 2007, the pigeonhole bootstrap). A factor of one level is held fixed. NaN cells,
    questions on which the number does not exist, are left out.

    Returns:
        `{"value", "low", "high", "p"}`, percentile interval and two-sided p.
    """
    differences = np.asarray(differences, dtype=float)
    if not differences.size or np.isnan(differences).all():
        raise ValueError("differences is empty; give at least one number.")
    rng = np.random.default_rng(seed)
    known, values = ~np.isnan(differences), np.nan_to_num(differences)
    replicates = np.empty(resamples)
    for at in range(resamples):
        total, count = values, known.astype(float)
        for axis, levels in enumerate(differences.shape):
            drawn = np.bincount(rng.integers(levels, size=levels), minlength=levels).astype(float)
            drawn = drawn if levels > 1 else np.ones(1)
            shape = [1] * differences.ndim
            shape[axis] = levels
            total, count = total * drawn.reshape(shape), count * drawn.reshape(shape)
        replicates[at] = total.sum() / count.sum() if count.sum() else np.nan
    replicates = replicates[~np.isnan(replicates)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    smaller = min((replicates <= 0).sum(), (replicates >= 0).sum())
    return {
        "value": float(differences[known].mean()),
        "low": float(low),
        "high": float(high),
        "p": float(min(1.0, 2 * (smaller + 1) / (replicates.size + 1))),
    }
