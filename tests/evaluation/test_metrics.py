"""Metrics against hand computations and scikit-learn."""

import json
import math
import time

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from warrant_hf.evaluation import (
    Prediction,
    abstention_auroc,
    compare_runs,
    count_predictions,
    evidence_metrics,
    supporting_fact_scores,
)


def values(predictions, **options):
    return {name: entry["value"] for name, entry in evidence_metrics(predictions, bootstrap=0, **options).items()}


def random_predictions(questions=60, candidates=12, seed=0, signal=1.0, decimals=1):
    rng = np.random.default_rng(seed)
    predictions = []
    for number in range(questions):
        size = int(rng.integers(2, candidates + 1))
        labels = np.zeros(size, dtype=int)
        labels[rng.choice(size, int(rng.integers(1, min(4, size))), replace=False)] = 1
        scores = np.round(rng.normal(size=size) + signal * labels, decimals)  # rounding makes ties
        predictions.append(
            {
                "id": f"q{number}",
                "scores": scores,
                "labels": labels,
                "kinds": ["gold" if y else rng.choice(["hard", "random"]) for y in labels],
                "probabilities": 1 / (1 + np.exp(-scores)),
                "permission": np.round(rng.random(size) * 0.5 + 0.3 * labels, 1),
                "attention": rng.dirichlet(np.ones(size)),
                "effective": rng.random(size),
                "mass": float(rng.random()),
                "answerability": float(rng.random()),
            }
        )
    return predictions


HAND = [
    # ranking 2, 0, 1, 3: golds at ranks 2 and 4
    {"id": "a", "scores": [0.5, 0.4, 0.9, -1.0], "labels": [1, 0, 0, 1], "kinds": ["gold", "random", "hard", "gold"]},
    # all equal: input order decides, the gold is third
    {"id": "b", "scores": [0.0, 0.0, 0.0], "labels": [0, 0, 1], "kinds": ["hard", "random", "gold"]},
    # six golds of six
    {"id": "c", "scores": [6, 5, 4, 3, 2, 1], "labels": [1] * 6, "kinds": ["gold"] * 6},
]


