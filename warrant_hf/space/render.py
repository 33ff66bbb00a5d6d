"""Results as HTML bars and as highlighted text. Whatever a visitor wrote is escaped here and nowhere else."""

from __future__ import annotations

from html import escape
from typing import Any

CSS = """
.eg-row { padding: .55rem 0; border-bottom: 1px solid var(--border-color-primary); }
.eg-head { display: flex; gap: .6rem; align-items: baseline; margin-bottom: .25rem; }
.eg-rank { font-variant-numeric: tabular-nums; font-weight: 600; min-width: 1.4rem; }
.eg-name { flex: 1; overflow-wrap: anywhere; }
.eg-support { font-variant-numeric: tabular-nums; white-space: nowrap; }
.eg-line { display: grid; grid-template-columns: 5.6rem 1fr 8.5rem; gap: .6rem; align-items: center;
           font-size: var(--text-sm); line-height: 1.35; }
.eg-track { position: relative; height: .7rem; border-radius: 3px; background: var(--background-fill-secondary); }
.eg-fill, .eg-old { position: absolute; inset: 0 auto 0 0; border-radius: 3px; }
.eg-old { outline: 1.5px dashed var(--body-text-color-subdued); outline-offset: -1px; }
.eg-attention { background: #4c78a8; } .eg-permission { background: #54a24b; } .eg-effective { background: #b279a2; }
.eg-answer { background: #f58518; }
.eg-value { font-variant-numeric: tabular-nums; }
.eg-was { color: var(--body-text-color-subdued); }
.eg-closed { opacity: .75; } .eg-closed .eg-name::after { content: " · gate closed"; color: #c0392b; }
.eg-title { font-weight: 600; margin-bottom: .3rem; }
/* Tokens as running text: without this each word piece is a box of its own and line breaks are lost. */
#eg-words .textfield { display: block; word-break: normal; overflow-wrap: anywhere; line-height: 1.7; }
#eg-words .token-container, #eg-words .score-token { margin: 0; padding: 0; font-size: 0; white-space: nowrap; }
#eg-words .text { font-size: var(--text-md); background-color: inherit; border-radius: 2px; }
.eg-note { font-size: var(--text-sm); color: var(--body-text-color-subdued); margin-top: .4rem; }
"""

MEASURES = ("attention", "permission", "effective")


def bars(result: dict, before: dict | None = None) -> str:
    """A block per passage with its three bars, in the order of `before` (else of `result`), so that nothing jumps.

    Attention and effective mass share one scale; permission runs from 0 to 1. A dashed frame is the value `before`.
    """
    new = {item["index"]: item for item in result["evidence"]}
    old = {item["index"]: item for item in before["evidence"]} if before else {}
    order = [item["index"] for item in (before or result)["evidence"]]
    largest = max((item["attention"] or 0.0 for item in [*new.values(), *old.values()]), default=0.0)
    blocks = (_passage(new[index], old.get(index), largest) for index in order)
    return '<div class="eg-title">Passages by support</div>' + "".join(blocks)


def gauge(result: dict, before: dict | None = None) -> str:
    """Does the list hold evidence at all: answerability from 0 to 1, and the effective mass behind it."""
    then = before["answerability"] if before else None
    lines = ['<div class="eg-title">Is there evidence at all?</div>']
    lines += [_line("answerable", "answer", result["answerability"], then, 1.0)]
    if result["mass"] is not None:
        was = _was(result["mass"], before and before["mass"])
        lines.append(f'<div class="eg-note">total effective mass {result["mass"]:.3f}{was}</div>')
    lines += [f'<div class="eg-note">{escape(note)}</div>' for note in result.get("notes", ())]
    return "".join(lines)


def highlights(result: dict, measure: str) -> list[tuple[str, float | None]]:
    """The passages in rank order as (text, strength) pieces; strength 0 to 1 on tokens, None between them."""
    values = [_strength(token, measure) for item in result["evidence"] for token in item["tokens"]]
    scale = 1.0 if measure == "permission" else max(values, default=0.0) or 1.0
    pieces: list[tuple[str, float | None]] = []
    for item in result["evidence"]:
        pieces.append((f"{item['rank']}. ", None))
        for field in ("title", "text"):
            text = item[field]
            if not text:
                continue
            at = 0
            for token in sorted((t for t in item["tokens"] if t["field"] == field), key=lambda t: t["start"]):
                start, end = max(token["start"], at), token["end"]
                if start >= end:
                    continue
                if start > at:
                    pieces.append((text[at:start], None))
                pieces.append((text[start:end], _strength(token, measure) / scale))
                at = end
            pieces.append((text[at:] + (" — " if field == "title" else "\n\n"), None))
    return pieces


def choices(result: dict) -> list[tuple[str, int]]:
    """(label, position) of each passage, in rank order."""
    return [(f"{item['rank']}. {_name(item, 48)}", item["index"]) for item in result["evidence"]]


def _passage(item: dict, old: dict | None, largest: float) -> str:
    rank = str(item["rank"])
    if old and old["rank"] != item["rank"]:
        rank = f'<span class="eg-was">{old["rank"]} →</span> {item["rank"]}'
    was = _was(item["probability"], old and old["probability"])
    lines = "".join(
        _line(
            measure,
            measure,
            item[measure],
            old[measure] if old else None,
            1.0 if measure == "permission" else largest,
        )
        for measure in MEASURES
    )
    return (
        f'<div class="eg-row{" eg-closed" if item["revoked"] else ""}"><div class="eg-head">'
        f'<span class="eg-rank">{rank}</span><span class="eg-name">{escape(_name(item, 110))}</span>'
        f'<span class="eg-support">support {item["probability"]:.3f}{was}</span></div>{lines}</div>'
    )


def _line(label: str, style: str, value: float | None, old: float | None, largest: float) -> str:
    if value is None:
        return f'<div class="eg-line"><span>{label}</span><span></span><span class="eg-value">–</span></div>'
    was = _was(value, old)
    frame = f'<div class="eg-old" style="width:{_percent(old, largest)}"></div>' if was else ""
    return (
        f'<div class="eg-line"><span>{label}</span><div class="eg-track">'
        f'<div class="eg-fill eg-{style}" style="width:{_percent(value, largest)}"></div>{frame}</div>'
        f'<span class="eg-value">{value:.3f}{was}</span></div>'
    )


def _was(value: float, old: float | None) -> str:
    """The value before, where it differs in the digits shown."""
    changed = old is not None and f"{old:.3f}" != f"{value:.3f}"
    return f' <span class="eg-was">was {old:.3f}</span>' if changed else ""


def _percent(value: float, largest: float) -> str:
    return f"{100 * min(value / largest, 1.0) if largest > 0 else 0.0:.1f}%"


def _name(item: dict, length: int) -> str:
    name = " ".join(f"{item['title'] or ''} — {item['text']}".removeprefix(" — ").split())
    return name if len(name) <= length else name[: length - 1] + "…"


def _strength(token: dict[str, Any], measure: str) -> float:
    if measure == "effective":
        return token["attention"] * token["permission"]
    return token[measure]
