"""Files that a visitor hands in: rows of our JSONL, HotpotQA, 2WikiMultihopQA or MuSiQue, within bounds."""

from __future__ import annotations

from pathlib import Path

from ..data.readers import read_rows
from ..data.schema import EvidenceRow
from .inputs import Passages, bounded, read_question

MAX_FILE = 2_000_000  # bytes
MAX_ROWS = 100
MAX_CANDIDATES = 128  # of a row of a batch
MAX_ROW = 100_000  # characters of the candidates of a row of a batch
FILE_TYPES = [".jsonl", ".json"]
LEVELS = ("sentence", "passage")


def read_file(path: str | None, level: str) -> list[EvidenceRow]:
    """The rows of a file.

    Args:
        level: unit of the multi-hop formats, one of `LEVELS`.

    Raises:
        ValueError: there is no file, it is too large or compressed, or a row cannot be read. The message names the
            file as the visitor knows it, and no folder of the server.
    """
    if not path:
        raise ValueError("There is no file: choose one.")
    file = Path(path)
    if file.suffix.lower() not in FILE_TYPES:
        raise ValueError(f"{file.name} must be a file with rows of JSON, named .jsonl or .json.")
    if file.stat().st_size > MAX_FILE:
        raise ValueError(f"{file.name} is larger than {MAX_FILE // 1_000_000} MB: split it.")
    with open(file, "rb") as stream:
        if stream.read(2) == b"\x1f\x8b":  # what it unpacks to has no bound
            raise ValueError(f"{file.name} is compressed: unpack it first.")
    if level not in LEVELS:
        raise ValueError(f"The level must be one of: {', '.join(LEVELS)}.")
    try:
        rows = read_rows(file, level=level, limit=MAX_ROWS + 1)
    except ValueError as error:
        raise ValueError(str(error).replace(str(file), file.name)) from None
    if len(rows) > MAX_ROWS:
        raise ValueError(f"{file.name} has more than {MAX_ROWS} rows: split it.")
    return rows


def read_batch(path: str | None, level: str) -> list[EvidenceRow]:
    """The rows of a file, each within the bounds of a batch.

    Raises:
        ValueError: as in `read_file`, or a row with too many candidates or too long a question.
    """
    rows = read_file(path, level)
    for number, row in enumerate(rows, start=1):
        if len(row.candidates) > MAX_CANDIDATES:
            raise ValueError(
                f"Row {number} has {len(row.candidates)} candidates, more than {MAX_CANDIDATES}: leave some out, or "
                "read passages instead of sentences."
            )
        characters = sum(len(candidate.title or "") + len(candidate.text) for candidate in row.candidates)
        if characters > MAX_ROW:
            raise ValueError(f"Row {number} has {characters:,} characters: shorten it to {MAX_ROW:,}.")
        _in_row(number, read_question, row.question)
    return rows


def read_row(path: str | None, number: int | float | None) -> tuple[str, Passages, int]:
    """Question and passages of one row (counted from 1), and how many rows the file has.

    Raises:
        ValueError: as in `read_file`, there is no such row, or it is larger than the page takes.
    """
    rows = read_file(path, "passage")
    if not isinstance(number, int | float) or not 1 <= number <= len(rows) or number != int(number):
        raise ValueError(f"The row must be a whole number from 1 to {len(rows)}.")
    row = rows[int(number) - 1]
    passages = tuple((candidate.title or None, candidate.text.strip()) for candidate in row.candidates)
    question = _in_row(int(number), read_question, row.question)
    return question, _in_row(int(number), bounded, passages), len(rows)


def _in_row(number, check, value):
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"Row {number}: {error}") from None
