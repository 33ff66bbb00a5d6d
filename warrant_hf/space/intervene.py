"""Interventions: permissions set by hand, passages masked, copied or swapped, and what each did to every score."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .inputs import Passages, bounded, read_permissions, read_positions
from .render import user_text
from .selectors import Permissions, Selector

_SHOWN = 5e-4  # a difference that three digits show


@dataclass(frozen=True)
class Edit:
    """What is changed about a list of passages. Positions count from 0 in the list as it was.

    Args:
        permissions: one per passage, `None` for the learned one; a copy keeps its learned permission.
        masked: passages left out of the input. copied: passages that stand once more, at the end.
        swapped: two passages that change places, or none.
    """

    permissions: Permissions
    masked: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    swapped: tuple[int, ...] = ()

    def order(self) -> list[tuple[int, bool]]:
        """(position as it was, whether it is a copy) of each passage of the changed list."""
        order = list(range(len(self.permissions)))
        if self.swapped:
            one, other = self.swapped
            order[one], order[other] = other, one
        kept = [(at, False) for at in order if at not in self.masked]
        return kept + [(at, True) for at in self.copied]


def read_edit(passages: Passages, permissions, masked, copied, swapped) -> Edit:
    """An edit from what a visitor sent.

    Raises:
        ValueError: a position or permission out of range, not two to swap, or nothing left to read.
    """
    count = len(passages)
    edit = Edit(
        read_permissions(permissions, count),
        read_positions(masked, count, "masked"),
        read_positions(copied, count, "duplicated"),
        read_positions(swapped, count, "swapped"),
    )
    if len(edit.swapped) not in (0, 2):
        raise ValueError("Choose two passages to swap, or none.")
    if not edit.order():
        raise ValueError("Every passage is masked: leave at least one in the input.")
    return edit


def apply(selector: Selector, question: str, passages: Passages, edit: Edit) -> dict:
    """Scores before and after an edit.

    Returns:
        `{"before", "after"}`, as `rank` returns them, and `changes`: for each passage, in the order of the changed
        list with masked ones at the end, `index` (position as it was), `copy`, `before` and `after` (its evidence, or
        `None`), and `effect`: the change of its logit as `{"total", "permission", "attention", "list"}`. The last
        three add up to the first: logit = β log(C · attention · permission) + b, so that each factor has a term.

    Raises:
        ValueError: too many passages with the copies, or permissions for a model that has none.
    """
    before = selector.rank(question, passages)
    order = edit.order()
    changed = bounded(tuple(passages[at] for at, _ in order))
    permissions = tuple(None if copy else edit.permissions[at] for at, copy in order)
    after = selector.rank(question, changed, permissions)
    old = {item["index"]: item for item in before["evidence"]}
    new = {item["index"]: item for item in after["evidence"]}
    changes = []
    for place, (at, copy) in enumerate(order):
        change = {"index": at, "copy": copy, "before": None if copy else old[at], "after": new[place]}
        change["effect"] = None if copy else _effect(old[at], new[place], len(old), len(new), selector.beta)
        changes.append(change)
    changes += [{"index": at, "copy": False, "before": old[at], "after": None, "effect": None} for at in edit.masked]
    return {"before": before, "after": after, "changes": changes}


def _effect(old, new, size_before, size_after, beta) -> dict:
    total = new["score"] - old["score"]
    if beta is None or not (old["attention"] and new["attention"]):
        return {"total": total, "permission": None, "attention": None, "list": None}
    attention = beta * math.log(new["attention"] / old["attention"])
    size = beta * math.log(size_after / size_before)
    # The rest: β log(new / old permission), unless the gate is closed and the mass at its floor.
    return {"total": total, "permission": total - attention - size, "attention": attention, "list": size}


def told(outcome: dict, edit: Edit, names: list[str]) -> str:
    """What was changed and what followed, as a short list; `names` as of `render.numbered_names`."""
    quoted = [f"“{user_text(name)}”" for name in names]
    said, others = [], []
    for change in outcome["changes"]:
        at, effect = change["index"], change["effect"]
        if effect is None:
            continue
        now = edit.permissions[at]
        if now is None:
            others.append(abs(effect["total"]))
            continue
        what = "Closed the gate of" if now == 0 else "Set"
        moved = {field: _arrow(change["before"], change["after"], field, form) for field, form in _SAID.items()}
        said.append(
            f"{what} {quoted[at]}: permission {moved['permission']}; probability of support {moved['probability']}, "
            f"rank {moved['rank']}."
        )
    said += [f"Left {quoted[at]} out of the input, as if it had never been found." for at in edit.masked]
    said += [f"Added a copy of {quoted[at]} at the end, with its learned permission." for at in edit.copied]
    if edit.swapped:
        said.append(f"Swapped {' and '.join(quoted[at] for at in edit.swapped)}.")
    if not said:
        return "<p>Nothing is changed. Move a slider, or close a gate.</p>"
    said.append(f"Answerable {_arrow(outcome['before'], outcome['after'], 'answerability', '.3f')}.")
    if others and max(others) < _SHOWN:
        said.append("The other passages keep their attention and score; only their ranks may change.")
    elif others:
        said.append(f"Other scores moved, logits by up to {max(others):.3f}: the attention is shared out anew.")
    return f'<ul class="eg-said">{"".join(f"<li>{sentence}</li>" for sentence in said)}</ul>'


#: What a sentence and the first columns tell of a passage -> its digits. The exact logits come behind.
_SAID = {"probability": ".3f", "rank": "d", "permission": ".3f"}
_HEADS = ("passage", *_SAID, "logit", "change")
_PARTS = ("permission", "attention", "list")


def table(outcome: dict, names: list[str]) -> str:
    """Every passage before → after, with the additive parts of the change of its logit."""
    # With gates alone the whole change is the permission's.
    parts = _PARTS if any(_shows(change["effect"]) for change in outcome["changes"]) else ()
    head = "".join(f'<th scope="col">{name}</th>' for name in (*_HEADS, *(f"by {part}" for part in parts)))
    # In the order as it was, so that no row jumps while a slider moves; copies come last.
    changes = sorted(outcome["changes"], key=lambda change: (change["copy"], change["index"]))
    rows = "".join(_row(change, names, parts) for change in changes)
    return (
        '<div class="eg-scroll" tabindex="0" role="region" aria-label="Scores before and after">'
        f'<table class="eg-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        '<p class="eg-note">A logit is the score before it becomes a probability: β log(list size × attention × '
        "permission) + b. So each factor adds its part to the change; "
        f"{'here all three are shown' if parts else 'here all of it is the part of the permission'}."
        f"{_lowest(outcome['after'])}</p>"
    )


def _lowest(result) -> str:
    closed = [item for item in result["evidence"] if item["permission"] == 0]
    return f" {_number(closed[0], 'score', '.4f')} is the lowest score there is: permission 0." if closed else ""


def _shows(effect) -> bool:
    return effect is not None and any(abs(effect[part] or 0) >= _SHOWN for part in ("attention", "list"))


def _row(change, names, parts) -> str:
    old, new, effect = change["before"], change["after"], change["effect"] or {}
    note = " (copy)" if change["copy"] else " (masked)" if new is None else ""
    cells = [
        *(_arrow(old, new, field, form) for field, form in _SAID.items()),
        _arrow(old, new, "score", ".4f"),
        _signed(effect.get("total")),
        *(_signed(effect.get(part)) for part in parts),
    ]
    differs = ' class="eg-differs"' if effect and abs(effect["total"]) >= _SHOWN else ""
    name = f'<th scope="row"{differs}>{user_text(names[change["index"]])}{note}</th>'
    return f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _number(item, field, form) -> str:
    return "–" if item is None or item[field] is None else format(item[field], form).replace("-", "−")


def _arrow(old, new, field, form) -> str:
    one, other = _number(old, field, form), _number(new, field, form)
    return one if one == other else f"{one} → {other}"


def _signed(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < 5e-5 else f"{value:+.4f}".replace("-", "−")
