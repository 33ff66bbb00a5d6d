"""Metrics of evidence selection as a module of `evaluate`; the formulas are those of `warrant_hf.evaluation`."""

import datasets
import evaluate

from warrant_hf.evaluation import evidence_metrics

_DESCRIPTION = """
How well the candidates of a question are ranked by the support they give: reciprocal rank of the first supporting
candidate, hit and recall at k, F1 at the number of golds, mean and pooled average precision. Where permissions,
probabilities or kinds of distractors are given, also the AUC of the permission, calibration, and gold against hard
distractors. Each with a bootstrap interval over questions.
"""
_INPUTS = """
Args:
    predictions (list of list of float): scores of a question's candidates, larger is better.
    references (list of list of int): 1 for a candidate that supports, 0 for one that does not.
    permission, attention, effective, probabilities (list of list of float, optional): as the selector gives them.
    kinds (list of list of str, optional): "gold", "hard" or "random" for each candidate.
    ids (list of str, optional): of the questions; equal ids are resampled together.
    bootstrap (int), seed (int), confidence (float): of the intervals; bootstrap=0 gives none.
Returns:
    dict: name of a metric -> {"value", "low", "high"}. A metric that is undefined on the data is absent.
"""
_CITATION = """
@misc{yu2026warranted,
  title = {Warranted Attention: Learning What to Pass from Attention to Prediction},
  author = {Yu, Minwoo and Ha, Young-guk}, year = {2026}, eprint = {2606.30139}, archivePrefix = {arXiv}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class EvidenceSelection(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float64")),
                    "references": datasets.Sequence(datasets.Value("int64")),
                }
            ),
        )

    def _compute(self, predictions, references, ids=None, bootstrap=1000, seed=0, confidence=0.95, **lists):
        columns = {"id": ids or [str(number) for number in range(len(predictions))], "scores": predictions}
        columns |= {"labels": references} | {name: values for name, values in lists.items() if values is not None}
        unknown = sorted(set(lists) - {"permission", "attention", "effective", "probabilities", "kinds"})
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no input of this metric; give permission, attention, effective, probabilities or "
                "kinds."
            )
        for name, values in columns.items():
            if len(values) != len(predictions):
                raise ValueError(f"{name} has {len(values)} entries for {len(predictions)} questions; give one each.")
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        return evidence_metrics(rows, bootstrap=bootstrap, seed=seed, confidence=confidence)
