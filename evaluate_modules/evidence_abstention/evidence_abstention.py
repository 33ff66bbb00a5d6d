"""AUROC of abstention as a module of `evaluate`; the formula is that of `warrant_hf.evaluation`."""

import datasets
import evaluate

from warrant_hf.evaluation import abstention_auroc

_DESCRIPTION = """
Whether a score of a whole list, such as the total effective mass or the answerability, is larger where the list holds
evidence than where it does not: the area under the ROC curve, ties counting half, with a bootstrap interval.
"""
_INPUTS = """
Args:
    predictions (list of float): a score for each list of candidates.
    references (list of int): 1 for a list that holds evidence, 0 for one that does not.
    bootstrap (int), seed (int), confidence (float): of the interval; bootstrap=0 gives none.
    Where there are as many lists of both kinds, the first with evidence and the first without are taken to belong to
    the same question, and so on: they are resampled together.
Returns:
    dict: "abstention_auroc" -> {"value", "low", "high"}.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class EvidenceAbstention(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions, references, bootstrap=1000, seed=0, confidence=0.95):
        wrong = sorted(set(references) - {0, 1})
        if wrong:
            raise ValueError(f"references holds {wrong[0]}; give 1 for a list with evidence and 0 for one without.")
        scores = {kind: [score for score, has in zip(predictions, references) if has == kind] for kind in (1, 0)}
        settings = {"bootstrap": bootstrap, "seed": seed, "confidence": confidence}
        return {"abstention_auroc": abstention_auroc(scores[1], scores[0], **settings)}
