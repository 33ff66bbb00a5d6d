"""Scoring a file in parts: by several processes, and after a kill from where it had come to.

A part is a run of rows. Its results are written whole or not at all, under its number, to the folder `OUT.parts`
beside the output; whoever finishes last puts them together. So no row is lost or doubled, whoever is killed and when.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from ..whole_file import replaced_when_complete

_FACTS = "run.json"


def started_by_launcher() -> bool:
    """Whether this process is one of several that `torchrun` or `accelerate launch` has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def process_state():
    """Accelerate's view of this process and its peers; they meet over gloo where there is no accelerator."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())


def score_in_parts(
    rows: Iterable,
    score: Callable[[list], Iterable[str]],
    target: Path,
    *,
    facts: dict,
    state,
    resume: bool,
    on_start: Callable[[int], None],
    on_row: Callable[[], None],
) -> None:
    """Writes a line for each row to `target`; several processes share the parts.

    Args:
        rows: all rows, in every process.
        score: lines of some rows, one each.
        facts: what the results depend on; parts of other facts are not taken up. `rows` is how many there are and
            `part_rows` how many make a part.
        state (`accelerate.PartialState`): this process and its peers.
        resume: take up parts that are there.
        on_start, on_row: hear how many rows this process scores, and of each one.

    Raises:
        ValueError: `OUT.parts` is there without `resume`, or of other facts.
    """
    folder = target.with_name(target.name + ".parts")
    with state.main_process_first():
        if state.is_main_process:
            _begin(folder, facts, resume)
        _check_facts(folder, facts)
    size, count = facts["part_rows"], facts["rows"]
    numbers = range(math.ceil(count / size))
    sizes = {number: min(size, count - number * size) for number in numbers}
    missing = [number for number in numbers if not _is_whole(_path(folder, number), sizes[number])]
    state.wait_for_everyone()  # all have seen the same parts before one adds to them
    mine = set(missing[state.process_index :: state.num_processes])
    on_start(sum(sizes[number] for number in mine))
    rows = iter(rows)
    for number in numbers:
        part = list(islice(rows, size))
        if number in mine:
            with replaced_when_complete(_path(folder, number)) as file:
                for line in score(part):
                    file.write(line + "\n")
                    on_row()
    if all(_path(folder, number).exists() for number in numbers):
        _put_together(folder, numbers, target)


def _begin(folder: Path, facts: dict, resume: bool) -> None:
    if (folder / _FACTS).exists():
        if not resume:
            raise ValueError(f"{folder} holds rows of an earlier run; add --resume, or remove the folder.")
        return
    if folder.exists():  # a run that was killed before it scored anything
        shutil.rmtree(folder)
    folder.mkdir()
    with replaced_when_complete(folder / _FACTS) as file:
        json.dump(facts, file)


def _check_facts(folder: Path, facts: dict) -> None:
    with open(folder / _FACTS, encoding="utf-8") as file:
        found = json.load(file)
    other = [name for name in facts if found.get(name) != facts[name]]
    if other:
        raise ValueError(
            f"{folder} is of a run with another {other[0]} ({found.get(other[0])!r}, now {facts[other[0]]!r}); repeat "
            "that run's command, or remove the folder."
        )


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.jsonl"


def _is_whole(path: Path, rows: int) -> bool:
    """Whether a part has all its lines; one that was written just before a power cut may not."""
    try:
        with open(path, "rb") as file:
            return sum(1 for _ in file) == rows
    except FileNotFoundError:
        return False


def _put_together(folder: Path, numbers: range, target: Path) -> None:
    try:
        with replaced_when_complete(target) as file:
            for number in numbers:
                with open(_path(folder, number), encoding="utf-8", newline="\n") as part:
                    shutil.copyfileobj(part, file)
        gone = folder.with_name(f".{uuid.uuid4().hex}.partial")
        folder.rename(gone)  # at once, so that nobody takes up half of the parts
        shutil.rmtree(gone)
    except FileNotFoundError:
        if folder.exists():
            raise
        # A process that finished at the same time was faster, and wrote the same.


__all__ = ["process_state", "score_in_parts", "started_by_launcher"]
