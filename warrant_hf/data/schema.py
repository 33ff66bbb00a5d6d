"""What a row of evidence-selection data is: a question, its candidates, and what is known about them.

Rows are checked where they enter. Everything the caller put into a row stays in it (unknown keys are kept, missing
keys are not invented), and what is wrong is said in one sentence: file, place, field, value, remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError


class DataError(ValueError):
    """A row, or a file of rows, that cannot be read as evidence-selection data."""


def _binary_label(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (bool, int)) and value in (0, 1):
        return int(value)
    raise PydanticCustomError("label", "must be 0, 1 or left out")


# JSON can spell half a surrogate pair (\ud800); no tokenizer takes it and no file can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")


def _readable(value: str | None) -> str | None:
    if value is not None and _SURROGATE.search(value):
        raise PydanticCustomError("surrogate", "holds half of a surrogate pair")
    return value


def _identifier(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return _readable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise PydanticCustomError("identifier", "must be a string or an integer")


def _filled(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "must hold some text")
    return _readable(value)


class Candidate(BaseModel):
    """One passage or sentence that may support the answer.

    `label` is 1 for evidence, 0 for a distractor, None when unknown. `kind` is free text; the builder writes "gold",
    "hard" and "random". `source` says where the text came from, in any form. Unknown keys are kept.
    """

    model_config = ConfigDict(extra="allow")

    text: StrictStr
    title: StrictStr | None = None
    label: Annotated[int | None, BeforeValidator(_binary_label)] = None
    kind: StrictStr | None = None
    source: Any = None
    id: Annotated[str | None, BeforeValidator(_identifier)] = None

    _text_filled = field_validator("text")(_filled)
    _title_readable = field_validator("title")(_readable)

    def to_dict(self) -> dict[str, Any]:
        """The keys that were given, without nulls for those that were not."""
        return self.model_dump(exclude_unset=True)

    def to_passage(self) -> dict[str, Any]:
        """What a model may see: everything but the label and the kind."""
        return {"title": self.title, **self.model_dump(exclude_unset=True, exclude={"label", "kind"})}


class EvidenceRow(BaseModel):
    """A question and the candidates among which its evidence is sought. Candidate order is input order."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, BeforeValidator(_identifier)]
    question: StrictStr
    candidates: list[Candidate]
    answer: Any = None

    _question_filled = field_validator("question")(_filled)

    @field_validator("candidates", mode="before")
    @classmethod
    def _plain_strings_are_candidates(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, (list, tuple)):
            raise PydanticCustomError("candidates", "must be a list of passages")
        if not value and not (info.context or {}).get("may_be_empty"):
            raise PydanticCustomError("candidates", "must hold at least one passage")
        for position, item in enumerate(value):
            if not isinstance(item, (str, Mapping, Candidate)):
                # Raised here because a model-type error of pydantic would name our class instead of what is expected.
                raise PydanticCustomError(
                    "candidate", "must be a string or an object with a `text` field", {"position": position}
                )
        return [{"text": item} if isinstance(item, str) else item for item in value]

    @property
    def labels(self) -> list[int] | None:
        """One 0/1 per candidate, or None when any label is unknown."""
        labels = [candidate.label for candidate in self.candidates]
        return None if any(label is None for label in labels) else labels

    @property
    def kinds(self) -> list[str | None]:
        return [candidate.kind for candidate in self.candidates]

    @property
    def has_evidence(self) -> bool:
        """Whether at least one candidate is labelled as evidence."""
        return any(candidate.label == 1 for candidate in self.candidates)

    def with_candidates(self, candidates: list[Candidate]) -> EvidenceRow:
        """The same row over another list of candidates (which may be empty while a list is being built)."""
        return self.model_copy(update={"candidates": candidates})

    def to_dict(self) -> dict[str, Any]:
        """The keys that were given, without nulls for those that were not."""
        return self.model_dump(exclude_unset=True)


# What to do about each kind of complaint of pydantic; the complaint itself comes from pydantic or from above.
_REMEDIES = {
    "missing": "add it",
    "string_unicode": "write the whole character",
    "string_type": "write a string",
    "surrogate": "write the whole character",
    "label": "write 1 for evidence and 0 for a distractor",
    "identifier": "write a string",
    "blank": "write the text or remove the item",
    "candidates": "write a list of strings or of objects with a `text` field",
    "candidate": 'write "some text" or {"text": "some text"}',
}


def validate_row(record: Any, *, where: str, default_id: str | None = None, may_be_empty: bool = False) -> EvidenceRow:
    """One record (our own schema) as an `EvidenceRow`.

    `where` opens the message of a `DataError`, e.g. `rows.jsonl, line 3`. `passages` is read as `candidates` when the
    latter is absent, a list `labels` of the row as the labels of its candidates; a record without `id` gets
    `default_id`. With `may_be_empty` its list may be: a retriever has found nothing.
    """
    if isinstance(record, EvidenceRow):
        return record
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: the row is {_shown(record)}, not an object; {_ROW_REMEDY}.")
    record = dict(record)
    list_name = "candidates"
    if "candidates" not in record and "passages" in record:
        list_name = "passages"
        record["candidates"] = record.pop("passages")
    if record.get("labels") is not None:
        record["candidates"] = _with_labels(record, list_name, where)
    record.pop("labels", None)
    if record.get("id") is None and default_id is not None:
        record["id"] = default_id
    try:
        return EvidenceRow.model_validate(record, context={"may_be_empty": may_be_empty})
    except ValidationError as error:
        raise DataError(f"{where}: {_sentence(error, list_name)}") from None


def _with_labels(record: dict[str, Any], list_name: str, where: str) -> list[Any]:
    labels, candidates = record["labels"], record.get("candidates")
    if not isinstance(candidates, (list, tuple)) or not isinstance(labels, (list, tuple)):
        raise DataError(f"{where}: `labels` is {_shown(labels)}; write one 0 or 1 for each of `{list_name}`.")
    if len(labels) != len(candidates):
        lengths = f"{len(labels)} entries for {len(candidates)} `{list_name}`"
        raise DataError(f"{where}: `labels` has {lengths}; write one 0 or 1 for each.")
    objects = [{"text": item} if isinstance(item, str) else item for item in candidates]
    pairs = zip(objects, labels, strict=True)
    return [{"label": label, **item} if isinstance(item, Mapping) else item for item, label in pairs]


_ROW_REMEDY = 'write {"id": …, "question": …, "candidates": […]}'


def _sentence(error: ValidationError, list_name: str) -> str:
    """The first complaint as `field` problem (value), remedy; the number of further complaints at the end."""
    first = error.errors(include_url=False)[0]
    location, value = list(first["loc"]), first["input"]
    position = first.get("ctx", {}).get("position")
    if position is not None:
        location.append(position)
        value = value[position]
    if location and location[0] == "candidates":
        location[0] = list_name
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if first["type"] == "missing":
        problem = f"field `{path}` is missing"
    elif first["type"] == "string_unicode":  # in a value this is caught before: here it is a key
        problem = f"the key {_shown(value)} holds half of a surrogate pair"
    elif first["type"] == "string_type":
        problem = f"`{path}` is {_shown(value)}, not a string"
    else:
        message = first["msg"][0].lower() + first["msg"][1:]
        problem = f"`{path}` is {_shown(value)}, but it {message}"
    more = error.error_count() - 1
    tail = f" ({more} more in this row)" if more else ""
    return f"{problem}; {_REMEDIES.get(first['type'], 'correct it')}{tail}."


def _shown(value: Any) -> str:
    """A value as JSON on one line, shortened, so that a message stays a sentence."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
