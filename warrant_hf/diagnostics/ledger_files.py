"""Ledgers as files: JSON lines that only grow, and Parquet for tables.

What a writer promises:

* A record is one line, written with one call at the end of the file. Killing the process loses at most the record
  that was being written, and earlier lines are never touched.
* `append` returns when its records are on the disk (flush and fsync, once a call), so that a power cut loses at most
  the records of the call that it interrupts.
* One writer at a time: a second one is refused, in this process or another, by a lock on `FILE.lock`. The lock goes
  with its process, the empty file stays. Reading needs no lock.
* A line that a kill has torn is dropped when the ledger is next opened for writing, and left out by readers; both say
  so. A last line that is whole and only lacks its line feed is kept.

Lines are ASCII, so that no reader can split them at U+2028, U+2029 or U+0085.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock, Timeout

from ..data.schema import DataError
from ..whole_file import check_target
from .ledger_schema import LedgerRecord, ledger_record

logger = logging.getLogger(__name__)

# Every line of ours opens like this: how the stump of a first line is told from somebody else's file.
_OPENING = b'{"schema_version":"'
_PARQUET = b"PAR1"
# Column of a Parquet file with what a newer minor version has beyond our fields, as JSON.
_UNKNOWN = "unknown_fields"
_ROWS_AT_A_TIME = 10_000


class LedgerWriter:
    """Appends records to a ledger of JSON lines, which is made if there is none.

        >>> with LedgerWriter("ledger.jsonl") as ledger:
        ...     ledger.append(ledger_records(result, passages, model))

    Args:
        path: the file; its folder must exist.
        on_note: is called with one sentence when a torn line was dropped.

    Raises:
        ValueError: the place cannot be written, or another writer has it.
        DataError: the file is no ledger, or one of a newer major version.
    """

    def __init__(self, path: str | Path, *, on_note: Callable[[str], None] = logger.warning):
        self.path = check_target(path)
        self._lock = FileLock(f"{self.path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise ValueError(
                f"{path} is being written by another process or writer; wait for it, or give another file."
            ) from None
        try:
            _mend(self.path, on_note)
            self._file = open(self.path, "ab", buffering=0)
            _sync_folder(self.path.parent)
        except BaseException:
            self._lock.release()
            raise

    def append(self, records: Iterable[LedgerRecord]) -> int:
        """Writes records, with the time of writing where they have none yet, and waits until they are on the disk.

        Returns how many there were.

        Raises:
            OSError: the disk is full or gone; the file then ends with the last whole record.
        """
        count, now = 0, datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        for record in records:
            self._write(_line(record if record.written_at else record.model_copy(update={"written_at": now})))
            count += 1
        os.fsync(self._file.fileno())
        return count

    def _write(self, line: bytes) -> None:
        start, rest = os.fstat(self._file.fileno()).st_size, memoryview(line)
        try:
            while rest:  # once, unless the disk is full or a signal comes
                rest = rest[self._file.write(rest) :]
        except BaseException as error:
            self._file.truncate(start)
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise

    def close(self) -> None:
        self._file.close()
        self._lock.release()

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def read_ledger(path: str | Path, *, on_note: Callable[[str], None] = logger.warning) -> Iterator[LedgerRecord]:
    """The records of a ledger in the order of the file, one at a time: JSON lines or Parquet, told by content.

    Args:
        path: the file; one that is being written can be read.
        on_note: is called with one sentence when a torn last line was left out.

    Raises:
        DataError: with file, line, field, value and remedy.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file; give the path of a ledger.")
    with open(path, "rb") as file:
        if file.read(len(_PARQUET)) == _PARQUET:
            yield from _parquet_records(Path(path))
            return
        file.seek(0)
        for number, line in enumerate(file, start=1):  # bytes: only b"\n" ends a line
            where = f"{path}, line {number}"
            if not line.endswith(b"\n") and _is_torn(line):
                on_note(f"{where}: the last record is torn and is left out; its writer was interrupted.")
            elif line.strip():
                yield ledger_record(line, where=where)


