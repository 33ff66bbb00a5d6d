"""Intervals, paired differences, and calibration helpers."""

import numpy as np
import pytest

from warrant_hf.evaluation import (
    bootstrap_interval,
    expected_calibration_error,
    paired_difference,
    reliability_bins,
)
from warrant_hf.evaluation.bootstrap import interval, resample_counts, two_sided_p


def test_counts_are_resamples():
    counts = resample_counts(50, 200, seed=1)
    assert counts.shape == (200, 50) and (counts.sum(axis=1) == 50).all() and (counts >= 0).all()
    assert (counts == resample_counts(50, 200, seed=1)).all()
    assert (counts != resample_counts(50, 200, seed=2)).any()
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.05)


def test_interval_of_a_mean_matches_theory():
    sample = np.random.default_rng(0).normal(3, 2, size=400)
    got = bootstrap_interval(sample, resamples=4000)
    half = 1.96 * sample.std() / 20
    assert got["value"] == pytest.approx(sample.mean())
    assert (got["low"], got["high"]) == pytest.approx((sample.mean() - half, sample.mean() + half), abs=0.02)
    assert bootstrap_interval([2.0, 2.0]) == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_undefined_replicates_are_left_out():
    assert interval(1.0, np.array([np.nan, 2.0, 2.0])) == {"value": 1.0, "low": 2.0, "high": 2.0}
    with pytest.raises(ValueError, match="confidence is 95"):
        interval(1.0, np.array([1.0]), confidence=95)


def test_pairing_sees_what_unpaired_intervals_cannot():
    rng = np.random.default_rng(0)
    hardness = rng.random(300)
    a, b = hardness + 0.02 + rng.normal(0, 0.05, 300), hardness + rng.normal(0, 0.05, 300)
    got = paired_difference(a, b)
    assert got["value"] == pytest.approx((a - b).mean()) and got["low"] > 0 and got["p"] < 0.01
    assert bootstrap_interval(a)["low"] < bootstrap_interval(b)["high"]  # unpaired, the intervals overlap
    reverse = paired_difference(b, a)
    assert (reverse["low"], reverse["high"]) == pytest.approx((-got["high"], -got["low"]))


def test_p_values():
    assert two_sided_p(np.ones(999)) == pytest.approx(2 / 1000)  # never 0
    assert two_sided_p(np.array([-1.0, 1.0])) == 1
    assert two_sided_p(np.array([-1.0] * 10 + [1.0] * 989)) == pytest.approx(2 * 11 / 1000)
    null = np.random.default_rng(3)
    p = [paired_difference(*null.normal(size=(2, 60)), resamples=200, seed=i)["p"] for i in range(200)]
    assert 0.02 <= np.mean(np.array(p) < 0.1) <= 0.2  # close to its nominal rate when nothing differs


@pytest.mark.parametrize("wrong", [[], [1.0, float("nan")], [[1.0]]])
def test_wrong_values_are_named(wrong):
    with pytest.raises(ValueError, match="values must be a non-empty list"):
        bootstrap_interval(wrong)
    with pytest.raises(ValueError, match="metric_a has 1 values and metric_b 2"):
        paired_difference([1.0], [1.0, 2.0])


def test_reliability_by_hand():
    probabilities, labels = [0.05, 0.05, 0.95, 1.0, 0.5], [0, 1, 1, 1, 0]
    table = reliability_bins(probabilities, labels, bins=10)
    assert [row["count"] for row in table] == [2, 1, 2]
    assert [row["frequency"] for row in table] == [0.5, 0, 1]
    assert [row["probability"] for row in table] == pytest.approx([0.05, 0.5, 0.975])
    expected = (2 * 0.45 + 0.5 + 2 * 0.025) / 5
    assert expected_calibration_error(probabilities, labels, bins=10) == pytest.approx(expected)
    with pytest.raises(ValueError, match="not logits"):
        expected_calibration_error([2.0], [1])
    with pytest.raises(ValueError, match="equal length"):
        expected_calibration_error([0.5], [1, 0])
