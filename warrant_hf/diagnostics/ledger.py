"""From what `rank`, `rank_batch` and the pipeline return to records of the ledger."""

from __future__ import annotations

import hashlib
import json
import unicodedata
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from .. import __version__
from ..modeling import DEFAULT_CHECKPOINT
from ..modeling.evidence_readout import MASS_FLOOR
from .ledger_schema import SCHEMA_VERSION, LedgerRecord, text_digest

#: Keys of a passage that go into its record.
LINEAGE_FIELDS = ("source", "effective_time", "extraction_method", "duplicate_cluster")
#: What `signals` can hold of a passage: numbers of the model that `rank` does not return.
SIGNAL_FIELDS = ("relevance_logit", "log_precision_raw", "log_precision", "precision_bound", "precision_clipped")


def describe_model(model) -> dict[str, Any]:
    """What a record says of the model: identity, digest of the weights, and the constants of its logits.

    `weights_sha256` is taken over name, type, shape and bytes of each parameter in memory, in the order of the names.
    It therefore stands for what scored, also after training or merging, and is no digest of a file; an adapter that is
    merged on another kind of processor can differ in the last bit. Takes some tenths of a second for 20 M parameters:
    call it once and give the result to [`ledger_records`].

    Args:
        model: an evidence selector.

    Raises:
        ValueError: it is none.
    """
    readout = getattr(model, "readout", None)
    if readout is None or not hasattr(readout, "variant"):
        raise ValueError(f"model is a {type(model).__name__}, not an evidence selector; give the model that ranked.")
    name = str(model.name_or_path) or None
    if name == DEFAULT_CHECKPOINT:  # where it lies differs from machine to machine
        name = f"warrant_hf/{Path(name).name}"
    # Without a path the content head uses beta and bias otherwise, and there is no mass to compute a logit from.
    names = ("beta", "bias", "mass_scale", "mass_bias")
    constants = {name: getattr(readout, name).item() if readout.variant.path else None for name in names}
    return {
        "model_id": name,
        "model_revision": getattr(model.config, "_commit_hash", None) or model._source.get("revision"),
        "weights_sha256": _digest_of(model),
        "reader": model.config.model_type,
        "variant": model.config.variant,
        "dtype": str(model.dtype).removeprefix("torch."),
        "warrant_hf": __version__,
        "mass_floor": MASS_FLOOR if readout.variant.path else None,
        "precision_bound": None if readout.precision is None else readout.precision_bound,
        "reading_power": readout.reading_power if readout.variant.path else None,
        "precision_label": model.config.precision_label,
        **constants,
    }


def ledger_records(
    results,
    passages,
    model,
    *,
    question_ids=None,
    revoke_by: str = "gate",
    threshold: float | None = None,
    top_k: int | None = None,
    signals=None,
) -> list[LedgerRecord]:
    """One record per passage, in input order, for each result.

    Args:
        results (`dict` or `list[dict]`): what `rank`, `rank_batch` or the pipeline returned, with all passages: rank
            without `top_k`, and say here how many are selected.
        passages (`list`, or `list[list]` for a list of results): what was ranked. The keys `source`,
            `effective_time`, `extraction_method` and `duplicate_cluster` of a passage go into its record. Where no
            cluster is given, passages of a list with the same text, up to case, spaces and Unicode form (NFKC), share
            one.
        model: the selector, or what [`describe_model`] says of it.
        question_ids (`str`, or `list` for a list of results, *optional*).
        revoke_by (`str`): as it was given to `rank`.
        threshold (`float`, *optional*): select candidates with this probability or more.
        top_k (`int`, *optional*): or the best K. Without either nothing counts as selected or not.
        signals (`list[dict]`, or `list[list[dict]]`, *optional*): per passage, in input order, what the model knows
            beyond the result: any of `SIGNAL_FIELDS`. They are an argument of their own so that no passage can write
            them.

    Raises:
        ValueError: a result lacks passages or belongs to other ones, or an argument is out of range.
    """
    if isinstance(results, Mapping):
        results, passages = [results], [passages]
        question_ids = None if question_ids is None else [question_ids]
        signals = None if signals is None else [signals]
    for name, given in (("passages", passages), ("question_ids", question_ids), ("signals", signals)):
        if given is not None and len(given) != len(results):
            raise ValueError(f"{name} has {len(given)} entries for {len(results)} results; give one per result.")
    rule = _rule(threshold, top_k)
    if revoke_by not in ("gate", "mask"):
        raise ValueError(f"revoke_by is {revoke_by!r}; choose 'gate' or 'mask', as it was given to rank.")
    shared = {"schema_version": SCHEMA_VERSION}
    shared |= model if isinstance(model, Mapping) else describe_model(model)
    records = []
    for number, result in enumerate(results):
        identifier = None if question_ids is None else _as_text(question_ids[number], f"question_ids[{number}]")
        own = [{}] * len(passages[number]) if signals is None else signals[number]
        decision = shared | rule | {"question_id": identifier}
        records += _decision(f"result {number}", result, passages[number], own, decision, revoke_by)
    return records


