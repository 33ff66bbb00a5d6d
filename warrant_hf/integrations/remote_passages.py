"""What a server is sent of a passage, and how the rest of it comes into the server's answer."""

from __future__ import annotations

from itertools import count
from numbers import Integral, Real
from typing import Any

import pydantic

from ..modeling.processing_evidence import _LARGEST, _SURROGATE

# A server takes lists and objects 32 levels deep; the list of passages and the passage are two of them.
_DEEPEST = 30
_MOST_DICTS = 10_000


class _Evidence(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    index: int
    rank: int
    score: float
    probability: float
    attention: float | None
    permission: float | None
    effective: float | None
    revoked: bool


class _Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    question: str
    evidence: list[_Evidence]
    mass: float | None
    answerability: float
    notes: list[str]


def sent(passage: str | dict, place: str) -> str | dict:
    """A passage as JSON: text, title, and each number that a precision could use, also in dicts within it.

    A precision needs a finite number of float32's size under a name of whole characters. What lies more than 30 dicts
    deep is left out, because no server takes it, and so is a dict within itself.

    Raises:
        ValueError: more than 10,000 dicts in the passage, named as `place`.
    """
    if isinstance(passage, str):
        return passage
    texts = {name: passage[name] for name in ("text", "title") if passage.get(name) is not None}
    return _numbers(passage, (), count(), place) | texts


def as_ranked(answer: Any, passages: list, given: list, top_k: int | None, return_tokens: bool) -> dict | None:
    """The result of `rank` from the server's answer; `None` for an answer that no selector gives.

    Args:
        answer: JSON.
        passages (`list` of `str` or `dict`): what was to be ranked; its own keys join the evidence.
        given (`list`): the same passages as they were [`sent`].
        top_k (`int`, *optional*), return_tokens (`bool`): as they were asked for.
    """
    try:
        indices = [item.index for item in _Answer.model_validate(answer).evidence]
    except pydantic.ValidationError:
        return None
    most = len(passages) if top_k is None else min(top_k, len(passages))
    in_range = all(0 <= index < len(passages) for index in indices)
    if not in_range or len(indices) != most or len(set(indices)) != most:
        return None
    if return_tokens and not all(isinstance(item.get("tokens"), list) for item in answer["evidence"]):
        return None
    evidence = [
        _put_back(item, passages[item["index"]], given[item["index"]], return_tokens) for item in answer["evidence"]
    ]
    return answer | {"evidence": evidence}


def _put_back(item, passage, given, return_tokens):
    """The evidence as `rank` has it: its own keys, then those of the passage, under other names where they collide."""
    taken = set(_Evidence.model_fields) | ({"tokens"} if return_tokens else set())
    # Only some selectors give a log_precision; a number of that name in the passage comes back from the others.
    pair = ("log_precision", "input_log_precision")
    comes_back = "log_precision" in given and all(item.get(name) == given.get(name) for name in pair)
    if isinstance(given, str) or not comes_back:
        taken |= {"log_precision"} & item.keys()
    known = {"text": passage} if isinstance(passage, str) else passage
    kept = {name: value for name, value in item.items() if name in taken or name in ("id", "title", "text")}
    kept |= {f"input_{name}" if name in taken else name: value for name, value in known.items()}
    return kept | ({"tokens": item["tokens"]} if return_tokens else {})


def _numbers(values, above, visited, place):
    if next(visited) >= _MOST_DICTS:
        raise ValueError(
            f"{place} has more than {_MOST_DICTS:,} dicts within it; give the passage with those that the selector "
            "needs."
        )
    above, kept = (*above, values), {}
    for name, value in values.items():
        if not isinstance(name, str) or _SURROGATE.search(name):
            continue
        if not isinstance(value, dict):
            value = _number(value)
        elif len(above) == _DEEPEST or any(value is one for one in above):
            value = None
        else:
            value = _numbers(value, above, visited, place) or None
        if value is not None:
            kept[name] = value
    return kept


def _number(value):
    """A finite number that float32 holds, as JSON has it; `None` for everything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = int(value) if isinstance(value, Integral) else float(value)
    except (OverflowError, TypeError, ValueError):  # a fraction beyond a double; NumPy's durations count as numbers
        return None
    return number if abs(number) <= _LARGEST else None


__all__ = ["as_ranked", "sent"]
