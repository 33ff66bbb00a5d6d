"""Look inside: the same text three times, coloured by token, and passages × measures as a table of cells."""

from __future__ import annotations

from html import escape
from typing import Any

from .render import MEASURES, passage_name, user_text

# Per cent of the hue behind the highest value, where more would cost the text its contrast, and behind the least above
# 0, so that little does not look like nothing.
_DARKEST, _PALEST = 55, 6
_SHOWN = 5e-4  # a difference that three digits show


def highlights(result: dict) -> str:
    """Every passage in rank order under each measure; a token's colour is its value.

    Attention and effective mass share one scale, so that what a gate takes away is seen; permission runs from 0 to 1.
    """
    if result["mass"] is None or not any(item["tokens"] for item in result["evidence"]):
        return '<p class="eg-note">This model gives no attention and permission by token.</p>'
    top = highest(result)
    columns = (
        f'<section class="eg-in-{measure}"><h2 class="eg-title">{measure}: {meaning}</h2>'
        + "".join(_coloured(item, measure, 1.0 if measure == "permission" else top) for item in result["evidence"])
        + "</section>"
        for measure, meaning in MEASURES.items()
    )
    return f'{_legend(top)}{_sums(result)}<div class="eg-three">{"".join(columns)}</div>'


def heatmap(result: dict) -> str:
    """A table of passages × measures; attention and effective mass have one scale, permission its own."""
    if result["mass"] is None:
        return '<p class="eg-note">This model has no attention and permission by passage.</p>'
    head = "".join(f'<th scope="col">{measure}</th>' for measure in MEASURES)
    top = max((item["attention"] for item in result["evidence"]), default=0.0)
    rows = "".join(
        f'<tr><th scope="row">{user_text(passage_name(item))} <span class="eg-note">rank {item["rank"]}</span></th>'
        + "".join(_cell(item[measure], measure, 1.0 if measure == "permission" else top) for measure in MEASURES)
        + "</tr>"
        for item in result["evidence"]
    )
    return (
        '<div class="eg-scroll" tabindex="0" role="region" aria-label="Passages by measure">'
        '<table class="eg-table eg-heat">'
        f'<thead><tr><th scope="col">passage</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="eg-note">Attention and effective have one colour scale, from 0 to {top:.3f}; '
        "permission has its own, from 0 to 1.</p>"
    )


def highest(result: dict) -> float:
    """The highest attention or effective mass of any token."""
    return max((strength(token, "attention") for item in result["evidence"] for token in item["tokens"]), default=0.0)


def strength(token: dict[str, Any], measure: str) -> float:
    """Value of a token; its effective mass is the product."""
    return token["attention"] * token["permission"] if measure == "effective" else token[measure]


def pieces(item: dict, field: str) -> list[tuple[str, dict | None]]:
    """Title or text of a passage, cut into (text, token or `None` between tokens); together they spell it."""
    text, at, found = item[field] or "", 0, []
    for token in sorted((t for t in item["tokens"] if t["field"] == field), key=lambda t: t["start"]):
        start, end = max(token["start"], at), token["end"]
        if start >= end:
            continue
        if start > at:
            found.append((text[at:start], None))
        found.append((text[start:end], token))
        at = end
    return [*found, (text[at:], None)] if at < len(text) else found


def _coloured(item, measure, scale):
    title, text = (_spans(item, field, measure, scale) for field in ("title", "text"))
    return f"<p>Passage {item['index'] + 1}. <bdi>{title}{': ' if title else ''}{text}</bdi></p>"


def _spans(item, field, measure, scale):
    return "".join(
        escape(text)
        if token is None
        else f'<span class="eg-tok" {_tint(strength(token, measure), scale)}>{escape(text)}</span>'
        for text, token in pieces(item, field)
    )


def _legend(top):
    ends = {"attention": f"{top:.3f}", "permission": "1", "effective": f"{top:.3f}"}
    scales = "".join(
        f'<li>{measure}: 0 <span class="eg-scale eg-in-{measure}" aria-hidden="true"></span> {end}</li>'
        for measure, end in ends.items()
    )
    return (
        f'<ul class="eg-scales">{scales}</ul><p class="eg-note">A word with more colour under attention than under '
        "effective was read, but counts little. Point at a word for its value.</p>"
    )


def _sums(result):
    """What the values of the words have to do with that of their passage; separators hold some, and are no words."""
    rest = max(
        item[measure] - sum(strength(token, measure) for token in item["tokens"])
        for item in result["evidence"]
        for measure in ("attention", "effective")
    )
    more = f", less what the separators behind passages hold, here up to {rest:.3f}" if rest >= _SHOWN else ""
    return (
        '<p class="eg-note">Attention and effective mass of the words add up to those of their passage'
        f"{more}. Permissions do not add up.</p>"
    )


def _cell(value, measure, scale):
    tint = _tint(value if value >= _SHOWN else 0.0, scale)  # what reads 0.000 has no colour
    return f'<td class="eg-cell eg-in-{measure}" {tint}>{value:.3f}</td>'


def _tint(value, scale):
    """Colour and exact value of a word or a cell: `--s` is per cent of the hue, `title` is read out too."""
    share = _PALEST + (_DARKEST - _PALEST) * min(value / scale, 1.0) if value > 0 else 0.0
    exact = f"{value:.4f}" if value == 0 or value >= 5e-5 else "under 0.0001"
    return f'style="--s:{share:.1f}" title="{exact}"'