def _decision(place, result, passages, signals, shared, revoke_by) -> list[LedgerRecord]:
    evidence = sorted(result["evidence"], key=lambda item: item["index"])
    if len(evidence) != len(passages):
        raise ValueError(
            f"{place} holds {len(evidence)} of {len(passages)} passages; rank without top_k, and give it here."
        )
    if len(signals) != len(passages):
        raise ValueError(f"{place}: signals has {len(signals)} entries for {len(passages)} passages; give one each.")
    passages = [{"text": passage} if isinstance(passage, str) else passage for passage in passages]
    for index, (item, passage) in enumerate(zip(evidence, passages, strict=True)):
        if item["index"] != index or item["text"] != passage["text"]:
            raise ValueError(f"{place}: passage {index} is not the one that was ranked; give those of the result.")
    identifier = uuid.uuid4().hex
    left_out = sum(item["revoked"] for item in evidence) if revoke_by == "mask" else 0
    shared = shared | {
        "decision_id": identifier,
        "question_sha256": text_digest(result["question"]),
        "record_count": len(passages),
        "candidate_count": len(passages) - left_out,
        "mass": result["mass"],
        "answerability": result["answerability"],
        "notes": list(result.get("notes", ())),
    }
    clusters = _clusters(passages)
    records = []
    for index, (item, passage, own) in enumerate(zip(evidence, passages, signals, strict=True)):
        unknown = sorted(set(own) - set(SIGNAL_FIELDS))
        if unknown:
            raise ValueError(f"signals: {unknown[0]!r} is unknown; give any of {', '.join(SIGNAL_FIELDS)}.")
        where = f"{place}, passage {index}"
        lineage = {name: _as_text(passage.get(name), f"{where}: {name}") for name in LINEAGE_FIELDS}
        lineage["duplicate_cluster"] = lineage["duplicate_cluster"] or clusters[index]
        scored = {name: item[name] for name in ("attention", "permission", "effective", "score", "probability")}
        bound = shared.get("precision_bound")
        if bound is not None and item["log_precision"] is not None:  # else the key, if any, is the passage's own
            scored["log_precision"] = item["log_precision"]
            scored["precision_clipped"] = abs(item["log_precision"]) >= bound
        values = {
            **shared,
            **lineage,
            **scored,
            **own,
            "record_id": f"{identifier}/{index}",
            "candidate_id": _as_text(passage.get("id"), f"{where}: id"),
            "index": index,
            "text_sha256": text_digest(passage["text"]),
            "title_sha256": text_digest(passage["title"]) if passage.get("title") else None,
            "contribution_norm": item["effective"],
            "rank": item["rank"],
            "revoked": item["revoked"],
            "revoke_by": revoke_by if item["revoked"] else None,
            "selected": _selected(item, shared),
        }
        try:
            records.append(LedgerRecord(**values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field, reason = first["loc"][0], first["msg"][0].lower() + first["msg"][1:]
            raise ValueError(f"{where}: {field} is {first['input']!r}, but {reason}; correct it.") from None
    return records


def _rule(threshold, top_k) -> dict[str, Any]:
    if threshold is not None and top_k is not None:
        raise ValueError("threshold and top_k are two rules; give one of them.")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 0):
        raise ValueError(f"top_k is {top_k!r}; give a whole number of 0 or more, or None for no rule.")
    numeric = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if threshold is not None and not (numeric and 0 <= threshold <= 1):
        raise ValueError(f"threshold is {threshold!r}; give a probability from 0 to 1, or None for no rule.")
    return {
        "rule": "threshold" if threshold is not None else "top_k" if top_k is not None else None,
        "threshold": None if threshold is None else float(threshold),
        "top_k": None if top_k is None else int(top_k),
    }


def _selected(item, decision) -> bool | None:
    if decision["rule"] is None:
        return None
    if decision["rule"] == "top_k":
        chosen = item["rank"] <= decision["top_k"]
    else:
        chosen = item["probability"] >= decision["threshold"]
    return chosen and not item["revoked"]


def _clusters(passages: Sequence[Mapping]) -> list[str | None]:
    plain = [" ".join(unicodedata.normalize("NFKC", passage["text"]).casefold().split()) for passage in passages]
    count = Counter(plain)
    return [f"text-sha256:{text_digest(text)}" if count[text] > 1 else None for text in plain]


def _as_text(value: Any, place: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, date):  # datetime too
        return value.isoformat()
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"{place} is a {type(value).__name__} that JSON cannot hold; give a text.") from None
    # Half a surrogate pair has no UTF-8 form; it is not worth losing a decision.
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _digest_of(model) -> str:
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


__all__ = ["LINEAGE_FIELDS", "SIGNAL_FIELDS", "describe_model", "ledger_records"]
