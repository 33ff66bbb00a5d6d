"""A selector's predictions on labelled rows, in the form that the metrics take."""

from __future__ import annotations

from collections.abc import Callable

from ..data.schema import EvidenceRow
from .predictions import Prediction


def predict(
    model, rows: list[EvidenceRow], batch_size: int, advance: Callable[[int], None] = lambda count: None
) -> list[Prediction]:
    """What `model` says about each row, with the row's labels and kinds; `advance` hears how many are done."""
    predictions = []
    step = 8 * batch_size  # more than one batch at a time: the model puts questions of similar length together
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        results = model.rank_batch(
            [row.question for row in chunk],
            [[candidate.to_dict() for candidate in row.candidates] for row in chunk],
            batch_size=batch_size,
        )
        for row, result in zip(chunk, results, strict=True):
            evidence = sorted(result["evidence"], key=lambda item: item["index"])
            has_path = result["mass"] is not None  # the content head of `base` has neither attention nor permission
            predictions.append(
                Prediction(
                    id=row.id,
                    scores=[item["score"] for item in evidence],
                    labels=row.labels,
                    kinds=row.kinds,
                    probabilities=[item["probability"] for item in evidence],
                    permission=[item["permission"] for item in evidence] if has_path else None,
                    attention=[item["attention"] for item in evidence] if has_path else None,
                    effective=[item["effective"] for item in evidence] if has_path else None,
                    mass=result["mass"],
                    answerability=result["answerability"],
                )
            )
        advance(len(chunk))
    return predictions
