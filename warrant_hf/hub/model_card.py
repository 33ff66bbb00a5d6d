"""Model cards, written from the run that made the checkpoint: nothing in them is typed by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCardData
from transformers import AutoConfig

from ..evaluation.report import write_text
from ..modeling import DEFAULT_CHECKPOINT, WarrantEncoderConfig
from .answerability_section import answerability_section
from .reliability_figure import save_reliability_diagram
from .usage_example import usage_code

#: Files of a checkpoint's folder.
CARD, FIGURE = "README.md", "reliability.png"
TAGS = ("evidence-selection", "warrant-hf")
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
# What a card says about a selector, and not each recipe sets.
_SETTINGS = ("variant", "permission_supervision", "precision_features")
_LIMITS = "It is trained on the data above; nothing is known about its results on other data."
# What `lora.method` of a recipe trains.
_ADAPTERS = {
    "lora": "LoRA",
    "dora": "DoRA",
    "ia3": "IA³; the readout is trained in full",
    "gate": "the permission gate, and nothing else",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def write_card(
    folder,
    *,
    recipe: dict,
    results: list[dict],
    licence: str | None,
    train: dict,
    library_versions: dict,
    output: str | None = None,
    with_figure: bool = True,
) -> None:
    """Writes `README.md` with front matter, model-index, usage, training facts and results to a checkpoint folder.

    Where a result has the bins of its calibration and `with_figure`, `reliability.png` is written beside it. Where the
    folder's config says on what the answerability is calibrated, the card does too.

    Args:
        folder: of the checkpoint; its name is that of the model.
        recipe: the `Recipe` as a dict.
        results: dicts with `name`, `n`, `size` (`None` for all), `metrics` (`{name: {"value", "low", "high"}}`), and,
            where known, `dataset` (id on the Hub), `licence`, `calibration` (see `reliability_bins`), `digits` (of the
            metrics, 4 unless said) and `source` (a sentence about how they were measured).
        licence: of the weights; `None` where nobody has said.
        train: `{"dataset", "licence", "rows", "machine"}`, and, where needed, `language` (English unless said, `None`
            if unknown), `limits` (a sentence on what it was trained for) and `base_model` (Hub id of the pretrained
            weights, if the recipe names a folder).
        library_versions: `{package: version}`.
        output: what the usage snippet prints; see `usage_output`.

    Raises:
        ValueError: the folder cannot be written to.
    """
    folder = Path(folder)
    config = AutoConfig.from_pretrained(folder) if (folder / "config.json").is_file() else None
    figure = write_figure(folder / FIGURE, results) if with_figure else None
    text = render_card(
        folder.absolute().name,
        recipe=recipe,
        results=results,
        licence=licence,
        train=train,
        library_versions=library_versions,
        output=output,
        figure=figure,
        precision_label=getattr(config, "precision_label", None),
        calibration=getattr(config, "answerability_calibration", None),
    )
    write_text(folder / CARD, text)


def write_figure(path: Path, results: list[dict]) -> str | None:
    """Draws the calibration of the results that have it; the name of the file, or `None` where none has."""
    curves = {result["name"]: result["calibration"] for result in results if result.get("calibration")}
    if not curves:
        return None
    save_reliability_diagram(path, curves)
    return path.name


def render_card(
    name: str,
    *,
    recipe: dict,
    results: list[dict],
    licence: str | None,
    train: dict,
    library_versions: dict,
    output: str | None = None,
    figure: str | None = None,
    precision_label: str | None = None,
    calibration: dict | None = None,
    command: str | None = None,
) -> str:
    """The text of a card; see `write_card`. With `command`, which trains the model, it says that no weights exist.

    `calibration` is the config's `answerability_calibration`.
    """
    settings = selector_settings(recipe)
    is_default = name == Path(DEFAULT_CHECKPOINT).name
    has_path = settings["variant"] != "base"
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        front_matter=_front_matter(name, recipe, results, licence, train).to_yaml(),
        name=name,
        published=command is None,
        command=command,
        code=usage_code(None if is_default else f"runs/{name}" if command else name, has_path),
        output=output,
        recipe=recipe,
        recipe_yaml=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).rstrip(),
        adapter=recipe["lora"] and _ADAPTERS[recipe["lora"].get("method", "lora")],
        start=_start(recipe),
        settings=settings,
        results=results,
        metrics=CARD_METRICS,
        numbers=_numbers,
        train=train,
        licence=licence,
        versions=library_versions,
        precision_label=precision_label,
        figure=figure,
        answerability=calibration and answerability_section(calibration),
        limits=train.get("limits", _LIMITS),
    )


def selector_settings(recipe: dict) -> dict[str, Any]:
    """Variant, label supervision and precision of the selector that a recipe makes or goes on from."""
    config = WarrantEncoderConfig if recipe["start_from"] is None else AutoConfig.from_pretrained(_start_of(recipe))
    return {name: recipe["model"].get(name, getattr(config, name)) for name in _SETTINGS}


def _front_matter(name, recipe, results, licence, train):
    index = [
        EvalResult(
            task_type="text-ranking",
            dataset_type=result.get("dataset") or "custom",
            dataset_name=result["name"],
            metric_type=metric,
            metric_name=CARD_METRICS[metric],
            metric_value=round(result["metrics"][metric]["value"], 4),
            metric_args={"questions": result["n"]} | _interval(result["metrics"][metric]),
        )
        for result in results
        for metric in CARD_METRICS
        if metric in result["metrics"]
    ]
    base = train.get("base_model") or _base_model(recipe)
    return ModelCardData(
        model_name=name if index else None,
        language=train.get("language", "en"),
        license=licence,
        library_name="transformers",
        pipeline_tag="text-ranking",
        base_model=base if base is not None and _HUB_ID.fullmatch(base) and not Path(base).exists() else None,
        datasets=[train["dataset"]] if _HUB_ID.fullmatch(train["dataset"]) else None,
        tags=[*TAGS, *(["peft"] if recipe["lora"] else [])],
        eval_results=index or None,
    )


def _interval(value):
    ends = _ends(value)
    return {} if ends is None else {"interval_95": [round(end, 4) for end in ends]}


def _ends(value):
    """Both ends of an interval, or `None`: a JSON file has null where an interval is undefined."""
    ends = value.get("low"), value.get("high")
    return None if any(end is None or math.isnan(end) for end in ends) else ends


def _numbers(value, result):
    """Value and interval as the cells of a table."""
    digits, ends = result.get("digits", 4), _ends(value)
    shown = "–" if ends is None else " – ".join(f"{end:.{digits}f}" for end in ends)
    return f"{value['value']:.{digits}f} | {shown}"


def _start_of(recipe):
    return DEFAULT_CHECKPOINT if recipe["start_from"] == "default" else recipe["start_from"]


def _start(recipe):
    if recipe["start_from"] == "default":
        return "the selector that ships with warrant-hf"
    return recipe["start_from"] or recipe["base_model"]


def _base_model(recipe):
    if recipe["start_from"] == "default":
        return AutoConfig.from_pretrained(DEFAULT_CHECKPOINT).base_model
    return recipe["start_from"] or recipe["base_model"]


__all__ = ["CARD", "CARD_METRICS", "FIGURE", "TAGS", "render_card", "selector_settings", "write_card", "write_figure"]
