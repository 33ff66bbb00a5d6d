"""`warrant-hf train`: a recipe, two files of rows, a folder."""

from __future__ import annotations

from pathlib import Path


def run(
    *,
    config: Path,
    train_file: Path,
    eval_file: Path | None,
    output: Path,
    seed: int | None,
    bf16: bool | None,
    overrides: list[str],
    resume: bool,
) -> None:
    from ..recipes import Recipe, train

    changes = dict(_pair(item) for item in overrides)
    if seed is not None:
        changes["seed"] = seed
    if bf16 is not None:
        changes["bf16"] = bf16
    recipe = Recipe.from_yaml(config, changes)
    metrics = train(recipe, train_file=train_file, eval_file=eval_file, output_dir=output, resume=resume)
    for name, value in metrics.items():
        print(f"{name:<32} {value:.4f}")
    print(f"The trained selector is in {output}; use it with: warrant-hf select --model {output}")


def _pair(item: str) -> tuple[str, object]:
    """`key=value` with the value read as YAML, so that numbers and lists arrive as such."""
    from ..settings import parse_yaml

    key, separator, value = item.partition("=")
    if not separator or not key.strip():
        raise ValueError(f"--set {item!r} is not KEY=VALUE; write, for example, --set training.num_train_epochs=2.")
    try:
        return key.strip(), parse_yaml(value)
    except ValueError as error:
        raise ValueError(f"--set {item!r}: the value is not YAML ({error}); put it in quotes.") from None
