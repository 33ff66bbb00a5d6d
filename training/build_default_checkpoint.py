"""Makes the checkpoint that ships with the package: trains the adapter, calibrates it, measures it, writes its card.

    python training/build_default_checkpoint.py --train TRAIN --eval DEV --transfer 2WIKI
    python training/build_default_checkpoint.py --eval DEV --calibrate-only

The calibration is that of `warrant-hf calibrate` on DEV: two numbers that move no ranking, so that the other metrics
on DEV are what they are without. What it is worth is measured on folds that it was not fitted on. Its card in
model_cards/ is written by model_cards/make_cards.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from safetensors.torch import load_file, save_file

from warrant_hf.commands import calibrate, evaluate
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.report import write_text
from warrant_hf.hub import load_default, write_card
from warrant_hf.hub.answerability_section import with_answerability
from warrant_hf.hub.carried_card import read_card
from warrant_hf.hub.model_card import CARD
from warrant_hf.modeling import DEFAULT_CHECKPOINT
from warrant_hf.recipes import Recipe, train

RECIPE = Path(__file__).parent / "recipes" / "hotpotqa_minilm_lora.yaml"
KEPT = ("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "recipe.json")
SIZE = 8
DEV = "HotpotQA distractor, dev"
LIMIT = 5 * 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--transfer", type=Path)
    parser.add_argument("--calibrate-only", action="store_true", help="of the checkpoint as it is")
    parser.add_argument("--run", type=Path, default=Path("runs/default-checkpoint"))
    parser.add_argument("--trained", action="store_true", help="--run holds the finished training run of the recipe")
    arguments = parser.parse_args()
    if arguments.calibrate_only:
        calibrate_default(arguments.eval)
        return
    if arguments.train is None or arguments.transfer is None:
        parser.error("give --train and --transfer too, or --calibrate-only")

    recipe = Recipe.from_yaml(RECIPE)
    if arguments.trained:
        made = Recipe(**json.loads((arguments.run / "recipe.json").read_text()))
        if made != recipe:
            sys.exit(f"{arguments.run} was trained by another recipe than {RECIPE.name}; train again.")
    else:
        train(recipe, train_file=arguments.train, output_dir=arguments.run)

    folder = Path(DEFAULT_CHECKPOINT)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "adapter").mkdir(parents=True)
    for name in KEPT:
        shutil.copy(arguments.run / name, folder / name)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(arguments.run / "adapter" / name, folder / "adapter" / name)
    size = (folder / "adapter" / "adapter_model.safetensors").stat().st_size
    if size > LIMIT:
        sys.exit(f"The adapter has {size:,} bytes, more than {LIMIT:,}; lower lora.r in {RECIPE.name}.")
    calibrate_default(arguments.eval)

    results = []
    for path, dataset, name in (
        (arguments.eval, "hotpotqa/hotpot_qa", DEV),
        (arguments.transfer, "xanhho/2WikiMultihopQA", "2WikiMultihopQA, dev (not trained on)"),
    ):
        out = arguments.run / f"{path.name}.json"
        evaluate.run(
            data=path, json_out=out, markdown_out=None, model=None, level="sentence", size=str(SIZE), limit=None,
            seed=0, batch_size=16,
        )  # fmt: skip
        measured = json.loads(out.read_text())
        results.append(
            {"dataset": dataset, "name": name, "n": measured["n"], "size": SIZE, "metrics": measured["metrics"]}
        )
    write_card(
        folder,
        recipe=recipe.model_dump(),
        results=results,
        licence="apache-2.0",
        train={
            "dataset": "hotpotqa/hotpot_qa",
            "licence": "CC BY-SA 4.0",
            "rows": len(read_rows(arguments.train)),
            "machine": f"{platform.machine()}, CPU",
        },
        library_versions={name: version(name) for name in ("torch", "transformers", "peft")},
    )


def calibrate_default(data: Path) -> None:
    """Puts the fit on `data` into the adapter and the config of the default checkpoint."""
    pairs, note = calibrate.list_pairs(data, level="sentence", size=SIZE, limit=None, seed=0)
    fit = calibrate.fitted(load_default(), pairs, seed=0, batch_size=16)
    print(note, calibrate.told(fit, SIZE, has_mass=True), sep="\n")
    adapter = Path(DEFAULT_CHECKPOINT) / "adapter" / "adapter_model.safetensors"
    weights = load_file(adapter)
    weights["base_model.model.readout.mass_scale"].fill_(fit.scale)
    weights["base_model.model.readout.mass_bias"].fill_(fit.bias)
    save_file(weights, adapter, metadata={"format": "pt"})
    config = Path(DEFAULT_CHECKPOINT) / "config.json"
    found = calibrate.calibration(fit, size=SIZE, data=DEV)
    values = json.loads(config.read_text()) | {"answerability_calibration": found}
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    card = Path(DEFAULT_CHECKPOINT) / CARD
    if card.is_file():  # of a checkpoint that is calibrated anew
        write_text(card, with_answerability(read_card(card), found))


if __name__ == "__main__":
    main()
