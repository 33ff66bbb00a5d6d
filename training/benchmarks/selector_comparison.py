"""Dev table: `base`, `open`, `pair` and a pairwise cross-encoder on one encoder, one data set and one budget.

    cd training/benchmarks
    python selector_comparison.py tune --train TRAIN --out runs/comparison
    python selector_comparison.py run --train TRAIN --eval DEV --transfer 2WIKI --out runs/comparison
    python selector_comparison.py report --out runs/comparison

`tune` chooses each variant's learning rate on rows held out of TRAIN, with one grid for all. `run` trains variants x
seeds, two single-threaded processes side by side, and skips what is finished. `report` writes the table with paired
bootstrap intervals over questions.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import comparison_runs as runs

RECIPE = Path(__file__).parents[1] / "recipes" / "hotpotqa_minilm.yaml"
VARIANTS = ("base", "open", "pair", "cross_encoder")
GRID = (1.5e-4, 3e-4, 6e-4)
HELD_OUT = 240  # rows at the end of TRAIN that choose the learning rate,
TUNING_ROWS = 800  # after one pass over this many at its beginning
# One more frozen layer than the recipe: tuning and twelve runs fit into about three hours of two cores.
BUDGET = {"data.draws": 3, "model.frozen_layers": 3}
EVAL_SEED = "eval"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("tune", "run", "report", "one"))
    parser.add_argument("--train", type=Path)
    parser.add_argument("--eval", type=Path)
    parser.add_argument("--transfer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--tuning", action="store_true", help="train without the held-out rows and score those")
    arguments = parser.parse_args()
    {"tune": tune, "run": run, "report": report, "one": one}[arguments.step](arguments)


def tune(arguments):
    runs.tune(__file__, arguments, arguments.variants, GRID, {"train": arguments.train})


def run(arguments):
    files = {name: getattr(arguments, name) for name in ("train", "eval", "transfer")}
    runs.run(__file__, arguments, arguments.variants, files)


def one(arguments):
    """One training run and its predictions."""
    import torch

    from warrant_hf.data.candidates import build_candidates, without_evidence
    from warrant_hf.data.readers import read_rows
    from warrant_hf.recipes import Recipe

    torch.set_num_threads(1)
    (variant,), (seed,) = arguments.variants, arguments.seeds
    folder = runs.folder_of(arguments.out, variant, seed, arguments.rate)
    rows = read_rows(arguments.train)
    changes = {"seed": seed, "training.learning_rate": arguments.rate, "training.save_strategy": "no"}
    changes |= BUDGET | {"training.disable_tqdm": True}
    if variant != "cross_encoder":
        changes["model.variant"] = variant
    if arguments.tuning:
        rows, sets = rows[:TUNING_ROWS], {"eval": rows[-HELD_OUT:]}
    else:
        sets = {"eval": read_rows(arguments.eval)}
        if arguments.transfer is not None:
            sets["transfer"] = read_rows(arguments.transfer)
    recipe = Recipe.from_yaml(RECIPE, changes)
    started = time.perf_counter()
    predict, parameters = (_train_peer if variant == "cross_encoder" else _train_selector)(recipe, rows, folder)
    result = {"variant": variant, "seed": seed, "rate": arguments.rate, "parameters": parameters}
    result |= {
        "train_seconds": time.perf_counter() - started,
        "recipe": recipe.model_dump(),
        "machine": runs.machine(),
    }
    for name, listed in sets.items():
        full = [build_candidates(row, size=recipe.data.size, seed=EVAL_SEED) for row in listed]
        emptied = [without_evidence(row, shown, seed=EVAL_SEED) for row, shown in zip(listed, full)]
        emptied = [row for row in emptied if row is not None]
        started = time.perf_counter()
        predictions = predict(full)
        result[f"{name}_seconds"] = time.perf_counter() - started
        runs.write_predictions(folder / f"{name}.jsonl.gz", predictions + predict(emptied))
    (folder / "run.json").write_text(json.dumps(result, indent=2) + "\n")


def _train_selector(recipe, rows, folder):
    from warrant_hf.evaluation.predict import predict
    from warrant_hf.recipes import train_rows

    model = train_rows(recipe, rows, output_dir=folder).model
    model.save_pretrained(folder / "model")
    model.processor.save_pretrained(folder / "model")
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return lambda listed: predict(model, listed, 16), trainable


def _train_peer(recipe, rows, folder):
    from cross_encoder_peer import predict_peer, train_peer

    model = train_peer(recipe, rows, folder)
    model.save_pretrained(str(folder / "model"))
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return lambda listed: predict_peer(model, listed), trainable


def report(arguments):
    from comparison_report import write_report

    write_report(runs.finished_runs(arguments.out, arguments.variants, arguments.seeds), arguments.out)


if __name__ == "__main__":
    main()
