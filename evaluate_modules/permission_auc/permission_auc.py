"""AUC of a permission as a module of `evaluate`; the formula is that of `warrant_hf.evaluation`."""

import datasets
import evaluate

from warrant_hf.evaluation import evidence_metrics

_DESCRIPTION = """
Whether a permission (or any number that is given to each candidate, such as its attention) is higher for candidates
that support an answer than for distractors: the area under the ROC curve, ties counting half, pooled over all
candidates and within each question, each with a bootstrap interval over questions.
"""
_INPUTS = """
Args:
    predictions (list of list of float): permission of each candidate of a question.
    references (list of list of int): 1 for a candidate that supports, 0 for one that does not.
    bootstrap (int), seed (int), confidence (float): of the intervals; bootstrap=0 gives none.
Returns:
    dict: "permission_auc" and "permission_auc_within" -> {"value", "low", "high"}. One that is undefined on the data
    is absent.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class PermissionAUC(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float64")),
                    "references": datasets.Sequence(datasets.Value("int64")),
                }
            ),
        )

    def _compute(self, predictions, references, bootstrap=1000, seed=0, confidence=0.95):
        rows = [
            {"id": str(number), "scores": permission, "permission": permission, "labels": labels}
            for number, (permission, labels) in enumerate(zip(predictions, references))
        ]
        metrics = evidence_metrics(rows, bootstrap=bootstrap, seed=seed, confidence=confidence)
        return {name: value for name, value in metrics.items() if name.startswith("permission_auc")}
