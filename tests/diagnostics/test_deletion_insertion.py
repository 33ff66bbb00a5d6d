"""Curves of closing and opening: their ends, their sums, and random as the baseline."""

import numpy as np
import pytest
import torch

from warrant_hf.diagnostics import UTILITIES, deletion_insertion_report
from warrant_hf.diagnostics.deletion_insertion import area, curves


@pytest.mark.parametrize("utility", UTILITIES)
def test_ends_are_all_open_and_all_closed(decided, rows, utility):
    model, decisions = decided
    row, case = rows[3], decisions.learned[3]
    deletion, insertion = curves(case, np.argsort(-case.attention), utility)
    batch = model.processor(row.question, [candidate.to_passage() for candidate in row.candidates])
    values = []
    for override in (None, torch.zeros(1, len(row.candidates))):
        with torch.no_grad():
            output = model(**batch, permission_override=override)
        scores = output.logits[0].double().numpy(), output.answerability_logits[0].numpy()
        values.append(float(UTILITIES[utility].of(case.labels, *scores)))
    assert deletion.shape == insertion.shape == (len(row.candidates) + 1,)
    assert [deletion[0], insertion[0]] == pytest.approx(values, rel=1e-4)
    assert [insertion[-1], deletion[-1]] == pytest.approx(values, rel=1e-4)


def test_one_step_closes_the_first_of_the_order(random_cases):
    (case,) = random_cases(1)
    order = np.argsort(-case.permission)
    deletion, insertion = curves(case, order, "answerability")
    keep = np.arange(6) != order[0]
    assert deletion[1] == UTILITIES["answerability"].of(
        case.labels, None, case.rule.answerability(case.with_open(keep))
    )
    assert insertion[1] == UTILITIES["answerability"].of(
        case.labels, None, case.rule.answerability(case.with_open(~keep))
    )


def test_of_a_sum_over_candidates_both_curves_mirror(random_cases):
    for case in random_cases(10):
        deletion, insertion = curves(case, np.random.default_rng(1).permutation(6), "negative_loss")
        np.testing.assert_allclose(deletion + insertion, deletion[0] + insertion[0], atol=1e-9)


def test_area_by_trapezoids():
    assert area(np.array([1.0, 0.0])) == 0.5
    assert area(np.array([0.0, 1.0, 1.0])) == pytest.approx(0.75)


def test_an_order_that_knows_the_evidence_beats_random(random_cases):
    blind = deletion_insertion_report(random_cases(200, seed=1), "gold_log_probability")
    knows = deletion_insertion_report(random_cases(200, seed=1, trusted=1.0), "gold_log_probability")
    for name in ("attention", "effective", "score"):
        assert knows["orders"][name]["deletion"]["against_random"]["high"] < -1
        assert knows["orders"][name]["insertion"]["against_random"]["low"] > 1
        assert abs(blind["orders"][name]["deletion"]["against_random"]["value"]) < 1
    assert "against_random" not in knows["orders"]["random"]["deletion"]
    curve = knows["orders"]["attention"]["deletion"]["curve"]
    assert len(curve) == len(knows["grid"]) == 11 and curve[0] > curve[-1]


def test_random_orders_are_those_of_the_seed(random_cases):
    cases = random_cases(10)
    first, same, other = (deletion_insertion_report(cases, seed=seed, resamples=5)["orders"] for seed in (4, 4, 5))
    assert first["random"] == same["random"] != other["random"]
    alone = deletion_insertion_report(cases[3:4], seed=4, resamples=5)["orders"]["random"]["deletion"]["area"]["value"]
    curves_of = [
        deletion_insertion_report([case], seed=4, resamples=5)["orders"]["random"]["deletion"]["area"]["value"]
        for case in cases
    ]
    assert curves_of[3] == alone and np.mean(curves_of) == pytest.approx(first["random"]["deletion"]["area"]["value"])


@pytest.mark.parametrize("order", [[0, 1], [0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])
def test_order_that_is_none(random_cases, order):
    with pytest.raises(ValueError, match="give each of the 6 candidates once"):
        curves(random_cases(1)[0], order)
