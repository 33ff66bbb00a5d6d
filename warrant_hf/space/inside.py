"""Look inside: the same text three times, coloured by token, and passages × measures as a table of cells."""

from __future__ import annotations

from html import escape
from typing import Any

from .render import MEASURES, short_name, user_text

_DARKEST = 55  # per cent of the hue in a token of the highest value: more would cost the text its contrast


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
    return f'{_legend(top)}<div class="eg-three">{"".join(columns)}</div>'


def heatmap(result: dict) -> str:
    """A table of passages × measures; attention and effective mass have one scale, permission its own."""
    if result["mass"] is None:
        return '<p class="eg-note">This model has no attention and permission by passage.</p>'
    head = "".join(f'<th scope="col">{measure}</th>' for measure in MEASURES)
    top = max((item["attention"] for item in result["evidence"]), default=0.0)
    rows = "".join(
        f'<tr><th scope="row">{item["rank"]}. {user_text(short_name(item, 60))}</th>'
        + "".join(_cell(item[measure], measure, 1.0 if measure == "permission" else top) for measure in MEASURES)
        + "</tr>"
        for item in result["evidence"]
    )
    return (
        '<div class="eg-scroll" tabindex="0" role="region" aria-label="Passages by measure"><table class="eg-table">'
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
    title = _spans(item, "title", measure, scale)
    return f"<p>{item['rank']}. <bdi>{title}{': ' if title else ''}{_spans(item, 'text', measure, scale)}</bdi></p>"


def _spans(item, field, measure, scale):
    return "".join(
        escape(text)
        if token is None
        else f'<span class="eg-tok" style="--s:{_share(strength(token, measure), scale)}">{escape(text)}</span>'
        for text, token in pieces(item, field)
    )


def _legend(top):
    ends = {"attention": f"{top:.3f}", "permission": "1", "effective": f"{top:.3f}"}
    scales = "".join(
        f'<li>{measure}: 0 <span class="eg-scale eg-in-{measure}" aria-hidden="true"></span> {end}</li>'
        for measure, end in ends.items()
    )
    return (
        f'<ul class="eg-scales">{scales}</ul><p class="eg-note">A word that is coloured under attention and not under '
        "effective was read, and does not count.</p>"
    )


def _cell(value, measure, scale):
    hue = "permission" if measure == "permission" else "mass"
    return f'<td class="eg-cell eg-in-{hue}" style="--s:{_share(value, scale)}">{value:.3f}</td>'


def _share(value, scale):
    return f"{_DARKEST * min(value / scale, 1.0) if scale > 0 else 0.0:.1f}"
