"""What the adapters share: a selector by name, and documents of other libraries ranked by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..hub import load_default
from ..modeling import AutoModelForEvidenceSelection
from .remote import RemoteSelector, is_address

#: What a ranked document is told about itself.
SCORES = ("probability", "attention", "permission", "effective")
#: What joins its metadata: the scores, and of the whole list whether an answer can be had from it.
ADDED = (*SCORES, "answerability")


def selector(model: Any = None):
    """A selector: `model` itself, that of a folder, Hub id or server (`"http://…"`), or the default for `None`.

    Raises:
        ValueError: something that cannot rank.
        OSError: there is no such selector.
    """
    if model is None:
        return load_default()
    if isinstance(model, str) and is_address(model):
        return RemoteSelector(model)
    if isinstance(model, str):
        return AutoModelForEvidenceSelection.from_pretrained(
            model, use_safetensors=True, trust_remote_code=False
        ).eval()
    if not callable(getattr(model, "rank", None)):
        raise ValueError(
            f"model is a {type(model).__name__}; give a selector, its folder, Hub id or address, or None."
        )
    return model


def check_choice(top: int | None, threshold: float | None, name: str = "top_n") -> None:
    """Raises a `ValueError` for a count below 1 or a probability outside 0 to 1; `name` is the count's name."""
    whole = isinstance(top, int) and not isinstance(top, bool)
    if top is not None and not (whole and top >= 1):
        raise ValueError(f"{name} is {top!r}; give a whole number of 1 or more, or None for all.")
    number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if threshold is not None and not (number and 0 <= threshold <= 1):
        raise ValueError(f"threshold is {threshold!r}; give a probability from 0 to 1, or None to keep all.")


def passage(text: Any, metadata: Mapping[str, Any]) -> dict:
    """A document as a passage: its `title` is read with it, and numbers that a precision needs are found."""
    known = {name: value for name, value in metadata.items() if name != "title" or isinstance(value, str)}
    return {**known, "text": text}


def ranked(model, query: str, passages: Sequence[dict], top: int | None, threshold: float | None) -> list[dict]:
    """The evidence in rank order, without what has a probability below `threshold`, and the first `top` of it.

    Each has the `answerability` of the list. A passage whose text is empty or white space can support nothing: the
    model does not read it, and it comes last, with `SCORES` of 0.
    """
    blank = {at for at, given in enumerate(passages) if isinstance(given["text"], str) and not given["text"].strip()}
    settings = {}
    if blank:
        # Masked with a text in its place, and not removed: so the model's sentences name the right passage.
        passages = [given | {"text": "-"} if at in blank else given for at, given in enumerate(passages)]
        settings = {"revoke": sorted(blank), "revoke_by": "mask"}
    result = model.rank(query, passages, **settings)
    evidence = [item | {"answerability": result["answerability"]} for item in result["evidence"]]
    read = [item for item in evidence if item["index"] not in blank]
    unread = [item | dict.fromkeys(SCORES, 0.0) for item in evidence if item["index"] in blank]
    return [item for item in read + unread if threshold is None or item["probability"] >= threshold][:top]


def with_scores(metadata: Mapping[str, Any], item: Mapping[str, Any]) -> dict:
    """A copy of the metadata with `ADDED`; a key that has one of these names is kept as `input_probability`, …"""
    kept = {f"input_{name}" if name in ADDED else name: value for name, value in metadata.items()}
    return kept | {name: item[name] for name in ADDED}
