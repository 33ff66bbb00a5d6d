"""Witnesses that are not independent (PFA, "the strongest boundary: witnesses are rarely independent")."""

from __future__ import annotations

import numpy as np

_RIDGE = 1e-9


def optimal_weights(covariance: np.ndarray) -> np.ndarray:
    """Weights `[..., K]`, proportional to Sigma^-1 1, of the unbiased linear estimate with the smallest variance.

    With a diagonal covariance they are the normalised precisions; with a correlated one some may be negative. Exact
    duplicates share one source's weight equally: what is inverted is Sigma plus 1e-9 of its mean variance.

    Args:
        covariance: `[..., K, K]`, of the sources' errors, symmetric and positive semi-definite.

    Raises:
        ValueError: it is not square or not finite, or no weights that sum to 1 come out.
    """
    covariance = np.asarray(covariance, dtype=np.float64)
    if covariance.ndim < 2 or covariance.shape[-1] != covariance.shape[-2] or not np.isfinite(covariance).all():
        raise ValueError(f"covariance has shape {list(covariance.shape)}; give finite square matrices [..., K, K].")
    sources = covariance.shape[-1]
    ridge = _RIDGE * np.trace(covariance, axis1=-2, axis2=-1)[..., None, None] / sources
    if not (ridge > 0).all():
        raise ValueError("covariance has no variance on its diagonal; give sources whose errors vary.")
    raw = np.linalg.solve(covariance + ridge * np.eye(sources), np.ones((sources, 1)))[..., 0]
    total = raw.sum(-1, keepdims=True)
    if not (total > 0).all():
        raise ValueError("covariance gives no positive total precision; give one that is positive semi-definite.")
    return raw / total


def discount_duplicates(log_precision: np.ndarray, cluster: np.ndarray, correlation: float) -> np.ndarray:
    """Log-precisions `[..., K]` less the log of 1 + (m - 1) rho, for each of m sources that witness one event.

    With equal variances and correlation rho inside a cluster, a softmax of the result has the weights of
    `optimal_weights`: m copies of one report (rho = 1) count as one.

    Args:
        cluster: int `[K]`, the event that each source is a witness of; sources with one number are one cluster.
        correlation: of the errors within a cluster, 0 to 1.

    Raises:
        ValueError: shapes do not fit, or the correlation is out of range.
    """
    log_precision, cluster = np.asarray(log_precision, dtype=np.float64), np.asarray(cluster)
    if cluster.shape != log_precision.shape[-1:]:
        raise ValueError(
            f"cluster has shape {list(cluster.shape)}; give one number a source: {log_precision.shape[-1]}."
        )
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation is {correlation}; use a number from 0 to 1.")
    size = (cluster[:, None] == cluster).sum(-1)
    return log_precision - np.log1p((size - 1) * correlation)


__all__ = ["discount_duplicates", "optimal_weights"]
