"""Read evidence-selection data: our JSONL, HotpotQA, 2WikiMultihopQA and MuSiQue, from files or from `datasets`.

Line-oriented files are read with `json`, one line at a time: a column-oriented reader infers types over the first
block and then rejects, or pads with nulls, rows of another shape. Only "\\n" ends a line, so U+2028, U+2029 and U+0085
inside a string do no harm and line numbers agree with an editor's.

Rules that hold for every format:

* candidate order is input order, and no candidate is dropped except sentences without any text, whose index is kept
  free so that supporting-fact indices stay right;
* texts are stripped; the title goes to its own field; `source` is `{"passage": p, "sentence": s}` (sentence level) or
  `{"passage": p}` (passage level), with positions counted from 0 in the original context;
* a supporting fact that names no readable sentence (absent passage, index past the end, empty sentence) is listed in
  the row's extra field `missing_gold`; rows without any gold are kept, with every label 0: abstention cases;
* a gold title that occurs twice means the first passage in which the fact can be read, and literal copies of that
  sentence in other passages of the same title.
"""

from __future__ import annotations

import gzip
import io
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from .evidence_world import EvidenceWorld
from .schema import Candidate, DataError, EvidenceRow, validate_row
from .strict_json import JsonError, parse_json

logger = logging.getLogger(__name__)

FORMATS = ("jsonl", "hotpotqa", "2wiki", "musique")
Level = Literal["sentence", "passage"]

_WORLD = re.compile(r"world:(\d+)(?::(\d+))?")


def read_rows(
    path: str | Path, *, format: str = "auto", level: Level = "sentence", limit: int | None = None
) -> list[EvidenceRow]:
    """Read the rows of a file.

    Args:
        path: JSON lines or one JSON list, plain or gzip'd (told apart by content, not by name), or a `.parquet` file;
            or `world:N` or `world:N:SEED` for N questions of `EvidenceWorld`, which needs no file.
        format: "jsonl" (ours), "hotpotqa", "2wiki", "musique", or "auto": told for each row from its keys.
        level: unit of the multi-hop formats. MuSiQue has paragraph-level gold only, so there a candidate is a
            paragraph at either level.
        limit: read at most this many rows.

    Raises:
        DataError: with file, line (or item), field, value and remedy.
    """
    if str(path).startswith("world:"):
        numbered, remedy = _generated(str(path)), "ask for at least one"
    elif not Path(path).is_file():
        raise DataError(f"{path}: no such file; give the path of a JSON, JSONL or Parquet file.")
    elif Path(path).suffix == ".parquet":
        numbered, remedy = _parquet(Path(path)), "give a file with rows"
    else:
        numbered, remedy = iter_records(Path(path)), "write one JSON object per line"
    rows = _convert(numbered, format=format, level=level, limit=limit)
    if not rows and limit != 0:
        raise DataError(f"{path}: it holds no rows; {remedy}.")
    return rows


def rows_from(
    records: Iterable[Any],
    *,
    format: str = "auto",
    level: Level = "sentence",
    limit: int | None = None,
    name: str = "rows",
) -> list[EvidenceRow]:
    """The same as `read_rows` for records at hand: a `datasets.Dataset`, or any iterable of dicts."""
    numbered = ((f"{name}, row {number}", record) for number, record in enumerate(records, start=1))
    return _convert(numbered, format=format, level=level, limit=limit)


def detect_format(record: Mapping[str, Any], *, where: str) -> str:
    """Which of `FORMATS` a record has, from its keys."""
    if "candidates" in record or "passages" in record:
        return "jsonl"
    if "context" in record:
        return "2wiki" if "evidences" in record else "hotpotqa"
    if "paragraphs" in record:
        return "musique"
    keys = ", ".join(f"`{key}`" for key in list(record)[:8]) or "no keys"
    raise DataError(
        f"{where}: the format is unknown, the row has {keys}; give rows with `candidates` (our JSONL), `context` "
        "(HotpotQA, 2Wiki) or `paragraphs` (MuSiQue)."
    )


def _convert(numbered: Iterable[tuple[str, Any]], *, format: str, level: str, limit: int | None) -> list[EvidenceRow]:
    if format not in ("auto", *FORMATS):
        raise DataError(f"format is {format!r}; use one of 'auto', {', '.join(map(repr, FORMATS))}.")
    if level not in ("sentence", "passage"):
        raise DataError(f"level is {level!r}; use 'sentence' or 'passage'.")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise DataError(f"limit is {limit!r}; use a whole number from 0 up, or None for all rows.")
    rows = []
    for number, (where, record) in enumerate(islice(numbered, limit), start=1):
        if not isinstance(record, (Mapping, EvidenceRow)):
            validate_row(record, where=where)  # raises: not an object
        kind = "jsonl" if isinstance(record, EvidenceRow) else format
        if kind == "auto":
            kind = detect_format(record, where=where)
        if kind == "jsonl":
            row = validate_row(record, where=where, default_id=str(number))
        elif kind == "musique":
            row = _from_musique(record, where=where, default_id=str(number))
        else:
            row = _from_hotpotqa(record, where=where, default_id=str(number), level=level)
        rows.append(row)
    incomplete = sum(1 for row in rows if "missing_gold" in (row.model_extra or {}))
    if incomplete:
        logger.info("%d of %d rows name evidence that is not among their candidates.", incomplete, len(rows))
    return rows


