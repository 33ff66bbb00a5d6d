"""Where precision stops helping: correlated witnesses, stable bias, noise beyond the range of training.

Each function gives `{setting: {measure: [value of each model]}}`; a measure is a mean squared error unless its name
says otherwise. Trained models of several seeds go in; the lists are the same for all.
"""

from __future__ import annotations

import numpy as np
import torch

from warrant_hf.precision import SensorWorld, discount_duplicates, optimal_weights

LISTS = 2000
WORLD_SEED = 0
CORRELATIONS = (0.0, 0.5, 0.9, 1.0)
DUPLICATES = 3
BIASES = (0.0, 0.25, 0.5, 1.0, 2.0)
SEVERITIES = ((0.0, 1.0), (1.0, 1.5), (1.5, 2.0))


def correlated_witnesses(models):
    """Three of four relevant sensors share a part of their noise."""
    results = {}
    cluster = np.array([0] * DUPLICATES + list(range(1, 9 - DUPLICATES)))
    for correlation in CORRELATIONS:
        batch = _world(duplicates=DUPLICATES, correlation=correlation).lists(LISTS, stream=2000)
        relevant = batch.relevant[0].numpy()
        variance = batch.variance.numpy().astype(np.float64)[:, relevant]
        deviation = np.sqrt(variance)
        alike = np.full((relevant.sum(),) * 2, 0.0)
        alike[:DUPLICATES, :DUPLICATES] = correlation
        np.fill_diagonal(alike, 1.0)
        covariance = deviation[:, :, None] * deviation[:, None, :] * alike
        readings, target = batch.reading.numpy()[:, relevant], batch.target.numpy()
        diagonal = (1 / variance) / (1 / variance).sum(1, keepdims=True)
        merged = np.exp(discount_duplicates(-np.log(variance), cluster[relevant], correlation))
        best = optimal_weights(covariance)
        known = {
            "known precisions": diagonal,
            "known precisions, duplicates discounted": merged / merged.sum(1, keepdims=True),
            "Sigma^-1 1": best,
        }
        measures = {name: [_mse((weights * readings).sum(1), target)] for name, weights in known.items()}
        claimed = float((1 / (1 / variance).sum(1)).mean())
        measures["found over claimed error of known precisions (ratio)"] = [measures["known precisions"][0] / claimed]
        for model in models:
            log_precision = model.log_precision(batch)
            discounted = discount_duplicates(log_precision.numpy(), cluster, correlation)
            for name, used in (
                ("equal precisions", torch.zeros_like(log_precision)),
                ("PFA", log_precision),
                ("PFA, duplicates discounted", torch.from_numpy(discounted).float()),
            ):
                measures.setdefault(name, []).append(_mse(model.predict(batch, log_precision=used).numpy(), target))
        results[f"correlation {correlation:g}"] = measures
    return results


def stable_bias(models):
    """The most precise of the relevant sensors reads too high by a constant, which repeated readings cannot show."""
    results = {}
    for bias in BIASES:
        batch = _world(bias=bias).lists(LISTS * 4, stream=2001)
        precise = batch.variance.where(batch.relevant, torch.inf).argmin(1) == 0  # the biased sensor is the first
        batch, measures = batch.rows(precise), {}
        for model in models:
            equal = model.predict(batch, log_precision=torch.zeros_like(batch.reading))
            for name, prediction in (("equal precisions", equal), ("PFA", model.predict(batch))):
                measures.setdefault(name, []).append(_mse(prediction.numpy(), batch.target.numpy()))
        results[f"bias {bias:g}"] = measures
    return results


def out_of_range(models):
    """Severity beyond what was seen, where noise grows faster than it did in training."""
    results = {}
    for severities in SEVERITIES:
        batch, measures = _world(severities=severities).lists(LISTS, stream=2002), {}
        true = -batch.variance.log()
        for model in models:
            log_precision = model.log_precision(batch)
            found = ((batch.reading - batch.truth).square()).mean() / (-log_precision).exp().mean()
            measures.setdefault("found over predicted variance (ratio)", []).append(float(found))
            measures.setdefault("clipped (share)", []).append(float(model.clipped_share))
            for name, used in (
                ("equal precisions", torch.zeros_like(true)),
                ("PFA", log_precision),
                ("true precisions, same bound", true),
            ):
                prediction = model.predict(batch, log_precision=used)
                measures.setdefault(name, []).append(_mse(prediction.numpy(), batch.target.numpy()))
        results[f"severity {severities[0]:g} to {severities[1]:g}"] = measures
    return results


BOUNDARIES = {
    "Correlated witnesses": correlated_witnesses,
    "Stable bias": stable_bias,
    "Out of range": out_of_range,
}


def _world(**settings):
    return SensorWorld(WORLD_SEED, **settings)


def _mse(prediction, target):
    return float(np.mean((prediction - target) ** 2))
