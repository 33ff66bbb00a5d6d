"""`warrant-hf calibrate`: make the answerability a probability, on labelled rows, and say how good a one it is."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

import typer

from ..data.candidates import build_candidates, without_evidence
from ..data.readers import read_rows
from ..evaluation.answerability import AnswerabilityFit, fit_answerability
from ..evaluation.predict import predict
from ..hub.model_card import CARD, FIGURE
from .loading import load_model
from .terminal import progress


def run(
    *,
    data: Path,
    output: Path | None,
    model: str | None,
    level: str,
    size: int,
    limit: int | None,
    seed: int,
    batch_size: int,
) -> None:
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"--output {output} exists already; name a new folder.")
    selector = load_model(model)
    fit = fitted(selector, data, level=level, size=size, limit=limit, seed=seed, batch_size=batch_size)
    typer.echo(told(fit, size, selector.readout.variant.path))
    if output is None:
        typer.echo("Nothing was written; --output DIR saves the selector with this.")
        return
    set_answerability(selector, fit, size=size, data=data.name)
    selector.save_pretrained(output)
    for name in (CARD, FIGURE):  # rankings and areas are what they were
        if model is not None and (Path(model) / name).is_file():
            shutil.copyfile(Path(model) / name, output / name)
    typer.echo(f"Saved to {output}")


def fitted(selector, data, *, level, size, limit, seed, batch_size) -> AnswerabilityFit:
    """The fit on lists of `size` candidates, each once with its evidence and once with distractors in its place.

    Raises:
        ValueError: rows that cannot be read or used.
    """
    whole = read_rows(data, level=level, limit=limit)
    rows = [build_candidates(row, size=size, seed=seed) for row in whole]
    pairs = [(row, without_evidence(full, row, seed=seed)) for full, row in zip(whole, rows, strict=True)]
    # Lists of one length, or the mass would tell them apart by it.
    pairs = [
        (row, other)
        for row, other in pairs
        if other is not None and any(row.labels) and len(other.candidates) == len(row.candidates)
    ]
    with progress() as bar:
        task = bar.add_task("lists", total=2 * len(pairs))
        found = [
            [
                prediction.answerability
                for prediction in predict(selector, lists, batch_size, partial(bar.advance, task))
            ]
            for lists in ([row for row, _ in pairs], [other for _, other in pairs])
        ]
    readout = selector.readout
    return fit_answerability(*found, scale=readout.mass_scale.item(), bias=readout.mass_bias.item(), seed=seed)


def set_answerability(selector, fit: AnswerabilityFit, *, size: int, data: str) -> None:
    """Puts the fit into a selector and its config."""
    selector.readout.mass_scale.data.fill_(fit.scale)
    selector.readout.mass_bias.data.fill_(fit.bias)
    selector.config.answerability_calibration = calibration(fit, size=size, data=data)


def calibration(fit: AnswerabilityFit, *, size: int, data: str) -> dict:
    """The field `answerability_calibration` of a config."""
    return {"data": data, "size": size, "questions": fit.questions, **fit.after}


def told(fit: AnswerabilityFit, size: int, has_mass: bool) -> str:
    """The fit in words, as Markdown."""
    lines = [
        f"Answerability on {fit.questions} questions, lists of {size} with and without their evidence",
        "",
        "| | calibration error | Brier score [95 % interval] |",
        "|---|---|---|",
    ]
    for name, found in (("as it is", fit.before), ("fitted on other questions", fit.after)):
        brier = found["brier"]
        lines.append(
            f"| {name} | {found['ece']:.3f} | {brier['value']:.3f} [{brier['low']:.3f}, {brier['high']:.3f}] |"
        )
    lines += ["", f"mass_scale {fit.scale:.4f}, mass_bias {fit.bias:.4f}"]
    if has_mass:
        lines[-1] += f": evidence is likelier than not from a total mass of {math.exp(-fit.bias / fit.scale):.3f} on"
    return "\n".join(lines)


__all__ = ["calibration", "fitted", "run", "set_answerability", "told"]
