"""Rows as a `datasets.DatasetDict`, as a folder of Parquet files with a card, and on the Hub.

    save_dataset({"train": rows, "validation": others}, "lists", licence="cc-by-sa-4.0", source="HotpotQA.")
    rows_of(load_dataset("lists", split="train")) == rows        # but for keys whose value is null

A column has one type. Values of a free field (`answer`, `source`, keys of your own) that have no common one are kept
as JSON texts, of the feature `datasets.Json`, which `datasets` writes and reads.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets

from ..evaluation.report import write_text
from ..hub.dataset_card import render_dataset_card
from ..modeling.hub_errors import hub_sentences
from ..whole_file import check_target, replaced_when_complete
from .readers import rows_from
from .schema import DataError, EvidenceRow

_SPLIT = re.compile(r"\w+(\.\w+)*")
# Types of Arrow for values that are all of one type of Python.
_PLAIN = {str: "string", bool: "bool", float: "float64"}
_LARGEST = 2**63


def to_dataset_dict(splits: Mapping[str, Iterable[EvidenceRow]]):
    """A `datasets.DatasetDict` of our schema; all splits have the same columns.

    Raises:
        DataError: no rows, a name that is none for a split, or a value that JSON does not know.
    """
    splits = {name: list(rows) for name, rows in splits.items()}
    for name, rows in splits.items():
        if not _SPLIT.fullmatch(str(name)):
            raise DataError(f"the split {name!r} has no usable name; use letters, digits, _ and dots.")
        if not rows:
            raise DataError(f"the split {name!r} has no rows; leave it out or give some.")
    if not splits:
        raise DataError("splits is empty; give at least one list of rows, by the name of its split.")
    records = {name: [without_nulls(row.to_dict()) for row in rows] for name, rows in splits.items()}
    every = [record for split in records.values() for record in split]
    feature = _columns(every)
    feature["candidates"] = datasets.List(_columns([c for record in every for c in record["candidates"]]))
    made = {}
    for name, split in records.items():
        encoded = [_encoded(record, feature, f"row {record['id']!r} of {name}") for record in split]
        made[name] = datasets.Dataset.from_list(encoded, features=datasets.Features(feature))
    return datasets.DatasetDict(made)


def rows_of(dataset: Iterable[Mapping[str, Any]], *, name: str = "rows") -> list[EvidenceRow]:
    """The rows of a split that `to_dataset_dict` made: nulls, which Arrow puts where a key is absent, are left out."""
    return rows_from(map(without_nulls, dataset), format="jsonl", name=name)


def save_dataset(splits: Mapping[str, Iterable[EvidenceRow]], folder: str | Path, *, name=None, **facts) -> None:
    """Writes `data/<split>.parquet` and the card `README.md`, from which `load_dataset(folder)` reads the splits.

    Args:
        splits: rows by the name of their split.
        folder: where to; it is made if there is none. A file of an earlier export is replaced.
        name: on the card; without it, that of the folder.
        facts: `licence`, `source`, `description`, `language`; see `render_dataset_card`.

    Raises:
        DataError: see `to_dataset_dict`.
        ValueError: the folder cannot be written to.
    """
    splits = {name: list(rows) for name, rows in splits.items()}
    folder, made = Path(folder), to_dataset_dict(splits)
    card = render_dataset_card(name or folder.absolute().name, splits, **facts)
    for split, dataset in made.items():
        path = folder / "data" / f"{split}.parquet"
        check_target(path, create_folder=True)
        with replaced_when_complete(path) as file:
            dataset.to_parquet(file.buffer)
    write_text(folder / "README.md", card)


def push_dataset(
    splits: Mapping[str, Iterable[EvidenceRow]], repo_id: str, *, private: bool | None = None, token=None, **facts
) -> str:
    """Uploads what `save_dataset` writes, in one commit, and returns its address.

    Args:
        splits, facts: see `save_dataset`.
        repo_id: "name" or "organisation/name".
        private: of a new repository.
        token: as in `huggingface_hub`.

    Raises:
        DataError: see `to_dataset_dict`; nothing is uploaded then.
        OSError: the Hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_dataset(splits, folder, name=repo_id, **facts)
        with hub_sentences(repo_id):
            made = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=made.repo_id, repo_type="dataset", folder_path=folder, commit_message="Upload candidate lists"
            )
    return str(commit)


def without_nulls(value: Any) -> Any:
    """A copy without keys whose value is null, at every depth; nulls in lists stay."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, (list, tuple)) else value


def _columns(records):
    names = dict.fromkeys(name for record in records for name in record if name != "candidates")
    return {name: _feature([r[name] for r in records if name in r]) for name in names}


def _feature(values):
    """The feature that holds all of the values and gives them back as they were."""
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _PLAIN:
        return datasets.Value(_PLAIN[kind])
    if kind is int and all(-_LARGEST <= value < _LARGEST for value in values):
        return datasets.Value("int64")
    if kind is dict and values[0] and all(value.keys() == values[0].keys() for value in values):
        return {key: _feature([value[key] for value in values]) for key in values[0]}
    if kind is list and any(values):
        return datasets.List(_feature([item for value in values for item in value]))
    return datasets.Json()


def _encoded(value, feature, where):
    if isinstance(feature, datasets.Json):
        # Always as JSON: `Json` takes a text such as "1815" for the JSON of a number.
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"{where} holds a value that is not JSON ({error}); write a text or a number.") from None
        if not _survives(text, value):
            raise DataError(f"{where} holds {text[:60]}, which `datasets` does not give back; write a text.")
        return text
    if isinstance(feature, dict):
        return {key: _encoded(value[key], part, where) if key in value else None for key, part in feature.items()}
    if isinstance(feature, datasets.List):
        return [_encoded(item, feature.feature, where) for item in value]
    return value


def _survives(text, value):
    """Whether `datasets` reads a JSON text as the value it was made from; it does not read 2**70, for example."""
    try:
        return datasets.Json().decode_example(text) == value
    except ValueError:
        return False


__all__ = ["push_dataset", "rows_of", "save_dataset", "to_dataset_dict", "without_nulls"]
