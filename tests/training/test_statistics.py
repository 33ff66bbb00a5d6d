"""Statistics of paired comparisons against their definitions, and against libraries that we do not call there."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("statsmodels")

from training.experiments.statistics import crossed_bootstrap, holm, paired_over_seeds, tier  # noqa: E402

A, B = [0.81, 0.83, 0.805, 0.86, 0.825], [0.80, 0.80, 0.81, 0.82, 0.79]


def test_paired_over_seeds():
    found = paired_over_seeds(A, B)
    t = stats.ttest_rel(A, B)
    assert found["value"] == pytest.approx(np.mean(A) - np.mean(B))
    assert found["t_p"] == pytest.approx(t.pvalue)
    assert (found["low"], found["high"]) == pytest.approx(tuple(t.confidence_interval()))
    assert (found["up"], found["of"]) == (4, 5)
    assert found["sign_p"] == pytest.approx(2 * (5 + 1) / 2**5)  # 4 or 5 of 5 up, two-sided
    assert found["wilcoxon_p"] == pytest.approx(0.125)  # exact: one rank of 1 is negative


def test_seeds_that_all_agree():
    assert paired_over_seeds(A, A)["t_p"] == paired_over_seeds(A, A)["sign_p"] == 1.0
    same = paired_over_seeds([0.5, 0.6, 0.75], [0.25, 0.35, 0.5])
    assert same["value"] == pytest.approx(0.25) and same["sign_p"] == 0.25


def test_too_few_seeds():
    with pytest.raises(ValueError, match="a has 1 values and b 1"):
        paired_over_seeds([0.1], [0.2])


def test_holm_by_hand():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "none": float("nan")})
    assert found["a"] == pytest.approx(0.03) and found["c"] == pytest.approx(0.06)
    assert found["b"] == pytest.approx(0.06)  # never below the one before it
    assert np.isnan(found["none"])


def test_crossed_bootstrap_of_one_factor_is_the_plain_one():
    d = np.random.default_rng(0).normal(0.1, 1, 400)
    found = crossed_bootstrap(d[None], resamples=4000)
    error = d.std() / 20
    assert found["value"] == pytest.approx(d.mean())
    assert found["low"] == pytest.approx(d.mean() - 1.96 * error, abs=0.15 * error)
    assert found["high"] == pytest.approx(d.mean() + 1.96 * error, abs=0.15 * error)


def test_crossed_bootstrap_is_wider_than_questions_alone_when_seeds_differ():
    rng = np.random.default_rng(1)
    d = rng.normal(0, 0.1, (5, 1)) + rng.normal(0, 0.2, (1, 300)) + rng.normal(0, 0.1, (5, 300))
    both, questions = crossed_bootstrap(d, resamples=2000), crossed_bootstrap(d.mean(0)[None], resamples=2000)
    assert both["high"] - both["low"] > 2 * (questions["high"] - questions["low"])


def test_crossed_bootstrap_covers():
    """95 % intervals hold the true mean 0 about as often as they say, with ten levels of each factor."""
    hits = 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        d = rng.normal(0, 1, (10, 1)) + rng.normal(0, 1, (1, 40)) + rng.normal(0, 1, (10, 40))
        found = crossed_bootstrap(d, resamples=300, seed=trial)
        hits += found["low"] <= 0 <= found["high"]
    assert 48 <= hits <= 60


def test_crossed_bootstrap_leaves_out_what_is_unknown():
    d = np.array([[0.2, np.nan], [0.4, np.nan]])
    assert crossed_bootstrap(d, resamples=50)["value"] == pytest.approx(0.3)
    with pytest.raises(ValueError, match="empty"):
        crossed_bootstrap(np.full((2, 2), np.nan))


def test_tiers():
    assert [tier(d) for d in (0.001, -0.007, 0.015, -0.3)] == ["negligible", "small", "moderate", "large"]
