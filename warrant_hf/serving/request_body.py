"""From the bytes of a request to a checked model, or to a sentence about what is wrong with them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import pydantic
from fastapi import Request
from starlette.requests import ClientDisconnect

from ..data.strict_json import JsonError, parse_json
from .limits import ServingLimits
from .refusals import Refusal
from .schemas import _Request

_DEEPEST = 32  # levels of lists and objects; nothing that we know of needs more than a few
_SURROGATE = re.compile("[\ud800-\udfff]")
Kind = TypeVar("Kind", bound=_Request)


def body_reader(kind: type[Kind], limits: ServingLimits) -> Callable:
    """The dependency that reads a request of this kind."""

    async def read(request: Request) -> Kind:
        content = await _bounded_body(request, limits)
        checked = _checked(kind, _plain_json(content))
        _check_size(checked, limits)
        return checked

    return read


async def _bounded_body(request: Request, limits: ServingLimits) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"The content type is {kind[:60]!r}; send JSON with 'Content-Type: application/json'.")
    most = limits.max_body_bytes
    too_large = Refusal(413, f"The body has more than {most:,} bytes; send less at a time.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large
    body = bytearray()

    async def receive() -> None:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > most:
                raise too_large

    try:
        await asyncio.wait_for(receive(), limits.request_seconds)
    except asyncio.TimeoutError:
        sentence = f"The body did not arrive within {limits.request_seconds:g} s; send it faster, or in parts."
        raise Refusal(408, sentence, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise Refusal(499, "The client has left before its request was whole.") from None
    return bytes(body)


def _plain_json(content: bytes) -> Any:
    try:
        value = parse_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Refusal(400, f"The body is no UTF-8 (byte {error.start}); send JSON in UTF-8.") from None
    except JsonError as error:
        where = "" if error.line is None else f" in line {error.line}"
        raise Refusal(400, f"The body is not JSON ({error}{where}); send one JSON object.") from None
    _check_texts(value)
    return value


def _check_texts(value: Any) -> None:
    """Refuses what could be read but not be written again: half surrogates, and deep nesting."""
    waiting: list[tuple[Any, tuple]] = [(value, ())]
    while waiting:
        item, place = waiting.pop()
        if len(place) > _DEEPEST:
            raise Refusal(422, f"The body nests lists and objects more than {_DEEPEST} levels deep; flatten it.")
        if isinstance(item, str):
            half = None if item.isascii() else _SURROGATE.search(item)
            if half:
                sentence = f"has half a surrogate pair at character {half.start()}; write the whole character."
                raise Refusal(422, f"{_place(place)} {sentence}")
        elif isinstance(item, list):
            waiting += [(part, (*place, at)) for at, part in enumerate(item)]
        elif isinstance(item, dict):
            for key, part in item.items():
                if _SURROGATE.search(key):
                    raise Refusal(422, f"{_place(place)} has half a surrogate pair in a field's name; correct it.")
                waiting.append((part, (*place, key)))


def _checked(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, dict):
        raise Refusal(422, f"The request is {_short(value)}; send a JSON object with {', '.join(_required(kind))}.")
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
    place, given, message = _place(first["loc"]), _short(first["input"]), first["msg"]
    sentences = {
        "missing": f"{place} is missing; add it.",
        "extra_forbidden": f"{place} is not a field of this request; correct its name, or remove it.",
        "too_short": f"{place} is empty; give at least one.",
        "value_error": f"{place} is {given}; {message.removeprefix('Value error, ')}.",
    }
    raise Refusal(422, sentences.get(first["type"]) or f"{place} is {given}; {_lowered(message)}.")


def _check_size(checked: _Request, limits: ServingLimits) -> None:
    _, candidates = checked.asked()
    if len(candidates) > limits.max_candidates:
        sentence = f"{checked.candidates} has {len(candidates):,} entries; send at most {limits.max_candidates:,}."
        raise Refusal(413, sentence)
    if checked.characters > limits.max_characters:
        raise Refusal(
            413, f"The texts have {checked.characters:,} characters; send at most {limits.max_characters:,} at a time."
        )


def _required(kind: type[_Request]) -> list[str]:
    return [name for name, field in kind.model_fields.items() if field.is_required()]


def _place(loc: tuple) -> str:
    place = ""
    for part in loc:
        if isinstance(part, str) and not part.isidentifier():
            part = _short(part)  # anything can be a field's name, a line break too
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return (place if len(place) <= 120 else place[:117] + "...") or "The body"


def _lowered(message: str) -> str:
    return message[0].lower() + message[1:]


def _short(value: Any) -> str:
    # By hand, because the repr of a long list of long texts is the size of the request.
    if isinstance(value, (list, dict)) and len(value) > 3:
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value):,} entries"
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