def write_parquet(records: Iterable[LedgerRecord], path: str | Path) -> int:
    """Writes a Parquet file with a column for each field, whole or not at all, and returns the number of rows.

    Types come from the schema and not from the values, so a column of nulls has its type too. `datasets` reads the
    file with the same features. What a newer minor version has beyond our fields goes into `unknown_fields`, as JSON.

    Raises:
        ValueError: the place cannot be written, or there are no records.
        ModuleNotFoundError: `datasets` or `pyarrow` is not installed; both come with `warrant-hf[train]`.
    """
    import pyarrow
    import pyarrow.parquet

    target = check_target(path)
    schema = ledger_features().arrow_schema
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    count, records = 0, iter(records)
    try:
        with pyarrow.parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
            while block := [_row(record) for record in islice(records, _ROWS_AT_A_TIME)]:
                writer.write_table(pyarrow.Table.from_pylist(block, schema=schema))
                count += len(block)
        if not count:
            raise ValueError(f"{path}: there are no records to write; give a ledger that holds some.")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def ledger_features():
    """The columns of a ledger as `datasets.Features`."""
    from datasets import Features, List, Value

    names = {str: "string", int: "int64", float: "float64", bool: "bool"}
    columns = {}
    for name, field in LedgerRecord.model_fields.items():
        kind = next((kind for kind in names if _takes(field.annotation, kind)), str)
        columns[name] = List(Value("string")) if field.annotation == list[str] else Value(names[kind])
    return Features({**columns, _UNKNOWN: Value("string")})


def _takes(annotation: Any, kind: type) -> bool:
    """Whether a type, one of its alternatives, or a value of its `Literal` is of this kind."""
    return annotation is kind or type(annotation) is kind or any(_takes(part, kind) for part in get_args(annotation))


def _row(record: LedgerRecord) -> dict[str, Any]:
    row, unknown = record.model_dump(), record.model_extra
    for name in unknown or ():
        del row[name]
    return row | {_UNKNOWN: json.dumps(unknown, sort_keys=True) if unknown else None}


def _parquet_records(path: Path) -> Iterator[LedgerRecord]:
    # Not through `datasets`, which would copy the file to its cache.
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_A_TIME):
                for number, row in enumerate(batch.to_pylist(), start=number + 1):
                    unknown = row.pop(_UNKNOWN, None)
                    row |= json.loads(unknown) if unknown else {}
                    yield ledger_record(row, where=f"{path}, row {number}")
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: the Parquet file is damaged ({reason}); export it again.") from None


def _line(record: LedgerRecord) -> bytes:
    text = record.model_dump_json()
    if not text.isascii():
        text = json.dumps(json.loads(text), separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def _mend(path: Path, on_note: Callable[[str], None]) -> None:
    """Makes sure that a file is a ledger to which a line can be added; a torn last line is cut off."""
    if not path.exists() or not path.stat().st_size:
        return
    with open(path, "r+b") as file:
        first = file.readline()
        if first.endswith(b"\n") or not _is_torn(first):
            ledger_record(first, where=f"{path}, line 1")
        elif first[: len(_OPENING)] != _OPENING[: len(first)]:
            raise DataError(f"{path} is no ledger, and nothing was written to it; give the name of another file.")
        end = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, end)
        file.seek(start)
        last = file.read()
        if not last:
            return
        if _is_torn(last):
            file.truncate(start)
            what = f"the last record was torn and has been dropped ({len(last)} bytes)"
            on_note(f"{path}: {what}; its writer was interrupted.")
        else:
            file.seek(end)
            file.write(b"\n")


def _is_torn(line: bytes) -> bool:
    """Whether a last line without line feed is the beginning of a record only."""
    try:
        json.loads(line)
    except ValueError:  # UnicodeDecodeError too
        return True
    return False


def _start_of_last_line(file, end: int) -> int:
    """Where what follows the last line feed begins."""
    at = end
    while at:
        size = min(65_536, at)
        file.seek(at - size)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            return at - size + found + 1
        at -= size
    return 0


def _sync_folder(folder: Path) -> None:
    """Puts a new file's name on the disk too."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
    except OSError:  # not on Windows, nor on every network file system
        pass
    finally:
        if descriptor is not None:
            os.close(descriptor)


__all__ = ["LedgerWriter", "ledger_features", "read_ledger", "write_parquet"]
