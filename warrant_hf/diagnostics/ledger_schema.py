"""One record of the operating-evidence ledger: what stood behind the score of one candidate in one decision.

The ledger keeps "the facts that justified each precision value ... document lineage, effective time, extraction method
and duplicate cluster ... beside the model version, the bounded log precision, the relevance logit and the resulting
contribution" (PFA, section "From reweighting to operating evidence"), so that someone else can look at the source
instead of asking the same attention again.

A record says what a model scored. It never says that the evidence is true, that anyone may use it or that an action is
allowed: `authorises` is false in every record, and a record that says otherwise cannot be read. It holds no text, only
digests; `source`, `effective_time`, `extraction_method` and `duplicate_cluster` are what the caller said of a passage,
and nobody has checked them. A number that a model does not have is null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..data.schema import DataError
from ..data.strict_json import JsonError, parse_json

#: Major and minor version of the schema. A record of another major version is refused; a newer minor version may have
#: fields that are unknown here, and they are kept.
SCHEMA_VERSION = "1.1"


# A whole number that a double holds exactly.
_Whole = Annotated[int, Field(ge=0, le=2**53)]


class LedgerRecord(BaseModel):
    """A candidate in a decision; a decision is one question with its list of passages, scored once.

    Numbers are Python floats as the model gave them, not rounded. Attention, permission and masses are shares, from 0
    to 1; logits and logarithms are natural.

    Args:
        schema_version (`str`): `major.minor`.
        record_id (`str`): `decision_id/index`, once in a ledger.
        decision_id (`str`): the same for all records of a decision.
        question_id (`str`, *optional*): the caller's.
        question_sha256 (`str`): of the exact question, in UTF-8; so are the two digests below.
        candidate_id (`str`, *optional*): the caller's.
        index (`int`): position of the passage in the input, from 0.
        text_sha256 (`str`), title_sha256 (`str`, *optional*): of what the model was given.
        source (`str`, *optional*): lineage of the document. A passage's text is kept as it is, in this and the next
            three fields; a date becomes ISO 8601, and anything else JSON text.
        effective_time (`str`, *optional*): since or when what it says holds.
        extraction_method (`str`, *optional*): how the text was taken out of the source.
        duplicate_cluster (`str`, *optional*): passages that are copies of one another. `text-sha256:…` was found here,
            from equal normalised texts in the list; anything else is the caller's.
        model_id (`str`, *optional*), model_revision (`str`, *optional*): where the model was loaded from.
        weights_sha256 (`str`): digest of the parameters in memory, see [`describe_model`].
        reader (`str`), variant (`str`), dtype (`str`): kind of encoder, permission variant, number format.
        warrant_hf (`str`): version of this package.
        relevance_logit (`float`, *optional*): `r` of "the minimal factorisation".
        log_precision_raw, log_precision, precision_bound (`float`, *optional*): `l` before and after
            `clip(l, -bound, bound)`.
        precision_clipped (`bool`, *optional*): whether the bound changed it.
        precision_label (`"precision"` or `"reliability score"`, *optional*): what the model may call it: a precision
            only after the six tests of the contract.
        attention, permission, effective (`float`, *optional*): see [`EvidenceOutput`].
        contribution_norm (`float`, *optional*): norm of what the candidate adds to the context. The values of
            [`EvidenceReadout`] are unit vectors, so there it is the effective mass.
        score (`float`), probability (`float`): logit and its sigmoid.
        rank (`int`): from 1.
        revoked (`bool`), revoke_by (`"gate"` or `"mask"`, *optional*): whether and how a permission was withdrawn.
        rule (`"threshold"` or `"top_k"`, *optional*), threshold (`float`, *optional*), top_k (`int`, *optional*): what
            selects: a probability of `threshold` or more, or a rank of `top_k` or less. A revoked candidate is never
            selected.
        selected (`bool`, *optional*): null where there was no rule.
        record_count (`int`): records of the decision, one per passage.
        candidate_count (`int`): `C` in the logit: passages without those that were left out of the input.
        mass (`float`, *optional*): sum of `effective` over the decision.
        answerability (`float`): probability that some candidate supports an answer.
        notes (`list[str]`): what was split or shortened.
        reading_power (`float`, *optional*): p of the reading attention; at 1, attention sums to one.
        beta, bias, mass_floor (`float`, *optional*): `logit_c = beta log(max(C m_c, mass_floor)) + bias`.
        mass_scale, mass_bias (`float`, *optional*): the same of `answerability`, from `mass`.
        authorises (`False`): nothing.
        written_at (`str`, *optional*): when the writer wrote it, ISO 8601 in UTC; null before.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())

    schema_version: str
    record_id: str
    decision_id: str
    question_id: str | None = None
    question_sha256: str
    candidate_id: str | None = None
    index: _Whole
    text_sha256: str
    title_sha256: str | None = None
    source: str | None = None
    effective_time: str | None = None
    extraction_method: str | None = None
    duplicate_cluster: str | None = None
    model_id: str | None = None
    model_revision: str | None = None
    weights_sha256: str
    reader: str
    variant: str
    dtype: str
    warrant_hf: str
    relevance_logit: float | None = None
    log_precision_raw: float | None = None
    log_precision: float | None = None
    precision_bound: float | None = None
    precision_clipped: bool | None = None
    precision_label: Literal["precision", "reliability score"] | None = None
    attention: float | None = None
    permission: float | None = None
    effective: float | None = None
    contribution_norm: float | None = None
    score: float
    probability: float
    rank: _Whole
    revoked: bool
    revoke_by: Literal["gate", "mask"] | None = None
    rule: Literal["threshold", "top_k"] | None = None
    threshold: float | None = None
    top_k: _Whole | None = None
    selected: bool | None = None
    record_count: _Whole
    candidate_count: _Whole
    mass: float | None = None
    answerability: float
    notes: list[str] = []
    reading_power: float | None = None
    beta: float | None = None
    bias: float | None = None
    mass_floor: float | None = None
    mass_scale: float | None = None
    mass_bias: float | None = None
    authorises: Literal[False] = False
    written_at: str | None = None


