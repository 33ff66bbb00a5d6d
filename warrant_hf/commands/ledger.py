"""`warrant-hf ledger`: replay, export and show what `warrant-hf select --ledger` has written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..data.readers import read_rows
from ..diagnostics import LedgerRecord, LedgerWriter, read_ledger, replay, rescore, write_parquet
from ..diagnostics.ledger_replay import TOLERANCE, Difference
from ..diagnostics.ledger_rescore import RESCORE_TOLERANCE
from .loading import load_model
from .terminal import printable


def opened(path: Path | None):
    """A writer for `with`, or None for no ledger."""
    return nullcontext() if path is None else LedgerWriter(path, on_note=_note)


def replay_file(
    file: Path, *, texts: Path | None, model: str | None, tolerance: float | None, limit: int, batch_size: int
) -> bool:
    """Prints what a replay finds; whether it found no difference."""
    if model is not None and texts is None:
        raise ValueError("--model scores again from texts, which a ledger does not hold; add --texts ROWS.")
    rows = [] if texts is None else read_rows(texts)
    found = replay(_records(file), tolerance=TOLERANCE if tolerance is None else tolerance)
    print(f"{found.records} records of {found.decisions} decisions replayed: {_count(found.differences)}.")
    for decision, (held, wanted) in list(found.incomplete.items())[:limit]:
        print(f"decision {printable(decision)} has {held} of {wanted} records; its sums and ranks were not checked.")
    if len(found.incomplete) > limit:
        print(f"{len(found.incomplete)} decisions lack records.")
    _print_differences(found.differences, limit)
    if texts is None:
        return not found.differences
    again = rescore(
        _records(file),
        load_model(model),
        ((row.question, [candidate.to_dict() for candidate in row.candidates]) for row in rows),
        tolerance=RESCORE_TOLERANCE if tolerance is None else tolerance,
        batch_size=batch_size,
    )
    print(f"{again.decisions} of {found.decisions} decisions scored again: {_count(again.differences)}.")
    if again.without_texts:
        print(f"The others' texts are not in {texts}, or their records are not all there.")
    if again.other_weights:
        print(f"{again.other_weights} of them were recorded with other weights than this model has.")
    _print_differences(again.differences, limit)
    return not (found.differences or again.differences)


def export_file(file: Path, target: Path) -> None:
    if target.resolve() == file.resolve():
        raise ValueError(f"--to {target} is the ledger itself; give another file.")
    print(f"{write_parquet(_records(file), target)} records are in {target}.")


def show_file(file: Path, *, decision: str | None, limit: int) -> None:
    kept: dict[str, list[LedgerRecord]] = {}
    for record in _records(file):
        if record.decision_id.startswith(decision or ""):
            kept.setdefault(record.decision_id, []).append(record)
            if len(kept) > limit:
                del kept[next(iter(kept))]
    if not kept:
        what = "no records" if decision is None else f"no decision {decision!r}"
        raise ValueError(f"{file} holds {what}; give {'a ledger with some' if decision is None else 'another id'}.")
    for number, records in enumerate(kept.values()):
        print("\n" if number else "", end="")
        _print_decision(records)


def _print_decision(records: list[LedgerRecord]) -> None:
    console, first = Console(), records[0]
    heading = f"decision {first.decision_id}, question {first.question_id or first.question_sha256[:12]}"
    console.print(Text(printable(heading), style="bold"))
    model = f"{first.model_id or 'model in memory'}, variant {first.variant}, weights {first.weights_sha256[:12]}"
    console.print(Text(printable(model)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rank", "#", "support", "attention", "permission", "effective"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("selected", "candidate", "source", "effective time", "duplicates"):
        table.add_column(name, overflow="fold")
    for record in sorted(records, key=lambda record: record.rank):
        chosen = "revoked" if record.revoked else {None: "", True: "yes", False: "no"}[record.selected]
        texts = (record.candidate_id or record.text_sha256[:12], record.source, record.effective_time)
        table.add_row(
            str(record.rank),
            str(record.index),
            *map(_number, (record.probability, record.attention, record.permission, record.effective)),
            chosen,
            *(Text(printable(text or "")) for text in texts),
            Text(printable((record.duplicate_cluster or "")[:24])),
        )
    console.print(table)
    mass = "" if first.mass is None else f"effective mass {first.mass:.3f}, "
    written = f", written {printable(first.written_at)}" if first.written_at else ""
    console.print(f"{mass}answerability {first.answerability:.3f}{written}", highlight=False, markup=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _records(file: Path) -> Iterator[LedgerRecord]:
    return read_ledger(file, on_note=_note)


def _note(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr)


def _count(differences: list[Difference]) -> str:
    return f"{len(differences) or 'no'} difference{'' if len(differences) == 1 else 's'}"


def _print_differences(differences: list[Difference], limit: int) -> None:
    for difference in differences[:limit]:
        print(printable(str(difference)))
    if len(differences) > limit:
        print(f"and {len(differences) - limit} more; --limit shows more of them.")