# --- files ------------------------------------------------------------------------------------------------------


def _generated(name: str) -> Iterator[tuple[str, EvidenceRow]]:
    wanted = _WORLD.fullmatch(name)
    if not wanted:
        raise DataError(f"{name}: write world:N or world:N:SEED, such as world:240:1.")
    rows = EvidenceWorld(int(wanted[2] or 0)).generate(int(wanted[1]))
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    # Not through `datasets`, which would copy the file to its cache and show progress on stderr.
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: the Parquet file is damaged ({reason}); fetch it again.") from None
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def iter_records(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, record) for each line of a JSONL file or each item of a JSON list."""
    with open(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.open(raw) if compressed else raw
        try:
            with io.BufferedReader(stream) as lines:
                if lines.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                    yield from _items(path, lines.read())
                else:
                    yield from _lines(path, lines)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: the gzip stream is damaged ({error}); fetch the file again.") from None


def _lines(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):  # bytes: only b"\n" ends a line
        where = f"{path}, line {number}"
        text = decoded(line, where) if number == 1 else _utf8(line, where)
        if not text.strip(" \t\r\n"):
            continue
        try:
            record = parse_json(text)
        except JsonError as error:
            raise DataError(f"{where}: this is not JSON ({error}); write one JSON object per line.") from None
        yield where, record


def _items(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    try:
        items = parse_json(decoded(content, str(path)))
    except JsonError as error:
        place = "" if error.line is None else f", line {error.line}"
        raise DataError(f"{path}{place}: this is not JSON ({error}); write one JSON list of rows.") from None
    for number, item in enumerate(items, start=1):
        yield f"{path}, item {number}", item


def decoded(data: bytes, where: str) -> str:
    """The text of a file, without a byte order mark; `where` opens the message of a `DataError`."""
    return _utf8(data.removeprefix(b"\xef\xbb\xbf"), where)


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise DataError(f"{where}: byte {error.start} is 0x{byte:02x}, not UTF-8; encode it as UTF-8.") from None


# --- multi-hop formats ------------------------------------------------------------------------------------------


def _from_hotpotqa(record: Mapping[str, Any], *, where: str, default_id: str, level: str) -> EvidenceRow:
    passages = _passages(record, where)
    facts = _facts(record, where)
    gold, missing = _resolve(facts or [], passages, level)
    candidates = []
    for p, (title, sentences) in enumerate(passages):
        if level == "sentence":
            units = [(text, {"passage": p, "sentence": s}, (p, s) in gold) for s, text in enumerate(sentences)]
        else:
            units = [(" ".join(filter(None, sentences)), {"passage": p}, any(at == p for at, _ in gold))]
        for text, source, is_gold in units:
            if text:
                candidates.append(_candidate(text, title, None if facts is None else int(is_gold), source))
    extra = {} if facts is None else {"supporting_facts": [list(fact) for fact in facts]}
    if missing:
        extra["missing_gold"] = [{"title": title, "sent_id": sent_id} for title, sent_id in missing]
    return _row(record, candidates, extra, drop="context", where=where, default_id=default_id)


def _passages(record: Mapping[str, Any], where: str) -> list[tuple[str, list[str]]]:
    """`context` as (title, stripped sentences) pairs, from any of its published shapes."""
    context = _parsed(record.get("context"), where, "context")
    if isinstance(context, Mapping):  # Hub rows: a dict of columns
        titles, texts = context.get("title"), context.get("sentences", context.get("content"))
        if not isinstance(titles, list) or not isinstance(texts, list) or len(titles) != len(texts):
            raise DataError(f"{where}: `context` must hold lists `title` and `sentences` of equal length; correct it.")
        context = list(zip(titles, texts, strict=True))
    if not isinstance(context, list):
        raise DataError(f"{where}: `context` must be a list of passages; write [[title, [sentence, …]], …].")
    passages = []
    for p, passage in enumerate(context):
        if isinstance(passage, Mapping):
            passage = (passage.get("title"), passage.get("sentences"))
        if (
            not isinstance(passage, (list, tuple))
            or len(passage) != 2
            or not isinstance(passage[0], str)
            or not isinstance(passage[1], (list, tuple))
        ):
            raise DataError(f"{where}: `context[{p}]` must be a title and a list of sentences; write [title, […]].")
        for s, sentence in enumerate(passage[1]):
            if not isinstance(sentence, str):
                raise DataError(f"{where}: `context[{p}]` sentence {s} is {sentence!r}, not a string; write a string.")
        passages.append((passage[0], [sentence.strip() for sentence in passage[1]]))
    return passages


def _facts(record: Mapping[str, Any], where: str) -> list[tuple[str, int]] | None:
    """`supporting_facts` as (title, sentence index) pairs; None where the row is unlabelled (hidden test sets)."""
    facts = _parsed(record.get("supporting_facts"), where, "supporting_facts")
    if facts is None:
        return None
    if isinstance(facts, Mapping):
        titles, indices = facts.get("title"), facts.get("sent_id")
        if not isinstance(titles, list) or not isinstance(indices, list) or len(titles) != len(indices):
            raise DataError(f"{where}: `supporting_facts` must hold lists `title` and `sent_id` of equal length.")
        facts = list(zip(titles, indices, strict=True))
    if not isinstance(facts, list):
        raise DataError(f"{where}: `supporting_facts` must be a list; write [[title, sentence index], …].")
    pairs = []
    for number, fact in enumerate(facts):
        pair = (fact.get("title"), fact.get("sent_id")) if isinstance(fact, Mapping) else fact
        if (
            not isinstance(pair, (list, tuple))
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or isinstance(pair[1], bool)
            or not isinstance(pair[1], int)
        ):
            raise DataError(f"{where}: `supporting_facts[{number}]` is {fact!r}; write a title and a sentence index.")
        pairs.append((pair[0], pair[1]))
    if not pairs and record.get("answer") is None:
        return None
    return list(dict.fromkeys(pairs))


def _resolve(
    facts: list[tuple[str, int]], passages: list[tuple[str, list[str]]], level: str
) -> tuple[set[tuple[int, int]], list[tuple[str, int]]]:
    """Positions (passage, sentence) of the facts, and the facts that cannot be read anywhere."""
    gold, missing = set(), []
    for title, index in facts:
        named = [(p, sentences) for p, (name, sentences) in enumerate(passages) if name == title]
        found = [(p, texts[index]) for p, texts in named if 0 <= index < len(texts) and texts[index]]
        if found:
            gold.update((p, index) for p, text in found if text == found[0][1])
        elif level == "passage" and named:
            gold.add((named[0][0], index))  # the passage is named, whatever its sentence index says
        else:
            missing.append((title, index))
    return gold, missing


def _from_musique(record: Mapping[str, Any], *, where: str, default_id: str) -> EvidenceRow:
    paragraphs = record.get("paragraphs")
    if not isinstance(paragraphs, list):
        raise DataError(f"{where}: `paragraphs` must be a list; write [{{title, paragraph_text, is_supporting}}, …].")
    candidates = []
    for p, paragraph in enumerate(paragraphs):
        text = paragraph.get("paragraph_text", paragraph.get("text")) if isinstance(paragraph, Mapping) else None
        if not isinstance(text, str):
            raise DataError(f"{where}: `paragraphs[{p}].paragraph_text` is {text!r}, not a string; write a string.")
        supporting = paragraph.get("is_supporting")
        if text.strip():
            if supporting not in (None, 0, 1):
                raise DataError(
                    f"{where}: `paragraphs[{p}].is_supporting` is {supporting!r}; write true, false or leave it out."
                )
            label = None if supporting is None else int(supporting)
            candidates.append(_candidate(text.strip(), paragraph.get("title"), label, {"passage": p}))
    return _row(record, candidates, {}, drop="paragraphs", where=where, default_id=default_id)


def _parsed(value: Any, where: str, field: str) -> Any:
    """Some Hub copies hold nested columns as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except JsonError as error:
        raise DataError(f"{where}: `{field}` is text but not JSON ({error}); write a list.") from None


def _candidate(text: str, title: Any, label: int | None, source: dict[str, int]) -> Candidate:
    fields: dict[str, Any] = {"text": text, "source": source}
    if title is not None:
        fields["title"] = title.strip() if isinstance(title, str) else str(title)
    if label is not None:
        fields["label"] = label
    return Candidate(**fields)


def _row(
    record: Mapping[str, Any],
    candidates: list[Candidate],
    extra: dict[str, Any],
    *,
    drop: str,
    where: str,
    default_id: str,
) -> EvidenceRow:
    fields = {key: value for key, value in record.items() if key not in (drop, "_id", "candidates")}
    fields["id"] = record.get("id", record.get("_id"))
    if not candidates:
        raise DataError(f"{where}: `{drop}` holds no text; give at least one passage.")
    return validate_row({**fields, **extra, "candidates": candidates}, where=where, default_id=default_id)
