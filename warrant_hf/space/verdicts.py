"""What attention and permission say together about a passage: one table, for the cards and for the batch."""

from __future__ import annotations

#: A passage counts as read with at least an even share of the attention, and as allowed from this permission on.
ALLOWED_FROM = 0.5
_ROUNDING = 1e-5  # relative: equal passages have an even share up to that of float32

#: (read, allowed) -> (name, in words)
VERDICTS = {
    (True, True): ("counts", "read, and may count"),
    (True, False): ("blocked", "read, but counts little"),
    (False, True): ("unread", "may count, but little read"),
    (False, False): ("aside", "little read, counts little"),
}


def verdict(item: dict, count: int) -> tuple[str, str] | None:
    """(name, in words) for one passage of a list of `count`; `None` where the model has no permission."""
    if item["permission"] is None:
        return None
    return VERDICTS[item["attention"] >= (1 - _ROUNDING) / count, item["permission"] >= ALLOWED_FROM]
