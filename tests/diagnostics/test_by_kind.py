"""Means by kind against plain sums, pairs against scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from warrant_hf.diagnostics import kind_report


def test_means_and_pairs(decided, rows):
    cases = decided[1].learned
    report = kind_report(cases, resamples=50)
    assert list(report["means"]) == ["gold", "hard", "random"]
    for kind in report["means"]:
        chosen = [(case, at) for row, case in zip(rows, cases) for at, name in enumerate(row.kinds) if name == kind]
        assert report["means"][kind]["candidates"] == len(chosen)
        for quantity in ("permission", "attention", "effective"):
            entry = report["means"][kind][quantity]
            assert entry["value"] == pytest.approx(np.mean([getattr(case, quantity)[at] for case, at in chosen]))
            assert entry["low"] <= entry["value"] <= entry["high"]
    within = []
    for row, case in zip(rows, cases):
        both = [at for at, name in enumerate(row.kinds) if name in ("gold", "hard")]
        labels = [row.kinds[at] == "gold" for at in both]
        if len(set(labels)) == 2:
            within.append(roc_auc_score(labels, case.permission[both]))
    entry = report["auc"]["gold > hard"]["permission"]
    assert entry["value"] == pytest.approx(np.mean(within)) and entry["questions"] == len(within)


def test_labels_decide_what_is_gold(random_cases):
    cases = [replace(case, kinds=["gold", None, "hard", "hard", "other", None]) for case in random_cases(5)]
    report = kind_report(cases, resamples=5)
    assert report["means"]["gold"]["candidates"] == 10
    assert list(report["means"])[:2] == ["gold", "hard"] and set(report["means"]) <= {
        "gold",
        "hard",
        "other",
        "distractor",
    }
    with pytest.raises(ValueError, match="cases is empty"):
        kind_report([])


def test_equal_gates_tell_nothing_apart(random_cases):
    cases = [replace(case, permission=np.ones(6)) for case in random_cases(20)]
    assert kind_report(cases)["auc"]["gold > hard"]["permission"]["value"] == 0.5
