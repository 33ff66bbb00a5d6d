"""Model cards, written from the run that made the checkpoint: nothing in them is typed by hand."""

from __future__ import annotations

from pathlib import Path

import jinja2
from huggingface_hub import EvalResult, ModelCardData
from transformers import AutoConfig

from ..evaluation.report import write_text

TEMPLATE = Path(__file__).with_name("evidence_card.md.jinja")

#: Metrics that a card shows, in order, with what they say.
CARD_METRICS = {
    "support_mrr": "1 / rank of the first supporting candidate",
    "hit_at_1": "first candidate supports",
    "recall_at_5": "share of the supporting candidates among the first five",
    "evidence_f1": "F1 of the first G candidates, G = number of golds",
    "auprc": "average precision over all candidates",
    "permission_auc": "permission of a gold above that of a distractor",
    "abstention_auroc": "total mass, evidence present against removed",
    "abstention_auroc_answerability": "answerability, evidence present against removed",
    "ece": "calibration error of the probabilities, 15 bins (lower is better)",
}


def write_card(
    folder, *, recipe: dict, results: list[dict], licence: str, train: dict, library_versions: dict
) -> None:
    """Writes `README.md` with front matter, model-index, usage, training facts and results to a checkpoint folder.

    Args:
        recipe: the `Recipe` as a dict.
        results: dicts with `dataset`, `name`, `n`, `size` and `metrics` (`{name: {"value", "low", "high"}}`).
        licence: of the weights.
        train: `{"dataset", "licence", "rows", "machine"}`.
        library_versions: `{package: version}`.
    """
    name = Path(folder).name
    index = [
        EvalResult(
            task_type="text-ranking",
            dataset_type=result["dataset"],
            dataset_name=result["name"],
            metric_type=metric,
            metric_value=round(result["metrics"][metric]["value"], 4),
        )
        for result in results
        for metric in CARD_METRICS
        if metric in result["metrics"]
    ]
    data = ModelCardData(
        model_name=name,
        language="en",
        license=licence,
        library_name="transformers",
        pipeline_tag="text-ranking",
        base_model=recipe["base_model"],
        datasets=[train["dataset"]],
        tags=["evidence-selection", "warrant-hf", *(["peft"] if recipe["lora"] else [])],
        eval_results=index,
    )
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        front_matter=data.to_yaml(),
        name=name,
        recipe=recipe,
        results=results,
        metrics=CARD_METRICS,
        train=train,
        versions=library_versions,
        precision_label=_label_of(folder, recipe),
    )
    write_text(Path(folder) / "README.md", text)


def _label_of(folder, recipe):
    """What the checkpoint's log-precision has earned to be called."""
    if not recipe["model"].get("precision_features"):
        return None
    return AutoConfig.from_pretrained(folder).precision_label


__all__ = ["CARD_METRICS", "write_card"]
