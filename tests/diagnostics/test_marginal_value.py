"""Shapley values by their definition, their sums, and what chance gives."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from warrant_hf.diagnostics import UTILITIES, marginal_value_report, marginal_values, read_decisions
from warrant_hf.diagnostics.utilities import utility_of


def by_definition(model, row, items, utility):
    """phi as the mean over all orders of what a gate adds when it opens, by forward passes of the model."""
    batch = model.processor(row.question, [candidate.to_passage() for candidate in row.candidates])
    labels = np.array(row.labels)

    def value(opened):
        override = torch.full((1, len(labels)), float("nan"))
        override[0, [item for item in items if item not in opened]] = 0.0
        with torch.no_grad():
            output = model(**batch, permission_override=override)
        return UTILITIES[utility].of(labels, output.logits[0].double().numpy(), output.answerability_logits[0].numpy())

    orders = list(permutations(items))
    phi = dict.fromkeys(items, 0.0)
    for order in orders:
        for at, item in enumerate(order):
            phi[item] += (value(order[: at + 1]) - value(order[:at])) / len(orders)
    return [phi[item] for item in items]


@pytest.mark.parametrize("utility", UTILITIES)
def test_values_are_those_of_the_definition(decided, rows, utility):
    model, decisions = decided
    at = 3  # five candidates, of which three are valued
    found = marginal_values(decisions.learned[at], utility, top_k=3)
    assert len(found.items) == 3 < len(rows[at].candidates)
    expected = by_definition(model, rows[at], found.items.tolist(), utility)
    np.testing.assert_allclose(found.shapley, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("utility", UTILITIES)
def test_values_sum_to_the_difference(decided, random_cases, utility):
    _, decisions = decided
    cases = [case for case in decisions.learned if case.labels.any() or not UTILITIES[utility].needs_gold]
    for case in [*cases, *random_cases(20)]:
        for top_k in (1, 4, 12):
            found = marginal_values(case, utility, top_k)
            assert found.shapley.sum() == pytest.approx(found.full - found.empty, abs=1e-5)
            every = np.ones(len(case.labels), dtype=bool)
            assert found.full == pytest.approx(utility_of(case, utility, every), abs=1e-9)
            assert found.empty <= found.best >= found.full
            rest = ~np.isin(np.arange(len(every)), found.items)
            open_best = rest | np.isin(np.arange(len(every)), found.best_items)
            assert utility_of(case, utility, open_best) == pytest.approx(found.best, abs=1e-9)


def test_items_are_the_most_attended(random_cases):
    (case,) = random_cases(1)
    found = marginal_values(case, top_k=4)
    assert sorted(case.attention)[::-1][:4] == found.attention.tolist()
    assert found.permission.tolist() == case.permission[found.items].tolist()


def test_interactions_and_leave_one_out(random_cases):
    (case,) = random_cases(1)
    single = marginal_values(case, "negative_loss", 6)
    np.testing.assert_allclose(single.interactions, 0, atol=1e-12)
    np.testing.assert_allclose(single.leave_one_out, single.shapley, atol=1e-12)
    pair = marginal_values(case, "answerability", 2)
    keep = np.ones((4, 6), dtype=bool)
    keep[:, pair.items] = [(0, 0), (1, 0), (0, 1), (1, 1)]
    neither, one, two, both = utility_of(case, "answerability", keep)
    assert pair.interactions[0, 1] == pair.interactions[1, 0] == pytest.approx(both - one - two + neither)
    assert pair.leave_one_out.tolist() == pytest.approx([both - two, both - one])
    assert abs(pair.interactions[0, 1]) > 1e-2
    # Values of two: what each gives alone, and half of what they only give together.
    assert pair.shapley[0] == pytest.approx(one - neither + pair.interactions[0, 1] / 2)


def test_twelve_items_of_a_long_list(random_cases):
    (case,) = random_cases(1)
    parts = {name: np.tile(getattr(case, name), 40) / 40 for name in ("attention", "effective", "logits")}
    long = replace(case, labels=np.tile(case.labels, 40), permission=np.tile(case.permission, 40), **parts)
    found = marginal_values(long, "answerability", 12)
    assert found.shapley.sum() == pytest.approx(found.full - found.empty, abs=1e-9)


def test_labels_that_know_nothing_give_chance(random_cases):
    report = marginal_value_report(random_cases(400, seed=3), top_k=5)
    top, by_chance = report["metrics"]["harmful_top_share"], report["chance"]["harmful_top_share"]["permutation"]
    assert by_chance["low"] <= top["value"] <= by_chance["high"]
    assert by_chance["value"] == pytest.approx(4 / 6, abs=0.05)  # of the candidates, so many are distractors
    assert report["metrics"]["harmful_item_share"]["value"] == pytest.approx(by_chance["value"])
    flipped = report["chance"]["harmful_item_share"]["sign_flip"]
    assert flipped["value"] == 0.5 and flipped["high"] < report["metrics"]["harmful_item_share"]["low"]
    assert report["efficiency_gap"] < 1e-5


def test_a_selector_that_reads_the_evidence_is_better_than_chance(random_cases):
    report = marginal_value_report(random_cases(100, trusted=1.0), top_k=5)
    top, by_chance = report["metrics"]["harmful_top_share"], report["chance"]["harmful_top_share"]["permutation"]
    assert top["high"] == 0 < by_chance["low"]
    for name in ("spearman_attention", "spearman_permission"):
        assert report["metrics"][name]["low"] > report["chance"][name]["permutation"]["high"]


def test_chance_of_a_rank_correlation_has_the_stated_spread(random_cases):
    """Of means over as many shuffled rankings, about one in twenty is outside."""
    chance = marginal_value_report(random_cases(20), "negative_loss", top_k=6)["chance"]["spearman_permission"]
    rng, rank = np.random.default_rng(0), np.arange(6) - 2.5
    shuffled = rng.permuted(np.tile(rank, (2000, 20, 1)), axis=-1)
    means = (shuffled @ rank / (rank @ rank)).mean(1)
    outside = ((means < chance["permutation"]["low"]) | (means > chance["permutation"]["high"])).mean()
    assert outside == pytest.approx(0.05, abs=0.02)


def test_questions_without_evidence_and_constant_gates(reader, rows):
    decisions = read_decisions(reader("encoder", variant="open"), rows)
    report = marginal_value_report(decisions.learned, "gold_log_probability", top_k=4)
    assert report["skipped"] == ["r6"] and report["questions"] == 6
    assert "spearman_permission" not in report["metrics"] and "spearman_permission" not in report["chance"]
    assert marginal_value_report(decisions.learned, "answerability")["skipped"] == []
    with pytest.raises(ValueError, match="question 'r6' has no evidence, which utility 'listwise' needs"):
        marginal_values(decisions.learned[6], "listwise")
    with pytest.raises(ValueError, match="no question has evidence"):
        marginal_value_report(decisions.learned[6:], "listwise")


@pytest.mark.parametrize("top_k", [0, 13, True, 2.0])
def test_top_k_out_of_range(random_cases, top_k):
    with pytest.raises(ValueError, match="top_k is .*; give a whole number from 1 to 12"):
        marginal_values(random_cases(1)[0], top_k=top_k)


def test_unknown_utility(random_cases):
    with pytest.raises(ValueError, match="utility is 'gain'; choose one of 'gold_log_probability'"):
        marginal_values(random_cases(1)[0], "gain")
