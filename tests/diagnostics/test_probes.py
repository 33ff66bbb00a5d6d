"""Probes: planted signals are found and absent ones are not, and the four conditions tell a state from a feature."""

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score, roc_auc_score

from warrant_hf import evidence_attention
from warrant_hf.diagnostics.probes import (
    CONDITIONS,
    context_margin,
    four_conditions,
    probe_recovery,
    recovery_difference,
    score_recovery,
    support_coordinate,
)


def rows(n=400, width=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=(n, width)), np.arange(n) >= n // 2


def test_ridge_finds_a_planted_number_and_nothing_in_noise():
    rng, states, held_out = rows()
    target = states @ rng.normal(size=6) + 0.1 * rng.normal(size=400)
    found = probe_recovery(states, target, held_out)
    assert found.metric == "r2" and found.value > 0.95 and found.low < found.value < found.high
    nothing = probe_recovery(states, rng.normal(size=400), held_out)
    assert nothing.low < 0.05 and nothing.value < 0.1


def test_a_condition_is_scored_by_auc():
    rng, states, held_out = rows()
    target = states[:, 0] + 0.5 * rng.normal(size=400) > 0
    found = probe_recovery(torch.tensor(states), target, held_out)
    assert found.metric == "auc" and found.value > 0.9
    assert found.value == pytest.approx(roc_auc_score(target[held_out], found.prediction))


def test_trees_find_what_ridge_cannot():
    _, states, held_out = rows()
    target = np.abs(states[:, 0])
    assert probe_recovery(states, target, held_out, probe="ridge").value < 0.1
    assert probe_recovery(states, target, held_out, probe="extra_trees").value > 0.6


def test_the_probe_never_sees_a_held_out_row():
    _, states, held_out = rows()
    target = states[:, 0].copy()
    before = probe_recovery(states, target, held_out).prediction
    target[held_out] = -target[held_out]  # only the score may change
    after = probe_recovery(states, target, held_out)
    np.testing.assert_array_equal(before, after.prediction)
    assert after.value < 0


def test_values_and_replicates_are_scikit_learns():
    rng, _, _ = rows()
    prediction, target = rng.normal(size=50), rng.normal(size=50) + 1000
    found = score_recovery(prediction, target, resamples=20, seed=3)
    assert found.value == pytest.approx(r2_score(target, prediction))
    generator = np.random.default_rng(3)
    drawn = generator.integers(50, size=50)
    assert found.replicates[0] == pytest.approx(r2_score(target[drawn], prediction[drawn]))


def test_rows_of_a_group_are_resampled_together():
    rng, _, _ = rows()
    target = rng.normal(size=40)
    prediction = target + rng.normal(size=40)
    alone = score_recovery(prediction, target)
    double = score_recovery(np.tile(prediction, 2), np.tile(target, 2), groups=np.tile(np.arange(40), 2))
    np.testing.assert_allclose(alone.replicates, double.replicates)
    as_if_new = score_recovery(np.tile(prediction, 2), np.tile(target, 2))
    assert as_if_new.high - as_if_new.low < 0.85 * (double.high - double.low)


def test_the_penalty_is_not_chosen_by_a_twin():
    """The rows of a pair are equal, and their labels too: a row left out alone is told by its twin that any fit is
    good, and takes the smallest penalty. Whole pairs left out show that there is nothing to fit."""
    rng, _, _ = rows()
    states, target = np.repeat(rng.normal(size=(120, 80)), 2, axis=0), np.repeat(rng.normal(size=120), 2)
    pairs, held_out = np.repeat(np.arange(120), 2), np.arange(240) >= 120
    by_pair = probe_recovery(states, target, held_out, groups=pairs, resamples=0).value
    by_row = probe_recovery(states, target, held_out, resamples=0).value
    assert by_row < -1 < -0.2 < by_pair


def attention_states(power, counts, seed=0):
    """What one query reads from `count` copies of a random term, and the support of its attention."""
    rng = np.random.default_rng(seed)
    key = torch.tensor(rng.normal(size=(len(counts), 1, 1, 4)), dtype=torch.float32).expand(-1, -1, 9, -1)
    keep = torch.arange(9) < torch.tensor(counts)[:, None]
    query, value = torch.ones(len(counts), 1, 1, 4), torch.ones(len(counts), 1, 9, 2)
    out = evidence_attention(query, key, value, mask=keep, power=power, return_weights=True)
    return out.context[:, 0, 0].numpy(), support_coordinate(out.weights, power)


def test_four_conditions_on_counted_copies():
    """Softmax collapses the copies, so Z_B knows nothing; exposing its own support c_B knows as much as MAA does."""
    counts = np.random.default_rng(1).integers(1, 10, 300)
    baseline, its_support = attention_states(1.0, counts)
    aware, support = attention_states(1.3, counts)
    np.testing.assert_allclose(np.exp(support[:, 0]), counts, rtol=1e-5)
    np.testing.assert_allclose(np.exp(its_support[:, 0]), counts, rtol=1e-5)
    report = four_conditions(
        baseline, aware, counts, np.arange(300) >= 150, baseline_coordinate=its_support, mass_aware_coordinate=support
    )
    assert tuple(report.conditions) == CONDITIONS
    assert report.conditions["Z_B"].value < 0.05 and report.conditions["Z_MAA"].value > 0.9
    assert report.shared["low"] > 0.8 and report.shared["p"] < 0.05
    assert abs(report.beyond_posthoc["value"]) < 0.1


def test_context_margin_is_the_mean_difference():
    margin = context_margin([1.0, 2.0, 4.0], [0.0, 1.0, 1.0])
    assert margin["value"] == pytest.approx(5 / 3) and margin["low"] >= 1 and margin["high"] <= 3


def test_a_difference_needs_the_same_rows():
    target = np.arange(10.0)
    a, b = score_recovery(target, target), score_recovery(target[:9], target[:9])
    with pytest.raises(ValueError, match="not paired"):
        recovery_difference(a, b)
    assert recovery_difference(a, a)["value"] == 0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"states": np.ones(8)}, "states has shape"),
        ({"states": np.full((8, 2), np.nan)}, "not finite"),
        ({"target": np.ones(8)}, "does not vary over the rows that fit"),
        ({"target": np.arange(7)}, "target has shape"),
        ({"held_out": np.zeros(8, dtype=bool)}, "no row on one side"),
        ({"held_out": np.arange(8)}, "dtype int64"),
        ({"coordinate": np.ones(7)}, "coordinate has shape"),
        ({"groups": np.zeros(8)}, "cuts through a group"),
        ({"probe": "lasso"}, "probe is 'lasso'"),
    ],
)
def test_errors_say_what_is_wrong(change, message):
    arguments = {"states": np.eye(8)[:, :2], "target": np.arange(8) % 3, "held_out": np.arange(8) > 3}
    with pytest.raises(ValueError, match=message):
        probe_recovery(**{**arguments, **change})


def test_conditions_of_unequal_width_are_refused():
    with pytest.raises(ValueError, match="equal"):
        four_conditions(
            np.ones((8, 2)), np.ones((8, 3)), np.arange(8), np.arange(8) > 3,
            baseline_coordinate=np.ones(8), mass_aware_coordinate=np.ones(8),
        )  # fmt: skip
