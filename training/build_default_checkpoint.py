"""Makes the checkpoint that ships with the package: trains the adapter, measures it, writes its card.

python training/build_default_checkpoint.py --train TRAIN --eval DEV --transfer 2WIKI
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from warrant_hf.commands import evaluate
from warrant_hf.data.readers import read_rows
from warrant_hf.hub import write_card
from warrant_hf.modeling import DEFAULT_CHECKPOINT
from warrant_hf.recipes import Recipe, train

RECIPE = Path(__file__).parent / "recipes" / "hotpotqa_minilm_lora.yaml"
KEPT = ("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "recipe.json")
LIMIT = 5 * 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--transfer", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=Path("runs/default-checkpoint"))
    parser.add_argument("--trained", action="store_true", help="--run holds the finished training run of the recipe")
    arguments = parser.parse_args()

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

    results = []
    for path, dataset, name in (
        (arguments.eval, "hotpotqa/hotpot_qa", "HotpotQA distractor, dev"),
        (arguments.transfer, "xanhho/2WikiMultihopQA", "2WikiMultihopQA, dev (not trained on)"),
    ):
        out = arguments.run / f"{path.name}.json"
        evaluate.run(
            data=path, json_out=out, markdown_out=None, model=None, level="sentence", size="8", limit=None, seed=0,
            batch_size=16,
        )  # fmt: skip
        measured = json.loads(out.read_text())
        results.append(
            {"dataset": dataset, "name": name, "n": measured["n"], "size": 8, "metrics": measured["metrics"]}
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


if __name__ == "__main__":
    main()
