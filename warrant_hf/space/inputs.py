"""What a visitor may send: read, and bounded on the server, whatever the browser allows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MAX_QUESTION = 1_000  # characters
MAX_PASSAGES = 32
MAX_CHARACTERS = 20_000  # of all passages together

# Hashable, so that a result can be remembered: (title or None, text) pairs.
Passages = tuple[tuple[str | None, str], ...]


def read_question(question: Any) -> str:
    """The question without space around it.

    Raises:
        ValueError: not text, empty, or too long.
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError("The question is empty: write one.")
    if len(question) > MAX_QUESTION:
        raise ValueError(f"The question has {len(question):,} characters: shorten it to {MAX_QUESTION:,}.")
    return question.strip()


def read_passages(text: Any) -> Passages:
    """The passages in a text: blocks between blank lines, each with an optional first line `# title`.

    Raises:
        ValueError: not text, no passage, a title without text, or more than the limits allow.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("There are no passages: write at least one, with a blank line between two.")
    if len(text) > MAX_CHARACTERS:  # before any other work on it
        raise ValueError(f"The passages have {len(text):,} characters: shorten them to {MAX_CHARACTERS:,}.")
    found = []
    for number, block in enumerate(re.split(r"\n[ \t]*\n\s*", text.replace("\r\n", "\n").strip()), start=1):
        title = None
        if block.startswith("# "):
            first, _, block = block.partition("\n")
            title = first[2:].strip() or None
        if not block.strip():
            raise ValueError(f"Passage {number} has a title but no text: write the text on the line below it.")
        found.append((title, block.strip()))
    return bounded(tuple(found))


def read_table(rows: Any) -> Passages:
    """The passages in rows of title and text; rows with neither are passed over.

    Raises:
        ValueError: no passage, a title without text, or more than the limits allow.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ValueError("The passages must be rows of title and text.")
    found = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 2:
            raise ValueError(f"Row {number} of the passages must have a title and a text.")
        title, text = ("" if cell is None else str(cell).strip() for cell in row)
        if title and not text:
            raise ValueError(f"Row {number} has a title but no text: write the text beside it.")
        if text:
            found.append((title or None, text))
    if not found:
        raise ValueError("There are no passages: write the text of at least one.")
    return bounded(tuple(found))


def read_passage_list(items: Any) -> Passages:
    """The passages in a list of texts or of `{"text", "title"?}`, as the programming interface takes it.

    Raises:
        ValueError: another shape, no passage, or more than the limits allow.
    """
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        raise ValueError("passages must be a list of at least one text or {text, title}.")
    found = []
    for number, item in enumerate(items[: MAX_PASSAGES + 1]):
        item = {"text": item} if isinstance(item, str) else item
        text = item.get("text") if isinstance(item, dict) else None
        title = item.get("title") if isinstance(item, dict) else None
        if not isinstance(text, str) or not text.strip() or not isinstance(title, str | None):
            raise ValueError(f"passages[{number}] must be a text or {{text, title}} with some text in it.")
        found.append((title, text))
    return bounded(tuple(found))


def read_positions(positions: Any, count: int, name: str = "closed") -> tuple[int, ...]:
    """Positions of passages, sorted, each once.

    Raises:
        ValueError: something that is no position of one of `count` passages.
    """
    if not isinstance(positions, Sequence) or isinstance(positions, str):
        raise ValueError(f"{name} must be a list of passage positions, counted from 0.")
    for item in positions:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < count:
            raise ValueError(f"{name} must hold passage positions from 0 to {count - 1}.")
    return tuple(sorted(set(positions)))


def read_permissions(values: Any, count: int) -> tuple[float | None, ...]:
    """One permission per passage: 0 to 1, or `None` for the learned one. An empty list keeps all as learned.

    Raises:
        ValueError: another number of them, or something else among them.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError("permissions must be a list of numbers from 0 to 1, with null for the learned permission.")
    if len(values) not in (0, count):
        raise ValueError(f"permissions has {len(values)} entries for {count} passages: give one each.")
    for number, value in enumerate(values):
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (numeric and 0 <= value <= 1):  # NaN is neither
            raise ValueError(
                f"permissions[{number}] must be a number from 0 to 1, or null for the learned permission."
            )
    return tuple(None if value is None else float(value) for value in values) or (None,) * count


def bounded(passages: Passages) -> Passages:
    """The passages, if they are within the limits.

    Raises:
        ValueError: there are too many, or they are too long.
    """
    if len(passages) > MAX_PASSAGES:
        raise ValueError(f"There are more than {MAX_PASSAGES} passages: leave some out.")
    characters = sum(len(title or "") + len(text) for title, text in passages)
    if characters > MAX_CHARACTERS:
        raise ValueError(f"The passages have {characters:,} characters: shorten them to {MAX_CHARACTERS:,}.")
    return passages
