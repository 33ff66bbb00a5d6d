"""Many questions from a file: one at a time, with progress, a way to stop, filters, and the ledger of decisions."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path

from ..data.schema import EvidenceRow
from ..diagnostics.ledger import describe_model, ledger_records
from ..diagnostics.ledger_files import LedgerWriter
from .render import enough, passage_name
from .selectors import Selector
from .verdicts import VERDICTS, verdict

#: Columns that count passages, and the filters: rows with more than none.
FILTERS = ("evidence missed", *(VERDICTS[which][1] for which in ((True, False), (False, True))))
HEADERS = ("row", "question", "best passage", "probability", "answerable", *FILTERS, "id", "notes")


@dataclass
class Batch:
    """What a batch has given so far: rows of the table, under `HEADERS`, and lines of the ledger.

    `answerable` counts the questions with enough evidence; `None` where the model is not calibrated to say so.
    """

    total: int
    rows: list[list] = field(default_factory=list)
    ledger: bytes = b""
    stopped: bool = False
    answerable: int | None = None

    def told(self) -> str:
        done = f"{len(self.rows)} of {self.total} questions"
        if self.stopped:
            return f"Stopped after {done}. The table and the files hold these."
        return f"Done: {done}." if len(self.rows) == self.total else f"{done} read …"

    def summary(self) -> str:
        """How many missed evidence and how many can be answered, as far as labels and calibration tell."""
        missed = [row[HEADERS.index("evidence missed")] for row in self.rows]
        labelled = [count for count in missed if count != ""]
        said = []
        if labelled:
            count = sum(count > 0 for count in labelled)
            said.append(f"Some evidence was missed in {count} of the {len(labelled)} that have labels")
        if self.rows and self.answerable is not None:
            said.append(f"{self.answerable} of {len(self.rows)} are judged answerable")
        return " ".join(f"{sentence}." for sentence in said)


def run(selector: Selector, rows: list[EvidenceRow], stop: Callable[[], bool]) -> Iterator[Batch]:
    """Ranks one row after the other and gives the batch after each; between two it may be stopped.

    Raises:
        ValueError: a row that the model refuses; the message names it.
    """
    batch = Batch(len(rows), answerable=None if selector.calibration is None else 0)
    described = selector.run(describe_model)
    # The writer of ledgers knows files; what it wrote is taken from there.
    with tempfile.TemporaryDirectory() as folder, LedgerWriter(Path(folder) / "ledger.jsonl") as ledger:
        for number, row in enumerate(rows, start=1):
            if stop():
                batch.stopped = True
                break
            passages = [candidate.to_passage() for candidate in row.candidates]
            try:
                result = selector.run(methodcaller("rank", row.question, passages))
                ledger.append(ledger_records(result, passages, described, question_ids=row.id, top_k=_golds(row)))
            except ValueError as error:
                raise ValueError(f"Row {number}: {error}") from None
            batch.rows.append(_line(number, row, result))
            if batch.answerable is not None:
                batch.answerable += enough(result)
            yield batch
        batch.ledger = ledger.path.read_bytes()
    yield batch


def filtered(batch: Batch | None, chosen: list[str]) -> list[list]:
    """The rows that pass every chosen filter.

    Raises:
        ValueError: an unknown filter.
    """
    unknown = [name for name in chosen or () if name not in FILTERS]
    if unknown:
        raise ValueError(f"Filters must be among: {', '.join(FILTERS)}.")
    columns = [HEADERS.index(name) for name in chosen or ()]
    rows = [] if batch is None else batch.rows
    return [row for row in rows if all(row[column] not in ("", 0) for column in columns)]


def table_file(batch: Batch) -> bytes:
    """The table as CSV; a cell that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # a lone \r would end the row
    writer.writerow(HEADERS)
    for row in batch.rows:
        writer.writerow(
            "'" + cell if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell for cell in row
        )
    return text.getvalue().encode()


def _golds(row: EvidenceRow) -> int | None:
    """How many candidates are evidence, where labels say so: as many are selected."""
    return sum(row.labels) or None if row.labels is not None else None


def _line(number: int, row: EvidenceRow, result: dict) -> list:
    evidence, golds = result["evidence"], _golds(row)
    missed: int | str = ""  # unknown
    if golds is not None:
        missed = golds - sum(row.candidates[item["index"]].label == 1 for item in evidence[:golds])
    found = [verdict(item, len(evidence)) for item in evidence]
    counts = [sum(each is not None and each[0] == name for each in found) for name in ("blocked", "unread")]
    best = evidence[0]
    return [
        number, row.question, passage_name(best), round(best["probability"], 3), round(result["answerability"], 3),
        missed, *counts, row.id, " ".join(result["notes"]),
    ]  # fmt: skip