def test_ranking_by_hand():
    got = values(HAND)
    assert got["support_mrr"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)
    assert (got["hit_at_1"], got["hit_at_3"], got["hit_at_5"]) == pytest.approx((1 / 3, 1, 1))
    assert got["recall_at_2"] == pytest.approx((1 / 2 + 0 + 2 / 6) / 3)
    assert got["recall_at_5"] == pytest.approx((1 + 1 + 5 / 6) / 3)
    assert got["evidence_f1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert got["unsupported_at_gold_count"] == pytest.approx(1 - got["evidence_f1"])
    assert got["map"] == pytest.approx(((1 / 2 + 2 / 4) / 2 + 1 / 3 + 1) / 3)
    assert got["gold_hard_auc"] == pytest.approx((0 + 0.5) / 2)  # question c has no hard distractor
    assert "permission_auc" not in got and "ece" not in got and "abstention_auroc" not in got


def test_pooled_and_per_question_areas_agree_with_scikit_learn():
    predictions = random_predictions()
    got = values(predictions)
    y = np.concatenate([p["labels"] for p in predictions])
    s = np.concatenate([p["scores"] for p in predictions])
    g = np.concatenate([p["permission"] for p in predictions])
    assert got["auprc"] == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert got["permission_auc"] == pytest.approx(roc_auc_score(y, g), abs=1e-12)
    within = [
        roc_auc_score(p["labels"], p["permission"]) for p in predictions if 0 < sum(p["labels"]) < len(p["labels"])
    ]
    assert got["permission_auc_within"] == pytest.approx(np.mean(within), abs=1e-12)
    pairs = []
    for p in predictions:
        chosen = np.array([kind in ("gold", "hard") for kind in p["kinds"]])
        if 0 < p["labels"][chosen].sum() < chosen.sum():
            pairs.append(roc_auc_score(p["labels"][chosen], p["scores"][chosen]))
    assert got["gold_hard_auc"] == pytest.approx(np.mean(pairs), abs=1e-12)
    kinds = np.array([kind for p in predictions for kind in p["kinds"]])
    for name in ("permission", "attention", "effective"):
        pooled = np.concatenate([p[name] for p in predictions])
        for kind in ("gold", "hard", "random"):
            assert got[f"{name}_{kind}"] == pytest.approx(pooled[kinds == kind].mean())


def test_map_agrees_with_scikit_learn_without_ties():
    predictions = random_predictions(decimals=12)
    expected = np.mean([average_precision_score(p["labels"], p["scores"]) for p in predictions])
    assert values(predictions)["map"] == pytest.approx(expected, abs=1e-12)


def test_calibration_metrics():
    predictions = random_predictions()
    got = values(predictions)
    y = np.concatenate([p["labels"] for p in predictions])
    probability = np.concatenate([p["probabilities"] for p in predictions])
    assert got["brier"] == pytest.approx(np.mean((probability - y) ** 2))
    assert got["nll"] == pytest.approx(log_loss(y, probability))
    ece = 0.0
    for low in np.arange(15):
        chosen = np.minimum(np.floor(probability * 15), 14) == low
        if chosen.any():
            ece += chosen.mean() * abs(probability[chosen].mean() - y[chosen].mean())
    assert got["ece"] == pytest.approx(ece)
    certain = [{"id": "x", "scores": [1, 0], "labels": [0, 1], "probabilities": [1.0, 0.0]}]
    assert values(certain)["ece"] == 1 and math.isfinite(values(certain)["nll"])


def official_scores(predicted, gold):
    """The published definition, written out: sets, averages over the gold file."""
    totals = {"em": 0.0, "f1": 0.0, "precision": 0.0, "recall": 0.0}
    for key, facts in gold.items():
        truth, guess = {tuple(f) for f in facts}, {tuple(f) for f in predicted[key]}
        hits = len(truth & guess)
        precision = hits / len(guess) if guess else 0.0
        recall = hits / len(truth) if truth else 0.0
        totals["em"] += truth == guess
        totals["precision"] += precision
        totals["recall"] += recall
        totals["f1"] += 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {f"supporting_fact_{name}": total / len(gold) for name, total in totals.items()}


def test_supporting_facts_follow_the_official_definition():
    gold = {"1": [["A", 0]], "2": [["A", 0], ["B", 1]], "6": [["T", i] for i in range(6)], "0": []}
    predicted = {"1": [["A", 0], ["A", 0]], "2": [["A", 0], ["C", 1]], "6": [["T", 1], ["T", 2]], "0": []}
    as_keys = [{key: [tuple(f) for f in facts] for key, facts in side.items()} for side in (predicted, gold)]
    got = supporting_fact_scores(*as_keys)
    assert {name: got[name] for name in official_scores(predicted, gold)} == pytest.approx(
        official_scores(predicted, gold)
    )
    assert got["supporting_fact_em"] == 0.5  # both sides empty is exact …
    assert got["supporting_fact_f1"] == pytest.approx((1 + 0.5 + 0.5 + 0) / 4)  # … and yet has F1 0
    # micro: 1 + 1 + 2 hits of 1 + 2 + 2 predicted and 1 + 2 + 6 golds
    assert got["supporting_fact_precision_micro"] == pytest.approx(4 / 5)
    assert got["supporting_fact_recall_micro"] == pytest.approx(4 / 9)
    assert got["supporting_fact_f1_micro"] == pytest.approx(8 / 14)
    with pytest.raises(ValueError, match="1 questions have no prediction .'6'"):
        supporting_fact_scores({key: facts for key, facts in as_keys[0].items() if key != "6"}, as_keys[1])


def test_thresholded_probabilities_give_the_same_scores():
    predictions = random_predictions() + [{**random_predictions(1, seed=3)[0], "id": "none"}]
    predictions[-1]["labels"] = np.zeros_like(predictions[-1]["labels"])
    predicted = {p["id"]: [(i,) for i, x in enumerate(p["probabilities"]) if x >= 0.5] for p in predictions}
    gold = {p["id"]: [(i,) for i, y in enumerate(p["labels"]) if y] for p in predictions}
    got = values(predictions)
    for name, value in official_scores(predicted, gold).items():
        assert got[name] == pytest.approx(value)


def test_questions_without_gold_are_left_out_of_rankings_but_counted():
    predictions = random_predictions()
    empty = [
        {**p, "id": p["id"] + "-", "labels": np.zeros_like(p["labels"]), "mass": p["mass"] - 0.3}
        for p in random_predictions(20, seed=8)
    ]
    with_empty, without = values(predictions + empty), values(predictions)
    for name in ("support_mrr", "auprc", "permission_auc", "gold_hard_auc", "attention_hard"):
        assert with_empty[name] == pytest.approx(without[name])
    assert with_empty["brier"] != pytest.approx(without["brier"])
    mass = [p["mass"] for p in predictions + empty]
    assert with_empty["abstention_auroc"] == pytest.approx(roc_auc_score([1] * 60 + [0] * 20, mass))
    assert count_predictions(predictions + empty) == {
        "n": 80,
        "candidates": sum(len(p["labels"]) for p in predictions + empty),
        "golds": sum(int(p["labels"].sum()) for p in predictions),
        "without_evidence": [p["id"] for p in empty],
    }
    only_empty = values(empty)
    assert "support_mrr" not in only_empty and "brier" in only_empty


def test_abstention_scores_and_pairing():
    predictions = random_predictions()
    absent = [
        {**p, "labels": 0 * p["labels"], "mass": p["mass"] - 0.05, "scores": p["scores"] - 0.1} for p in predictions
    ]
    got = evidence_metrics(predictions, absent=absent, bootstrap=300)
    y = [1] * 60 + [0] * 60
    for name, score in (
        ("abstention_auroc", lambda p: p["mass"]),
        ("abstention_auroc_max_score", lambda p: max(p["scores"])),
        ("abstention_auroc_answerability", lambda p: p["answerability"]),
    ):
        assert got[name]["value"] == pytest.approx(roc_auc_score(y, [score(p) for p in predictions + absent]))
    # A question and its emptied version are drawn together, which makes the interval narrow.
    paired = got["abstention_auroc"]
    renamed = evidence_metrics(predictions, absent=[{**p, "id": p["id"] + "-"} for p in absent], bootstrap=300)
    assert paired["high"] - paired["low"] < 0.7 * (
        renamed["abstention_auroc"]["high"] - renamed["abstention_auroc"]["low"]
    )
    masses = [[p["mass"] for p in side] for side in (predictions, absent)]
    assert abstention_auroc(*masses, bootstrap=300) == pytest.approx(paired)
    assert abstention_auroc([1, 2], [0, 1, 1.5], bootstrap=0)["value"] == pytest.approx(4.5 / 6)
    with pytest.raises(ValueError, match="has a gold label"):
        evidence_metrics(predictions, absent=predictions)


def test_intervals_match_a_plain_bootstrap():
    """Weights per question give what copying the questions would give, also for pooled metrics."""
    predictions = random_predictions(40)
    got = evidence_metrics(predictions, bootstrap=400, seed=3)
    rng = np.random.default_rng(3)
    copies = {"auprc": [], "permission_auc": [], "support_mrr": [], "ece": [], "permission_hard": []}
    for _ in range(400):
        drawn = [{**predictions[i], "id": str(n)} for n, i in enumerate(rng.integers(40, size=40))]
        resampled = values(drawn)
        for name in copies:
            copies[name].append(resampled[name])
    for name, replicates in copies.items():
        assert (got[name]["low"], got[name]["high"]) == pytest.approx(np.quantile(replicates, [0.025, 0.975])), name


def test_intervals_narrow_with_confidence_and_are_reproducible():
    predictions = random_predictions()
    wide, narrow = (evidence_metrics(predictions, confidence=c)["auprc"] for c in (0.95, 0.5))
    assert wide["low"] < narrow["low"] < narrow["value"] < narrow["high"] < wide["high"]
    assert evidence_metrics(predictions) == evidence_metrics(predictions)
    assert evidence_metrics(predictions) != evidence_metrics(predictions, seed=1)
    assert all(math.isnan(entry["low"]) for entry in evidence_metrics(predictions, bootstrap=0).values())


def test_tensors_float32_and_bfloat16_come_out_as_floats():
    predictions = random_predictions(10)
    for p in predictions:
        p["scores"] = torch.tensor(p["scores"], dtype=torch.bfloat16)
        p["permission"] = p["permission"].astype(np.float32)
        p["labels"], p["mass"] = p["labels"].tolist(), np.float32(p["mass"])
    got = evidence_metrics(predictions, bootstrap=20)
    json.dumps(got)
    assert all(type(number) is float for entry in got.values() for number in entry.values())


def test_equal_bfloat16_scores_rank_by_input_order():
    scores = torch.tensor([1.0, 1.001, 1.002], dtype=torch.bfloat16)  # all 1.0
    assert values([{"id": "x", "scores": scores, "labels": [0, 0, 1]}])["support_mrr"] == pytest.approx(1 / 3)
    assert values([{"id": "x", "scores": scores, "labels": [1, 0, 0]}])["support_mrr"] == 1


def test_dataclass_and_mapping_are_the_same():
    predictions = random_predictions(5)
    assert values([Prediction(**p) for p in predictions]) == values([{**p, "question": "?"} for p in predictions])


GOOD = {"id": "q", "scores": [1.0, 2.0], "labels": [0, 1]}


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([], "no predictions"),
        ([{"id": "q", "labels": [1]}], "prediction 0 lacks `scores`"),
        ([{**GOOD, "labels": [0, 2]}], "'q': `labels`"),
        ([{**GOOD, "labels": []}], "'q': `labels`"),
        ([{**GOOD, "scores": [1.0]}], "'q': `scores` has 1 values for 2 labels"),
        ([{**GOOD, "kinds": ["gold"]}], "'q': `kinds` has 1 values for 2 labels"),
        ([{**GOOD, "scores": [1.0, float("nan")]}], "'q': `scores` holds a number that is not finite"),
        ([{**GOOD, "mass": float("inf")}], "'q': `mass` is inf"),
        ([{**GOOD, "probabilities": [0.5, 1.5]}], "'q': `probabilities` must lie between 0 and 1"),
        ([{**GOOD, "mass": 1.0}, {**GOOD, "id": "r"}], "1 of 2 predictions lack `mass` .first: 'r'"),
    ],
)
def test_wrong_predictions_are_named(predictions, message):
    with pytest.raises(ValueError, match=message):
        evidence_metrics(predictions)


