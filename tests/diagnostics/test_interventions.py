"""Zeroed mass: the drops are differences of metrics of the model's own forward passes."""

import numpy as np
import pytest
import torch

from warrant_hf.diagnostics import answer_report, intervention_report
from warrant_hf.evaluation.metrics import evidence_metrics


def test_drops_are_those_of_the_forward_pass(decided, rows):
    model, decisions = decided
    report = intervention_report(decisions, resamples=50)
    predictions = {"learned": [], "evidence": [], "other": []}
    for row in rows:
        batch = model.processor(row.question, [candidate.to_passage() for candidate in row.candidates])
        labels = torch.tensor([row.labels])
        for name, chosen in (("learned", labels < 0), ("evidence", labels == 1), ("other", labels == 0)):
            override = torch.where(chosen, 0.0, float("nan"))
            with torch.no_grad():
                output = model(**batch, permission_override=override)
            entry = {"id": row.id, "labels": row.labels, "scores": output.logits[0], "kinds": row.kinds}
            entry |= {"probabilities": output.logits[0].sigmoid(), "mass": float(output.mass)}
            predictions[name].append(entry | {"answerability": float(output.answerability_logits.sigmoid())})
    metrics = {name: evidence_metrics(entries, bootstrap=0) for name, entries in predictions.items()}
    for name in ("evidence", "other"):
        for metric in ("support_mrr", "evidence_f1", "auprc", "brier", "abstention_auroc"):
            expected = metrics["learned"][metric]["value"] - metrics[name][metric]["value"]
            assert report[name][metric]["value"] == pytest.approx(expected, abs=1e-6), (name, metric)
    zeroed = sum(report[name]["mass"]["value"] for name in report)
    assert zeroed == pytest.approx(np.mean([entry["mass"] for entry in predictions["learned"]]), abs=1e-5)


def test_what_is_set_is_no_effect(decided):
    report = intervention_report(decided[1], resamples=20)
    assert not [name for name in report["evidence"] if name.startswith(("permission", "attention", "effective"))]
    # Without the evidence it ranks last wherever there is anything else; without the rest it ranks first.
    assert report["evidence"]["support_mrr"]["value"] > 0 >= report["other"]["support_mrr"]["value"]
    assert report["evidence"]["gold_log_probability"]["value"] > 1
    assert report["other"]["gold_log_probability"]["value"] == pytest.approx(0, abs=1e-5)
    assert set(report["other"]["listwise"]) == {"value", "low", "high", "p"}


def test_answers_of_fusion_in_decoder(fid_selector, rows):
    model = fid_selector(answer_weight=1.0)
    heard = []
    report = answer_report(model, rows, resamples=20, advance=heard.append)
    assert report["questions"] == sum(heard) == 3 and report["skipped"] == ["r0", "r2", "r4", "r6"]
    assert report["log_likelihood"] < 0
    assert all(abs(entry["value"]) > 1e-4 for entry in report["drop"].values())
    model.config.answer_weight = 3.0  # of the loss, and not of the likelihood
    again = answer_report(model, rows, resamples=20)
    assert again["log_likelihood"] == pytest.approx(report["log_likelihood"], abs=1e-4)
    assert again["drop"]["evidence"]["value"] == pytest.approx(report["drop"]["evidence"]["value"], abs=1e-4)


def test_answers_do_not_change_where_nothing_is_closed(fid_selector, rows):
    model = fid_selector(answer_weight=1.0)
    row = rows[1]
    golds = [candidate.model_copy(update={"label": 1}) for candidate in row.candidates]
    report = answer_report(model, [row.with_candidates(golds)], resamples=5)
    assert report["drop"]["other"]["value"] == 0 != report["drop"]["evidence"]["value"]


def test_answers_are_for_readers_that_say_them(reader, rows, fid_selector):
    for model in (reader("encoder"), reader("fid")):
        with pytest.raises(ValueError, match="needs a FiD selector trained with answer_weight"):
            answer_report(model, rows)
    assert answer_report(fid_selector(answer_weight=1.0), rows[:1]) == {"questions": 0, "skipped": ["r0"]}
