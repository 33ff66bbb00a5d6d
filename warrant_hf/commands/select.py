"""`warrant-hf select`: one question at the prompt, rows on standard input, or a JSONL file into another."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.readers import decoded, iter_records
from ..data.schema import DataError, EvidenceRow, validate_row
from ..data.strict_json import JsonError, parse_json
from ..diagnostics import describe_model, ledger_records
from ..modeling.base_weights import sha256_of
from ..whole_file import check_target, replaced_when_complete
from .ledger import opened
from .loading import load_model
from .select_parts import process_state, score_in_parts, started_by_launcher
from .terminal import print_evidence, progress

# Fields of the result that go into an output row, beside everything the input row held.
RESULT_FIELDS = ("evidence", "mass", "answerability", "notes")
# Batches that are read and ranked together.
BATCHES_AT_ONCE = 8


def run(
    *,
    question: str | None,
    passages: list[str],
    passages_file: Path | None,
    jsonl: tuple[Path, Path] | None,
    as_json: bool,
    revoke: list[int],
    revoke_by: str,
    top_k: int | None,
    ledger: Path | None,
    model: str | None,
    batch_size: int,
    resume: bool = False,
) -> None:
    options = {"revoke_by": revoke_by, "top_k": top_k, "batch_size": batch_size}
    if jsonl is not None:
        if question is not None or passages or passages_file or as_json:
            raise ValueError("--jsonl takes its questions and passages from a file; leave the other inputs out.")
        if ledger is not None and ledger.resolve() in (path.resolve() for path in jsonl):
            raise ValueError(f"--ledger {ledger} is a file of --jsonl too; give another one.")
        _file_to_file(*jsonl, model, revoke, options, ledger, resume)
        return
    if resume:
        raise ValueError("--resume goes on with a file; give --jsonl IN OUT.")
    if question is None and (passages or passages_file):
        raise ValueError("there are passages but no question; add --question, or give a file of rows with --jsonl.")
    if question is not None:
        records = [("command line", _row_of_options(question, passages, passages_file))]
    elif sys.stdin is None or sys.stdin.isatty():
        raise ValueError("there is nothing to rank; give --question and --passage, --jsonl IN OUT, or rows on stdin.")
    else:
        records = _records_of_text(sys.stdin.buffer.read())
    # All rows are checked before one is scored.
    rows = [(record, _checked(where, record, revoke)) for where, record in records]
    if not rows:
        raise ValueError("standard input: it holds no rows; write one JSON object per line.")
    selector = load_model(model)
    with opened(ledger) as writer, progress() as bar:
        task = bar.add_task("windows of text", total=None)
        options["progress"] = lambda done, total: bar.update(task, completed=done, total=total)
        outputs = list(_scored(selector, rows, revoke, options, writer))
    for number, output in enumerate(outputs):
        if as_json:
            print(_json_line(output, ascii_only=not _prints_unicode()))
        else:
            print("\n" if number else "", end="")
            print_evidence({"question": rows[number][1].question, **output})


def _file_to_file(
    source: Path,
    target: Path,
    model: str | None,
    revoke: list[int],
    options: dict[str, Any],
    ledger: Path | None,
    resume: bool,
) -> None:
    """Two passes: a bad last row of a long file is found before the first row is scored, not hours later."""
    in_parts = resume or started_by_launcher()
    if in_parts and ledger is not None:  # a killed run has written records of rows that the next one scores again
        raise ValueError("--ledger goes with one process and without --resume; leave it out, or score at one go.")
    if not source.is_file():
        raise DataError(f"{source}: no such file; give the path of a JSONL file.")
    check_target(target)

    def rows() -> Iterator[tuple[dict, EvidenceRow]]:
        for where, record in iter_records(source):
            yield record, _checked(where, record, revoke, may_be_empty=True)

    count = sum(1 for _ in rows())
    if not count:
        raise DataError(f"{source}: the file holds no rows; write one JSON object per line.")
    selector = load_model(model)
    if in_parts:
        _in_parts(selector, rows(), count, source, check_target(target), revoke, options, resume)
        return
    with opened(ledger) as writer, replaced_when_complete(target) as file, progress() as bar:
        task = bar.add_task("questions", total=count)
        for output in _scored(selector, rows(), revoke, options, writer):
            file.write(_json_line(output) + "\n")
            bar.advance(task)


def _in_parts(
    selector, rows, count: int, source: Path, target: Path, revoke: list[int], options: dict[str, Any], resume: bool
) -> None:
    state = process_state()
    if state.num_processes > 1:
        selector = selector.to(state.device)
    model = describe_model(selector)
    facts = {
        "file": sha256_of(source),
        "rows": count,
        "part_rows": BATCHES_AT_ONCE * options["batch_size"],
        "model": model["weights_sha256"],
        "dtype": model["dtype"],
        "revoke": revoke,
        "revoke_by": options["revoke_by"],
        "top_k": options["top_k"],
        "warrant_hf": model["warrant_hf"],
    }

    def score(part):
        return map(_json_line, _scored(selector, part, revoke, options, None))

    with progress() as bar:
        task = bar.add_task("questions", total=None, visible=state.is_main_process)
        score_in_parts(
            rows,
            score,
            target,
            facts=facts,
            state=state,
            resume=resume,
            on_start=lambda total: bar.update(task, total=total),
            on_row=lambda: bar.advance(task),
        )
    state.destroy_process_group()


def _scored(
    model, rows: Iterable[tuple[dict, EvidenceRow]], revoke: list[int], options: dict[str, Any], writer
) -> Iterator[dict]:
    """Each record with the fields of its result; a record that was scored before gets new ones.

    What a ledger is to hold is written before it is given away, and with all candidates, whatever `top_k` says.
    """
    rows, top_k = iter(rows), options["top_k"]
    options = {**options, "top_k": None}
    facts = None if writer is None else describe_model(model)
    # More than one batch at a time: the model puts questions of similar length together.
    while chunk := list(islice(rows, BATCHES_AT_ONCE * options["batch_size"])):
        passages = [[candidate.to_dict() for candidate in row.candidates] for _, row in chunk]
        results = model.rank_batch(
            [row.question for _, row in chunk], passages, revoke=[revoke] * len(chunk), **options
        )
        if writer is not None:
            identifiers = [record.get("id") for record, _ in chunk]
            given = {"question_ids": identifiers, "revoke_by": options["revoke_by"], "top_k": top_k}
            writer.append(ledger_records(results, passages, facts, **given))
        for (record, _), result in zip(chunk, results, strict=True):
            result["evidence"] = result["evidence"][:top_k]
            yield {**record, **{field: result[field] for field in RESULT_FIELDS}}


def _checked(where: str, record: Any, revoke: list[int], may_be_empty: bool = False) -> EvidenceRow:
    row = validate_row(record, where=where, default_id=where, may_be_empty=may_be_empty)
    if revoke and not row.candidates:
        raise DataError(f"{where}: --revoke {revoke[0]} names no candidate; the row has none.")
    last = len(row.candidates) - 1
    for index in revoke:
        if index > last:
            raise DataError(f"{where}: --revoke {index} names no candidate; the row has candidates 0 to {last}.")
    return row


def _row_of_options(question: str, passages: list[str], passages_file: Path | None) -> dict:
    candidates: list[Any] = list(passages)
    if passages_file is not None:
        if not passages_file.is_file():
            raise DataError(f"{passages_file}: no such file; give the path of a text, .json or .jsonl file.")
        if {".json", ".jsonl"} & set(passages_file.suffixes):
            candidates += [record for _, record in iter_records(passages_file)]
        else:
            text = decoded(passages_file.read_bytes(), str(passages_file))
            candidates += [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    return {"question": question, "candidates": candidates}


def _records_of_text(content: bytes) -> list[tuple[str, Any]]:
    """One JSON object (over any number of lines), a JSON list of them, or one a line."""
    where = "standard input"
    text = decoded(content, where)
    try:
        value = parse_json(text)
    except JsonError:  # or one a line; what is wrong is found again there
        value = None
    if isinstance(value, list):
        return [(f"{where}, item {number}", item) for number, item in enumerate(value, start=1)]
    if value is not None:
        return [(where, value)]
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append((f"{where}, line {number}", parse_json(line)))
        except JsonError as error:
            raise DataError(
                f"{where}, line {number}: this is not JSON ({error}); write one JSON object per line."
            ) from None
    return records


# Readers that split lines at U+0085, U+2028 or U+2029 exist, and a lone surrogate has no UTF-8 form.
_ESCAPED = re.compile("[\\x85\\u2028\\u2029\\ud800-\\udfff]")


def _json_line(value: dict, ascii_only: bool = False) -> str:
    text = json.dumps(value, ensure_ascii=ascii_only)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _prints_unicode() -> bool:
    """Whether stdout takes any character; a code page of Windows, or LANG=C, does not."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")
