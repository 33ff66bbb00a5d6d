"""Probes: what can be read from the frozen states that a predictor gets (MAA, "what softmax throws away").

A probe is fitted on some rows of states that no probe gradient ever reached, and is scored on other rows: R2 for a
number, ROC AUC for a yes or no. Ridge measures what is linearly accessible (the paper's primary measure), ExtraTrees
what is there at all. Four conditions tell a better state from a newly exposed feature:

    Z_B    (Z_B, c_B)    Z_MAA    (Z_MAA, c_MAA)
    shared recovery = Z_MAA - Z_B                      beyond post-hoc = (Z_MAA, c_MAA) - (Z_B, c_B)

Z is the state that the predictor gets, c a coordinate that the attention has computed anyway. Intervals come from a
bootstrap over the held-out rows, or over groups of rows that belong together.

Needs scikit-learn: pip install scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..evaluation.areas import weighted_auc
from ..evaluation.bootstrap import bootstrap_interval, interval, resample_counts, two_sided_p

PROBES = ("ridge", "extra_trees")
CONDITIONS = ("Z_B", "Z_B,c_B", "Z_MAA", "Z_MAA,c_MAA")
_PENALTIES = np.logspace(-2, 6, 9)
_FOLDS = 5


@dataclass(frozen=True)
class Recovery:
    """What a probe reads on held-out rows.

    Attributes:
        metric: "r2" or "auc".
        value, low, high: the metric and its 95 % interval.
        prediction: `[held-out rows]`, what the probe says of each.
        replicates: `[resamples]`, the metric on bootstrap samples; those of two recoveries on the same rows with the
            same seed are paired.
    """

    metric: str
    value: float
    low: float
    high: float
    prediction: np.ndarray
    replicates: np.ndarray


@dataclass(frozen=True)
class ProbeReport:
    """Four conditions and their two differences.

    Attributes:
        conditions: a [`Recovery`] for each of `CONDITIONS`.
        shared: `{"value", "low", "high", "p"}` of Z_MAA - Z_B.
        beyond_posthoc: the same of (Z_MAA, c_MAA) - (Z_B, c_B).
    """

    conditions: dict[str, Recovery]
    shared: dict[str, float]
    beyond_posthoc: dict[str, float]


def probe_recovery(
    states,
    target,
    held_out,
    *,
    coordinate=None,
    probe: str = "ridge",
    groups=None,
    resamples: int = 1000,
    seed: int = 0,
) -> Recovery:
    """Fits a probe where `held_out` is false and scores it where it is true (MAA, "frozen probes").

    Args:
        states: `[N, D]`, array or tensor, of a frozen model.
        target: `[N]`; a bool array, or numbers that are all 0 or 1, is scored by AUC, others by R2.
        held_out: `[N]` bool. For a chronological split, the later rows. Split before you choose anything.
        coordinate: `[N]` or `[N, E]`, appended to the states.
        probe: "ridge" (features standardised, penalty by cross-validation within the fitted rows, which leaves out a
            row or a group at a time) or "extra_trees".
        groups: `[N]`, rows of one group are resampled together and must lie on one side of the split.
        resamples, seed: of the bootstrap; the seed is also that of the trees.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, a split without rows on both sides or that
            cuts through a group, a target that does not vary, an unknown probe.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    features, target, held_out = _checked(states, target, held_out, coordinate)
    groups = np.arange(len(target)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if groups.shape != target.shape:
        raise ValueError(f"groups has shape {list(groups.shape)}, but there are {len(target)} rows; give one each.")
    if np.intersect1d(groups[held_out], groups[~held_out]).size:
        raise ValueError("held_out cuts through a group; put all rows of a group on one side of the split.")
    is_binary = bool(np.isin(target, (0, 1)).all())
    fitted = _estimator(probe, is_binary, seed, groups[~held_out]).fit(features[~held_out], target[~held_out])
    if hasattr(fitted, "predict_proba"):
        prediction = fitted.predict_proba(features[held_out])[:, 1]
    else:
        prediction = fitted.predict(features[held_out])
    return score_recovery(
        prediction, target[held_out], groups=groups[held_out], is_binary=is_binary, resamples=resamples, seed=seed
    )


def score_recovery(
    prediction, target, *, groups=None, is_binary: bool | None = None, resamples: int = 1000, seed: int = 0
) -> Recovery:
    """R2 or AUC of predictions `[N]` that were made on held-out rows, with a bootstrap interval.

    Raises:
        ValueError: lengths that differ, or a target that does not vary.
    """
    prediction, target = np.asarray(prediction, dtype=float), np.asarray(target, dtype=float)
    if prediction.shape != target.shape or target.ndim != 1:
        raise ValueError(
            f"prediction has shape {list(prediction.shape)} and target {list(target.shape)}; give one number a row."
        )
    if not target.size or np.ptp(target) == 0:
        raise ValueError("target does not vary over the held-out rows, so nothing can be recovered; hold out others.")
    is_binary = bool(np.isin(target, (0, 1)).all()) if is_binary is None else is_binary
    unit = np.arange(len(target)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    counts = np.vstack([np.ones(unit.max() + 1), resample_counts(int(unit.max()) + 1, resamples, seed)])
    if is_binary:
        values = weighted_auc(prediction, target == 1, unit, counts)
    else:
        values = _weighted_r2(prediction, target, counts[:, unit])
    spread = interval(values[0], values[1:])
    return Recovery("auc" if is_binary else "r2", **spread, prediction=prediction, replicates=values[1:])


def four_conditions(
    baseline,
    mass_aware,
    target,
    held_out,
    *,
    baseline_coordinate,
    mass_aware_coordinate,
    probe: str = "ridge",
    groups=None,
    resamples: int = 1000,
    seed: int = 0,
) -> ProbeReport:
    """The paper's comparison of a softmax model (B) with its mass-aware twin, row by row on the same inputs.

    Args:
        baseline, mass_aware: states Z `[N, D]` of the two, of equal width.
        baseline_coordinate, mass_aware_coordinate: c `[N]` or `[N, E]`, the same kind of number on both sides, such
            as [`support_coordinate`].
        target, held_out, probe, groups, resamples, seed: see [`probe_recovery`].

    Raises:
        ValueError: states or coordinates of different shapes, and what [`probe_recovery`] refuses.
    """
    for name, a, b in (
        ("states", baseline, mass_aware),
        ("coordinates", baseline_coordinate, mass_aware_coordinate),
    ):
        if np.shape(a) != np.shape(b):
            raise ValueError(
                f"The two {name} have shapes {list(np.shape(a))} and {list(np.shape(b))}; a comparison needs equal "
                "ones."
            )
    pairs = (
        (baseline, None),
        (baseline, baseline_coordinate),
        (mass_aware, None),
        (mass_aware, mass_aware_coordinate),
    )
    settings = {"probe": probe, "groups": groups, "resamples": resamples, "seed": seed}
    found = {
        name: probe_recovery(states, target, held_out, coordinate=coordinate, **settings)
        for name, (states, coordinate) in zip(CONDITIONS, pairs, strict=True)
    }
    return ProbeReport(
        found,
        recovery_difference(found["Z_MAA"], found["Z_B"]),
        recovery_difference(found["Z_MAA,c_MAA"], found["Z_B,c_B"]),
    )


def recovery_difference(a: Recovery, b: Recovery) -> dict[str, float]:
    """`{"value", "low", "high", "p"}` of a - b, both on the same held-out rows and with the same bootstrap seed.

    Raises:
        ValueError: they are of different metrics, rows or numbers of resamples.
    """
    if a.metric != b.metric or a.replicates.shape != b.replicates.shape or a.prediction.shape != b.prediction.shape:
        raise ValueError("The two recoveries are not paired; score both on the same rows with the same resamples.")
    replicates = a.replicates - b.replicates
    return {**interval(a.value - b.value, replicates), "p": two_sided_p(replicates)}


def context_margin(original, substituted, *, resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Mean of a model's prediction with its own context minus that with another one, `[N]` each, with its interval.

    A larger margin means that the output depends more on the context. It does not say that it does so rightly.

    Raises:
        ValueError: lengths that differ, or values that are not finite.
    """
    original, substituted = np.asarray(original, dtype=float), np.asarray(substituted, dtype=float)
    if original.shape != substituted.shape:
        raise ValueError(
            f"original has shape {list(original.shape)} and substituted {list(substituted.shape)}; give the same rows."
        )
    return bootstrap_interval(original - substituted, resamples=resamples, seed=seed)


def support_coordinate(weights: Tensor, power: float) -> np.ndarray:
    """c of the four conditions, `[B, H]`: the Renyi entropy H_p of each head's attention, the mean over its queries.

    exp(H_p) is the effective support, and exp((1 - 1/p) H_p) the amplitude g_p of equation (4); at p = 1, where the
    amplitude is 1, it is Shannon's entropy, so that softmax gets a coordinate of the same kind.

    Args:
        weights: `[B, H, Q, K]`, the L_p weights w (`need_weights=True, average_attn_weights=False`), or alpha.
        power: p of the model.
    """
    weights = weights.detach().to(torch.float64)
    attention = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    if power == 1:
        entropy = -torch.xlogy(attention, attention).sum(-1)
    else:
        entropy = attention.pow(power).sum(-1).clamp(min=torch.finfo(weights.dtype).tiny).log() / (1 - power)
    return entropy.mean(-1).numpy()


def _estimator(probe, is_binary, seed, groups):
    if probe not in PROBES:
        raise ValueError(f"probe is {probe!r}; choose one of {', '.join(PROBES)}.")
    try:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
        from sklearn.linear_model import RidgeCV
        from sklearn.model_selection import GroupKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("probes need scikit-learn; install it with pip install scikit-learn.") from error
    if probe == "ridge":
        folds, distinct = None, len(np.unique(groups))
        # A row left out alone would be told by its twin in the group, often one with the opposite label.
        if 1 < distinct < len(groups):
            folds = list(GroupKFold(min(_FOLDS, distinct)).split(groups, groups=groups))
        return make_pipeline(StandardScaler(), RidgeCV(alphas=_PENALTIES, cv=folds))
    trees = ExtraTreesClassifier if is_binary else ExtraTreesRegressor
    return trees(n_estimators=200, min_samples_leaf=2, max_features="sqrt" if is_binary else 1.0, random_state=seed)


def _checked(states, target, held_out, coordinate):
    features, target, held_out = _array(states), np.asarray(target).astype(float), np.asarray(held_out)
    if features.ndim != 2 or not features.shape[1]:
        raise ValueError(f"states has shape {list(features.shape)}; give [rows, width].")
    rows = len(features)
    if coordinate is not None:
        coordinate = _array(coordinate)
        coordinate = coordinate[:, None] if coordinate.ndim == 1 else coordinate
        if coordinate.ndim != 2 or len(coordinate) != rows:
            raise ValueError(
                f"coordinate has shape {list(coordinate.shape)}, but there are {rows} rows; give one row each."
            )
        features = np.hstack([features, coordinate])
    for name, array in (("target", target), ("held_out", held_out)):
        if array.shape != (rows,):
            raise ValueError(f"{name} has shape {list(array.shape)}, but there are {rows} rows; give one each.")
    if held_out.dtype != bool:
        raise ValueError(f"held_out has dtype {held_out.dtype}; give bools, True for rows that only score the probe.")
    if held_out.all() or not held_out.any():
        raise ValueError("held_out leaves no row on one side of the split; hold out some rows, and not all.")
    for name, array in (("states or coordinate", features), ("target", target)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite; leave those rows out.")
    if np.ptp(target[~held_out]) == 0:
        raise ValueError("target does not vary over the rows that fit the probe; give others.")
    return features, target, held_out


def _array(values):
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64)
    return np.asarray(values, dtype=float)


def _weighted_r2(prediction, target, weights):
    """`[R]`: R2 under each row of `weights`, `[R, N]`; NaN where the target does not vary."""
    total, centre = weights.sum(1), target.mean()
    prediction, target = prediction - centre, target - centre  # fewer digits are lost below
    mean = weights @ target / total
    error, variation = weights @ (target - prediction) ** 2, weights @ target**2 - total * mean**2
    return np.where(variation > 1e-12, 1 - error / np.where(variation > 1e-12, variation, 1), np.nan)


__all__ = [
    "CONDITIONS",
    "PROBES",
    "ProbeReport",
    "Recovery",
    "context_margin",
    "four_conditions",
    "probe_recovery",
    "recovery_difference",
    "score_recovery",
    "support_coordinate",
]
