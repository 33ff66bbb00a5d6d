"""Writes the card of every recipe in training/recipes, and that of the shipped checkpoint, from model_cards/facts.

    python model_cards/make_cards.py
    python model_cards/make_cards.py --measure hotpotqa/dev.jsonl.gz 2wiki/dev.jsonl.gz   # the shipped checkpoint anew

A recipe without results in its facts gets a card that says so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import AutoConfig

from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.report import write_json, write_text
from warrant_hf.hub import load_default, write_card
from warrant_hf.hub.model_card import render_card, write_figure
from warrant_hf.hub.run_card import measured
from warrant_hf.hub.usage_example import usage_output
from warrant_hf.modeling import DEFAULT_CHECKPOINT
from warrant_hf.recipes import Recipe

HERE = Path(__file__).parent
RECIPES = HERE.parent / "training" / "recipes"
#: The recipe of the checkpoint that ships.
SHIPPED = "hotpotqa_minilm_lora"
# Candidate lists of `warrant-hf evaluate` without --seed.
SEED = 0


def facts_of(recipe: str) -> dict:
    """`train` and `versions` as `write_card` takes them, `results`, `output` of the snippet, `command` to train."""
    return json.loads((HERE / "facts" / f"{recipe}.json").read_text(encoding="utf-8"))


def measure(files: list[Path]) -> None:
    """Measures the shipped checkpoint on the data sets of its facts, in their order."""
    facts, model = facts_of(SHIPPED), load_default()
    if len(files) != len(facts["results"]):
        raise SystemExit(f"--measure has {len(files)} files; give {len(facts['results'])}, as in the card.")
    recipe = Recipe.from_yaml(RECIPES / f"{SHIPPED}.yaml")
    for file, result in zip(files, facts["results"], strict=True):
        result |= measured(model, read_rows(file, level=recipe.data.level), recipe, SEED)
    facts["output"] = usage_output(model)
    write_json(HERE / "facts" / f"{SHIPPED}.json", facts)


def write_recipe_card(path: Path) -> None:
    """The card of one recipe, and with the recipe of the shipped checkpoint that of the checkpoint."""
    recipe, facts = Recipe.from_yaml(path).model_dump(), facts_of(path.stem)
    shared = {
        "recipe": recipe,
        "results": facts["results"],
        "licence": facts["licence"],
        "train": facts["train"],
        "library_versions": facts["versions"],
        "output": facts.get("output"),
    }
    is_shipped = path.stem == SHIPPED
    card = render_card(
        Path(DEFAULT_CHECKPOINT).name if is_shipped else path.stem,
        figure=write_figure(HERE / f"{path.stem}-reliability.png", facts["results"]),
        command=None if is_shipped else facts["command"],
        calibration=AutoConfig.from_pretrained(DEFAULT_CHECKPOINT).answerability_calibration if is_shipped else None,
        **shared,
    )
    write_text(HERE / f"{path.stem}.md", card)
    if is_shipped:
        write_card(DEFAULT_CHECKPOINT, with_figure=False, **shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
    for path in sorted(RECIPES.glob("*.yaml")):
        write_recipe_card(path)
        print(f"model_cards/{path.stem}.md")


if __name__ == "__main__":
    main()
