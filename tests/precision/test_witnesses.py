"""Sigma^-1 1 and duplicates."""

import numpy as np
import pytest

from warrant_hf.precision import discount_duplicates, optimal_weights


def test_the_two_sources_of_the_paper():
    covariance = np.diag([0.04, 1.0])
    weights = optimal_weights(covariance)
    assert weights @ covariance @ weights == pytest.approx(1 / 26)
    assert np.full(2, 0.5) @ covariance @ np.full(2, 0.5) == pytest.approx(0.26)
    assert weights == pytest.approx([25 / 26, 1 / 26])


def test_no_weights_do_better():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(20, 5, 5))
    covariance = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(5)
    best = optimal_weights(covariance)
    variance = np.einsum("ni,nij,nj->n", best, covariance, best)
    for _ in range(50):
        step = rng.normal(size=(20, 5))
        other = best + step - step.mean(1, keepdims=True)
        assert (np.einsum("ni,nij,nj->n", other, covariance, other) >= variance - 1e-9).all()


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9, 1.0])
def test_discounted_duplicates_have_the_optimal_weights(correlation):
    variance, cluster = np.array([0.2, 0.2, 0.2, 0.7, 1.5]), np.array([7, 7, 7, 1, 2])
    covariance = np.diag(variance)
    for i in range(3):
        for j in range(3):
            covariance[i, j] = 0.2 if i == j else 0.2 * correlation
    discounted = np.exp(discount_duplicates(-np.log(variance), cluster, correlation))
    assert discounted / discounted.sum() == pytest.approx(optimal_weights(covariance), abs=1e-6)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"shape \[2, 3\]"):
        optimal_weights(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="no variance"):
        optimal_weights(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="correlation is 2"):
        discount_duplicates(np.zeros(3), np.zeros(3), 2)
    with pytest.raises(ValueError, match="cluster has shape"):
        discount_duplicates(np.zeros(3), np.zeros(2), 0.5)
