"""Metrics of evidence selection, each with a bootstrap interval over questions.

Conventions, the same for every metric:

* all gold candidates count, however many there are;
* ties in a ranking are broken by input order; ties in an area (AUC, AUPRC) count half, or as one threshold;
* "mean" is over questions (macro) unless the name says `micro` or the table below says pooled;
* questions without gold have no ranking: they are left out of ranking, permission and attention metrics, kept in the
  calibration and supporting-fact metrics, and listed by `predictions.count_predictions`;
* a metric whose inputs are absent, or that is undefined on the data, is absent from the result.

| metric | definition |
|---|---|
| `support_mrr` | 1 / rank of the first gold |
| `hit_at_k` | 1 if a gold is among the first k (the reference calls it R@k) |
| `recall_at_k` | share of the golds among the first k |
| `evidence_f1` | F1 of the first G candidates, G = number of golds; equals precision and recall there |
| `unsupported_at_gold_count` | 1 − `evidence_f1`: the same number seen from the other side |
| `map` | average precision of a question's ranking |
| `auprc` | average precision over all candidates of all questions, pooled |
| `gold_hard_auc` | share of (gold, hard distractor) pairs ranked right, per question |
| `permission_auc` | AUC of the permission, gold against distractor, pooled over candidates |
| `permission_auc_within` | the same per question |
| `permission_gold`, `_hard`, `_random` | mean over candidates of a kind, pooled; also `attention_…`, `effective_…` |
| `supporting_fact_em`, `_f1`, `_precision`, `_recall` | official HotpotQA scores of {probability ≥ .5}, macro |
| `supporting_fact_f1_micro`, … | from pooled true positives, false positives and false negatives |
| `ece`, `brier`, `nll` | calibration of candidate probabilities, pooled; ECE with 15 equal-width bins |
| `abstention_auroc` | AUROC of the total mass, evidence present against removed; also `_max_score`, `_answerability` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .areas import segment_auc, weighted_auc, weighted_average_precision
from .bootstrap import interval, resample_counts, two_sided_p
from .calibration import BINS, bin_index
from .predictions import Prediction, as_predictions, missing_sentence

THRESHOLD = 0.5
_OTHER_QUESTIONS = "the runs hold different questions; compare runs on the same ids in the same order."


def evidence_metrics(
    predictions: Iterable[Prediction | Mapping[str, Any]],
    *,
    absent: Iterable[Prediction | Mapping[str, Any]] | None = None,
    expected_ids: Iterable[str] | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, dict[str, float]]:
    """All metrics of the module's table as `{name: {"value", "low", "high"}}`.

    Args:
        predictions: one `Prediction`, or mapping with its fields, per question.
        absent: predictions on the same questions with the evidence removed, for the abstention metrics. Without it,
            the questions of `predictions` that have no gold take that part.
        expected_ids: ids that must each have a prediction.
        bootstrap: number of resamples; 0 leaves the interval ends NaN.
        seed, confidence: of the bootstrap. A question and its `absent` version are resampled together.

    Raises:
        ValueError: nothing to score, lengths that differ, non-finite numbers, or a question without prediction.
    """
    replicates = _evaluate(as_predictions(predictions, expected_ids), absent, bootstrap, seed)
    return {name: interval(values[0], values[1:], confidence) for name, values in replicates.items()}


def compare_runs(
    runs_a: Sequence[Iterable[Prediction | Mapping[str, Any]]],
    runs_b: Sequence[Iterable[Prediction | Mapping[str, Any]]],
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, dict[str, float]]:
    """Paired differences a − b of every metric both have: `{name: {"value", "low", "high", "p"}}`.

    Each side is a list of runs, e.g. one per training seed, whose metrics are averaged. All runs must hold the same
    question ids in the same order; a question is resampled in all of them at once. The interval speaks about other
    questions, not about other training seeds. To compare abstention, add the predictions on emptied lists, under the
    ids of their questions, to each run.
    """
    a, b = (replicate_runs(runs, bootstrap=bootstrap, seed=seed) for runs in (runs_a, runs_b))
    return compare_replicates(a, b, confidence=confidence)


@dataclass(frozen=True)
class Replicates:
    """Metrics averaged over some runs: `values[name]` is `[1 + resamples]`, the value on the data itself first.

    Two of them are comparable if they have the same question ids, number of resamples and seed.
    """

    ids: tuple[str, ...]
    values: dict[str, np.ndarray]


def replicate_runs(
    runs: Sequence[Iterable[Prediction | Mapping[str, Any]]], *, bootstrap: int = 1000, seed: int = 0
) -> Replicates:
    """One side of `compare_runs`, for where it is compared more than once."""
    results, ids = [], None
    for run in runs:
        predictions = as_predictions(run)
        run_ids = tuple(prediction.id for prediction in predictions)
        if ids is not None and run_ids != ids:
            raise ValueError(_OTHER_QUESTIONS)
        ids = run_ids
        results.append(_evaluate(predictions, None, bootstrap, seed))
    if not results:
        raise ValueError("a side has no runs; give at least one list of predictions for each.")
    shared = [name for name in results[0] if all(name in result for result in results)]
    return Replicates(ids, {name: np.mean([result[name] for result in results], axis=0) for name in shared})


def compare_replicates(a: Replicates, b: Replicates, *, confidence: float = 0.95) -> dict[str, dict[str, float]]:
    """Paired differences a − b, as `compare_runs` gives them."""
    if a.ids != b.ids:
        raise ValueError(_OTHER_QUESTIONS)
    table = {}
    for name in (name for name in b.values if name in a.values):
        difference = a.values[name] - b.values[name]
        table[name] = {**interval(difference[0], difference[1:], confidence), "p": two_sided_p(difference[1:])}
    return table


def abstention_auroc(
    present: Sequence[float],
    absent: Sequence[float],
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float]:
    """AUROC of a score that should be larger on lists that hold evidence than on lists without: value and interval.

    `present[i]` and `absent[i]` are resampled together when both have the same length (the same questions, paired);
    otherwise all scores are resampled as one sample.
    """
    values = np.concatenate([np.asarray(present, dtype=np.float64), np.asarray(absent, dtype=np.float64)])
    if not len(present) or not len(absent) or not np.isfinite(values).all():
        raise ValueError("present and absent must be non-empty lists of finite scores.")
    units = np.arange(len(values))
    if len(present) == len(absent):
        units %= len(present)
    weights = _weights(int(units.max()) + 1, bootstrap, seed)
    positive = np.arange(len(values)) < len(present)
    replicates = weighted_auc(values, positive, units, weights)
    return interval(replicates[0], replicates[1:], confidence)


def supporting_fact_scores(
    predicted: Mapping[str, Iterable[Any]], gold: Mapping[str, Iterable[Any]]
) -> dict[str, float]:
    """Supporting-fact scores as the official HotpotQA evaluation defines them, from sets of facts per question id.

    A fact is any hashable key, such as (title, sentence index); repeated keys count once. Macro scores average over
    the questions of `gold`. Where both sets are empty EM is 1 and F1 is 0, as in the official script.

    Raises:
        ValueError: if a question has no prediction (the official script would silently count it as 0).
    """
    if not gold:
        raise ValueError("gold is empty; give at least one question.")
    absent = [identifier for identifier in gold if identifier not in predicted]
    if absent:
        raise ValueError(missing_sentence(absent))
    counts = []
    for identifier, facts in gold.items():
        truth, guess = set(facts), set(predicted[identifier])
        counts.append((len(truth & guess), len(guess - truth), len(truth - guess)))
    weights = np.ones((1, len(counts)))
    return {
        name: float(values[0]) for name, values in _fact_scores(np.array(counts, dtype=np.float64), weights).items()
    }


# --- evaluation: every value is [1 + bootstrap], the sample itself first -------------------------------------------


def _weights(questions: int, bootstrap: int, seed: int) -> np.ndarray:
    return np.concatenate([np.ones((1, questions)), resample_counts(questions, bootstrap, seed)])


def _evaluate(
    predictions: list[Prediction],
    absent: Iterable[Prediction | Mapping[str, Any]] | None,
    bootstrap: int,
    seed: int,
) -> dict[str, np.ndarray]:
    unit = {}  # the resampled unit is an id, so a question and its version without evidence stay together
    for prediction in predictions:
        unit.setdefault(prediction.id, len(unit))
    removed = [p for p in predictions if not p.labels.any()] if absent is None else as_predictions(absent)
    for prediction in removed:
        if prediction.labels.any():
            raise ValueError(
                f"absent prediction {prediction.id!r} has a gold label; remove the evidence before scoring."
            )
        unit.setdefault(prediction.id, len(unit))
    weights = _weights(len(unit), bootstrap, seed)

    def units(items: list[Prediction]) -> np.ndarray:
        return np.array([unit[item.id] for item in items])

    present = [prediction for prediction in predictions if prediction.labels.any()]
    results: dict[str, np.ndarray] = {}
    if present:
        question_units = units(present)
        results.update(_ranking(present, question_units, weights))
        results.update(_by_kind(present, question_units, weights))
    if predictions[0].probabilities is not None:
        counts = np.array([_fact_counts(prediction) for prediction in predictions])
        results.update(_fact_scores(counts, weights[:, units(predictions)]))
        results.update(_calibration(predictions, weights[:, units(predictions)]))
    if present and removed:
        both, both_units = present + removed, units(present + removed)
        is_present = np.arange(len(both)) < len(present)
        for name, score in _ABSTENTION_SCORES.items():
            values = [score(prediction) for prediction in both]
            if all(value is not None for value in values):
                results[name] = weighted_auc(np.array(values), is_present, both_units, weights)
    return {name: values for name, values in results.items() if not np.isnan(values[0])}


_ABSTENTION_SCORES = {
    "abstention_auroc": lambda prediction: prediction.mass,
    "abstention_auroc_max_score": lambda prediction: prediction.scores.max(),
    "abstention_auroc_answerability": lambda prediction: prediction.answerability,
}


def _ranking(predictions: list[Prediction], units: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    scores, gold, question = _pooled(predictions, "scores")
    sizes = np.bincount(question)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    order = np.lexsort((-scores, question))  # stable: equal scores stay in input order
    ranked = gold[order]  # questions keep their places, candidates are in rank order within each
    rank = np.arange(len(order)) - starts[question] + 1
    found = np.cumsum(ranked) - np.concatenate([[0], np.cumsum(ranked)])[starts][question]  # golds up to this rank
    golds = np.add.reduceat(gold, starts)

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts)

    first = np.minimum.reduceat(np.where(ranked > 0, rank, len(order) + 1), starts)
    at_gold_count = total(ranked * (rank <= golds[question])) / golds
    per_question = {"support_mrr": 1 / first}
    per_question |= {f"hit_at_{k}": (first <= k).astype(float) for k in (1, 3, 5)}
    per_question |= {f"recall_at_{k}": total(ranked * (rank <= k)) / golds for k in (2, 5)}
    per_question["evidence_f1"] = at_gold_count
    per_question["unsupported_at_gold_count"] = 1 - at_gold_count
    per_question["map"] = total(ranked * found / rank) / golds

    results = {name: _mean(values, weights[:, units]) for name, values in per_question.items()}
    results["auprc"] = weighted_average_precision(scores, gold > 0, units[question], weights)
    hard = _kind_mask(predictions, "hard", gold)
    if hard is not None:
        chosen = (gold > 0) | hard
        pairs = segment_auc(scores[chosen], gold[chosen] > 0, question[chosen], len(predictions))
        results["gold_hard_auc"] = _mean(pairs, weights[:, units])
    return results


def _by_kind(predictions: list[Prediction], units: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    results: dict[str, np.ndarray] = {}
    for name in ("permission", "attention", "effective"):
        if getattr(predictions[0], name) is None:  # all have it or none has, as_predictions saw to that
            continue
        values, gold, question = _pooled(predictions, name)
        if name == "permission":
            results["permission_auc"] = weighted_auc(values, gold > 0, units[question], weights)
            within = segment_auc(values, gold > 0, question, len(predictions))
            results["permission_auc_within"] = _mean(within, weights[:, units])
        for kind in ("gold", "hard", "random"):
            chosen = gold > 0 if kind == "gold" else _kind_mask(predictions, kind, gold)
            if chosen is not None and chosen.any():
                sums = np.bincount(question, values * chosen, len(predictions))
                counts = np.bincount(question, chosen, len(predictions))
                results[f"{name}_{kind}"] = _ratio(weights[:, units] @ sums, weights[:, units] @ counts)
    return results


def _calibration(predictions: list[Prediction], weights: np.ndarray) -> dict[str, np.ndarray]:
    p, y, question = _pooled(predictions, "probabilities")
    questions = len(predictions)
    counts = weights @ np.bincount(question, minlength=questions)
    gaps = np.bincount(question * BINS + bin_index(p), p - y, questions * BINS).reshape(questions, BINS)
    likelihood = np.where(y > 0, p, 1 - p)
    # Clipped as scikit-learn's log_loss clips: one certain mistake must not make the mean infinite.
    surprise = -np.log(np.maximum(likelihood, np.finfo(np.float64).eps))
    return {
        "ece": np.abs(weights @ gaps).sum(axis=1) / counts,
        "brier": weights @ np.bincount(question, (p - y) ** 2, questions) / counts,
        "nll": weights @ np.bincount(question, surprise, questions) / counts,
    }


def _fact_counts(prediction: Prediction) -> tuple[float, float, float]:
    chosen, gold = prediction.probabilities >= THRESHOLD, prediction.labels > 0
    return (chosen & gold).sum(), (chosen & ~gold).sum(), (~chosen & gold).sum()


def _fact_scores(counts: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Macro and micro scores from [questions, 3] true positives, false positives and false negatives."""
    results = {}
    macro = {"em": ((counts[:, 1] + counts[:, 2]) == 0).astype(float), **_f1(*counts.T)}
    micro = _f1(*(weights @ counts).T)
    for name, values in macro.items():
        results[f"supporting_fact_{name}"] = _mean(values, weights)
    for name, values in micro.items():
        results[f"supporting_fact_{name}_micro"] = values
    return results


def _f1(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray) -> dict[str, np.ndarray]:
    precision = tp / np.maximum(tp + fp, 1)
    recall = tp / np.maximum(tp + fn, 1)
    total = precision + recall
    return {"f1": 2 * precision * recall / np.where(total > 0, total, 1), "precision": precision, "recall": recall}


def _pooled(predictions: list[Prediction], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values, labels, index of the question) over all candidates of all questions."""
    values = np.concatenate([getattr(prediction, name) for prediction in predictions])
    labels = np.concatenate([prediction.labels for prediction in predictions])
    question = np.repeat(np.arange(len(predictions)), [len(prediction.labels) for prediction in predictions])
    return values, labels, question


def _kind_mask(predictions: list[Prediction], kind: str, gold: np.ndarray) -> np.ndarray | None:
    """Distractors of a kind; None when no candidate has one."""
    kinds = [prediction.kinds or [None] * len(prediction.labels) for prediction in predictions]
    mask = np.array([name == kind for names in kinds for name in names]) & (gold == 0)
    return mask if mask.any() else None


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean over the questions on which the value is defined."""
    defined = ~np.isnan(values)
    return _ratio(weights[:, defined] @ values[defined], weights[:, defined].sum(axis=1))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator > 0)
