"""JSON as its standard has it, with complaints that fit into a sentence."""

from __future__ import annotations

import json
import math
from typing import Any


class JsonError(ValueError):
    """Why a text is not JSON, as part of a sentence; `line` (from 1) is where, or None when that is unknown."""

    def __init__(self, reason: str, line: int | None = None):
        super().__init__(reason)
        self.line = line


def parse_json(text: str) -> Any:
    """What `json.loads` reads, without what no other program could read again.

    NaN, Infinity and numbers beyond a double are no JSON: whoever gets them from us could not read our output. Of two
    values under one key, a reader would take one without a word.

    Raises:
        JsonError: broken, nested too deep, with a number that cannot be held, or with a key twice in one object.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg.removesuffix(' at')} at column {error.colno}", error.lineno) from None
    except RecursionError:
        raise JsonError("nested too deep") from None
    except JsonError:
        raise
    except ValueError:  # Python refuses to convert more digits, because it takes quadratic time
        raise JsonError("a whole number has too many digits") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise JsonError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_constant(name: str):
    raise JsonError(f"{name} is no JSON number, write null")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise JsonError("a number is too large")
    return value
