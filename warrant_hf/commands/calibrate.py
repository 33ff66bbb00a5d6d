"""`warrant-hf calibrate`: make the answerability a probability, on labelled rows, and say how good a one it is."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import typer

from ..data.candidates import build_candidates, without_evidence
from ..data.readers import read_rows
from ..data.schema import EvidenceRow
from ..evaluation.answerability import FEWEST, AnswerabilityFit, fit_answerability
from ..evaluation.predict import predict
from ..evaluation.report import write_text
from ..hub.answerability_section import with_answerability
from ..hub.carried_card import carried_files, read_card, short_card
from ..hub.model_card import CARD
from .loading import load_model
from .terminal import progress


class Pair(NamedTuple):
    """A list with its evidence, and as long a one with distractors in its place."""

    present: EvidenceRow
    absent: EvidenceRow


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
    if output is not None:
        _check_new_folder(output)
    pairs, note = list_pairs(data, level=level, size=size, limit=limit, seed=seed)
    if note:
        typer.echo(note)
    selector = load_model(model)
    carried = {} if output is None else carried_files(model, **selector._source)
    card = read_card(carried.pop(CARD)) if CARD in carried else None
    fit = fitted(selector, pairs, seed=seed, batch_size=batch_size)
    typer.echo(told(fit, size, selector.readout.variant.path))
    if fit.is_worse:
        worse = (
            f"Out of fold, the fit has the Brier score {fit.after['brier']['value']:.4f}, which is worse than "
            f"{fit.before['brier']['value']:.4f} without it; keep the selector as it is, or give other or more rows."
        )
        if output is not None:
            raise ValueError(f"Nothing was written. {worse}")
        typer.echo(worse)
    elif output is None:
        typer.echo("Nothing was written; --output DIR saves the selector with this.")
    if output is None:
        return
    set_answerability(selector, fit, size=size, data=data.name)
    selector.save_pretrained(output)
    if card is None:
        copy_of = model if model is not None and not Path(model).is_dir() else None
        card = short_card(output.absolute().name, selector.config, copy_of)
        typer.echo(f"{model} has no {CARD} that can be read from here; a short one was written, which says so.")
    write_text(output / CARD, with_answerability(card, selector.config.answerability_calibration))
    for name, path in carried.items():  # rankings and areas are what they were
        shutil.copyfile(path, output / name)
    typer.echo(f"Saved to {output}")


def _check_new_folder(output: Path) -> None:
    """Known before the scoring, not after: whether the folder can be made; nothing of it stays."""
    if not str(output).strip():
        raise ValueError(f"--output is {str(output)!r}; name a new folder.")
    try:
        if os.path.lexists(output) and (not output.is_dir() or any(output.iterdir())):
            raise ValueError(f"--output {output} exists already; name a new folder.")
        place = output.absolute()
        with TemporaryDirectory(dir=next(folder for folder in (place, *place.parents) if folder.exists())):
            pass
    except OSError as error:
        raise ValueError(f"--output {output} cannot be made ({error.strerror}); name another folder.") from None


def list_pairs(data, *, level, size, limit, seed) -> tuple[list[Pair], str]:
    """The pairs of lists of `size` candidates that the rows give, and a sentence on rows that give none, or "".

    Raises:
        ValueError: rows that cannot be read or used, or too few that give a pair.
    """
    rows = read_rows(data, level=level, limit=limit)
    pairs, left_out, longest = [], Counter(), {}
    for row in rows:
        present = build_candidates(row, size=size, seed=seed)
        absent = without_evidence(row, present, seed=seed)
        golds = sum(row.labels)
        distractors = len(row.labels) - golds
        if not golds:
            left_out["without evidence"] += 1
            continue
        if distractors >= golds:  # a list of at most so many would do
            longest[question_of(row)] = max(distractors, longest.get(question_of(row), 0))
        # Lists of one length, or the mass would tell them apart by it.
        if absent is None or len(absent.candidates) != len(present.candidates):
            left_out["with fewer distractors than their list is long"] += 1
            continue
        pairs.append(Pair(present, absent))
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    note = f"Left out, of {len(rows)} rows: {reasons}." if reasons else ""
    questions = len({question_of(pair.present) for pair in pairs})
    if questions < FEWEST:
        fitting = sorted(longest.values(), reverse=True)[:FEWEST]
        enough = len(fitting) == FEWEST
        remedy = f"use --size {fitting[-1]}" if enough else "give more rows with evidence and as many distractors"
        raise ValueError(
            f"{data}: {questions} questions have lists of {size} with and without evidence, and a fit needs {FEWEST}; "
            f"{remedy}. {note}".rstrip()
        )
    return pairs, note


def question_of(row: EvidenceRow) -> str:
    """What two rows of one question have in common."""
    return " ".join(row.question.casefold().split())


def fitted(selector, pairs: list[Pair], *, seed, batch_size) -> AnswerabilityFit:
    """The fit on pairs of lists."""
    with progress() as bar:
        task = bar.add_task("lists", total=2 * len(pairs))
        found = [
            [
                prediction.answerability
                for prediction in predict(selector, list(lists), batch_size, partial(bar.advance, task))
            ]
            for lists in zip(*pairs, strict=True)
        ]
    readout = selector.readout
    return fit_answerability(
        *found,
        scale=readout.mass_scale.item(),
        bias=readout.mass_bias.item(),
        names=[question_of(pair.present) for pair in pairs],
        seed=seed,
    )


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


__all__ = ["Pair", "calibration", "fitted", "list_pairs", "run", "set_answerability", "told"]