#: What the records of one decision have in common.
DECISION_FIELDS = (
    "question_id",
    "question_sha256",
    "model_id",
    "model_revision",
    "weights_sha256",
    "reader",
    "variant",
    "dtype",
    "rule",
    "threshold",
    "top_k",
    "record_count",
    "candidate_count",
    "mass",
    "answerability",
    "reading_power",
    "beta",
    "bias",
    "mass_floor",
    "mass_scale",
    "mass_bias",
)


def text_digest(text: str) -> str:
    """SHA-256 of a text in UTF-8, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def ledger_record(values: Any, *, where: str) -> LedgerRecord:
    """A record from a mapping, or from the JSON text of one; `where` opens the message of an error.

    Raises:
        DataError: it is no record, or one of a schema version that cannot be read here.
    """
    is_text = isinstance(values, (str, bytes))
    try:
        # Straight from the text is three times as fast; what is wrong is looked for afterwards.
        record = (LedgerRecord.model_validate_json if is_text else LedgerRecord.model_validate)(values)
        error = None
        version = record.schema_version
    except ValidationError as failure:
        if is_text:
            values = _parsed(values, where)
        if not isinstance(values, Mapping) or "schema_version" not in values:
            raise DataError(f"{where}: it has no `schema_version`, so it is no ledger record; {_REMEDY}.") from None
        error, version = failure, values["schema_version"]
    if version != SCHEMA_VERSION:
        _check_version(version, where)
    if error is not None:
        raise DataError(f"{where}: {_sentence(error)}")
    return record


_REMEDY = "give a file that warrant-hf has written as a ledger"


def _parsed(text: str | bytes, where: str) -> Any:
    try:
        return parse_json(text.decode("utf-8") if isinstance(text, bytes) else text)
    except UnicodeDecodeError:
        raise DataError(f"{where}: this is not UTF-8 text; {_REMEDY}.") from None
    except JsonError as error:
        raise DataError(f"{where}: this is not JSON ({error}); {_REMEDY}.") from None


def _check_version(version: Any, where: str) -> None:
    major, _, minor = version.partition(".") if isinstance(version, str) else ("", "", "")
    known = SCHEMA_VERSION.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise DataError(
            f"{where}: `schema_version` is {_shown(version)}; write major.minor, such as {SCHEMA_VERSION}."
        )
    if int(major) != int(known):
        remedy = "update warrant-hf" if int(major) > int(known) else "write the ledger again"
        raise DataError(
            f"{where}: `schema_version` is {version!r}, and this version of warrant-hf reads {known}.x; {remedy}."
        )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in first["loc"])
    more = error.error_count() - 1
    tail = f" ({more} more in this record)" if more else ""
    if first["type"] == "missing":
        return f"the field `{path}` is missing; restore the record from a copy{tail}."
    if path == "authorises":
        return f"`authorises` is {_shown(first['input'])}, but a ledger record authorises nothing; write false{tail}."
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"`{path}` is {_shown(first['input'])}, but {message}; restore the record from a copy{tail}."


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


__all__ = ["DECISION_FIELDS", "SCHEMA_VERSION", "LedgerRecord", "ledger_record", "text_digest"]