def test_a_question_without_prediction_is_an_error():
    with pytest.raises(ValueError, match="1 questions have no prediction .'missing'"):
        evidence_metrics([GOOD], expected_ids=["q", "missing"])
    assert values([GOOD], expected_ids=["q"])["support_mrr"] == 1


def test_compare_runs_is_paired():
    good = [random_predictions(signal=2.0, seed=seed) for seed in (0, 0)]
    for p, q in zip(*good, strict=True):
        assert (p["labels"] == q["labels"]).all()
    weak = [[{**p, "scores": p["scores"] - 0.5 * p["labels"]} for p in run] for run in good]
    got = compare_runs(good, weak, bootstrap=500)["support_mrr"]
    single = values(good[0])["support_mrr"] - values(weak[0])["support_mrr"]
    assert got["value"] == pytest.approx(single) and 0 < got["low"] < got["high"] and got["p"] < 0.05
    same = compare_runs(good, good, bootstrap=100)["auprc"]
    assert (same["value"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)
    mixed = compare_runs([good[0], weak[0]], weak[:1], bootstrap=10)["support_mrr"]
    assert mixed["value"] == pytest.approx(single / 2)
    with pytest.raises(ValueError, match="different questions"):
        compare_runs(good, [weak[0][::-1]])
    with pytest.raises(ValueError, match="no runs"):
        compare_runs(good, [])


def test_a_thousand_resamples_of_a_real_sized_set_take_seconds():
    rng = np.random.default_rng(0)
    predictions = []
    for number in range(1000):
        labels = np.zeros(41, dtype=int)
        labels[rng.choice(41, 2, replace=False)] = 1
        scores = rng.normal(size=41) + labels
        probability = 1 / (1 + np.exp(-scores))
        predictions.append(
            {
                "id": str(number),
                "scores": scores,
                "labels": labels,
                "permission": probability,
                "probabilities": probability,
            }
        )
    start = time.process_time()
    evidence_metrics(predictions, bootstrap=1000)
    assert time.process_time() - start < 10  # about 0.6 s on one thread; copying and sorting would take minutes
