"""A result as cards with aligned bars and a gauge. Texts of visitors are escaped where they enter HTML."""

from __future__ import annotations

from html import escape
from typing import Any

from .verdicts import ALLOWED_FROM, verdict

#: Measure -> what it means, in words of the page.
MEASURES = {
    "attention": "how strongly it was read",
    "permission": "how strongly it may count",
    "effective": "attention × permission: all the score is made of",
}
#: Name -> (colour or `None`, what it means): what the page says of its five numbers.
_LEGEND = {
    "attention": ("attention", MEASURES["attention"]),
    "permission (the gate)": ("permission", MEASURES["permission"]),
    "effective mass": ("effective", MEASURES["effective"]),
    "probability of support": (None, "that a passage supports an answer, from its effective mass"),
    "answerable": ("answer", "that the list holds evidence at all, from the sum of effective mass"),
}
#: A calibrated answerability says from here on that there is evidence.
ENOUGH_FROM = 0.5
_NAMED = 4  # passages that the headline names
_LONG = 320  # characters of a text that a card shows without being opened


def cards(result: dict) -> str:
    """A card per passage in rank order, its three bars on one scale from 0 to 1."""
    evidence = result["evidence"]
    count = len(evidence)
    limits, note = {}, ""
    if result["mass"] is not None:
        limits = {"attention": 1 / count, "permission": ALLOWED_FROM}
        note = (
            f'<p class="eg-note">“Read” stands for an even share of the attention or more, here 1/{count} = '
            f"{1 / count:.2f}, “may count” for a permission of {ALLOWED_FROM:g} or more: the lines on the bars.</p>"
        )
    return f'{note}<ol class="eg-cards">{"".join(_card(item, count, limits) for item in evidence)}</ol>'


def headline(result: dict) -> str:
    """The passage that was read most, and those that are read and may count, in the terms of the page."""
    evidence = [item for item in result["evidence"] if item["permission"] is not None]
    if not evidence:
        return ""
    most = max(evidence, key=lambda item: item["attention"])
    name, _ = verdict(most, len(evidence))
    allowed = "and it may count" if name in ("counts", "unread") else "but it counts little"
    both = [item for item in evidence if verdict(item, len(evidence))[0] == "counts"]
    named = "; ".join(f"“{user_text(passage_name(item))}”" for item in both[:_NAMED])
    named += f" and {len(both) - _NAMED} more" if len(both) > _NAMED else ""
    return (
        f'<p class="eg-headline">Read most: “{user_text(passage_name(most))}” (attention {most["attention"]:.2f}), '
        f"{allowed} (permission {most['permission']:.2f}).</p>"
        f"<p>{f'Read, and may count: {named}.' if both else 'No passage is read and may count.'}</p>"
    )


def gauge(result: dict, before: dict | None = None, calibration: dict | None = None) -> str:
    """Is there enough evidence to answer: answerability from 0 to 1, and the effective mass behind it.

    `calibration` is `answerability_calibration` of the model's config.
    """
    then = before["answerability"] if before else None
    lines = ['<h2 class="eg-title">Is there enough evidence to answer?</h2>']
    if calibration is not None:
        said = "Yes: {} is above {:g}." if enough(result) else "No: {} is below {:g}."
        lines.append(f'<p class="eg-headline">{said.format(answerable(result), ENOUGH_FROM)}</p>')
    lines.append(line("answerable", "answer", result["answerability"], then, mark=calibration and ENOUGH_FROM))
    if result["mass"] is not None:
        lines.append(line("effective mass, sum", "effective", result["mass"], before and before["mass"]))
    lines.append(f'<p class="eg-note">{_about_answerable(calibration, len(result["evidence"]))}</p>')
    lines += [f'<p class="eg-note">{user_text(note)}</p>' for note in result.get("notes", ())]
    return "".join(lines)


def enough(result: dict) -> bool:
    """Whether a calibrated answerability says that there is evidence."""
    return result["answerability"] >= ENOUGH_FROM


def answerable(result: dict) -> str:
    """`answerable 0.06`, with as many digits as tell it from the limit."""
    value, digits = result["answerability"], 2
    while value != ENOUGH_FROM and float(f"{value:.{digits}f}") == ENOUGH_FROM:
        digits += 1
    return f"answerable {value:.{digits}f}"


def legend() -> str:
    """What the numbers are, with their colours."""
    parts = (
        ("<li>" if colour is None else f'<li><span class="eg-swatch eg-{colour}"></span>')
        + f"<span><b>{name}</b> = {meaning}</span></li>"
        for name, (colour, meaning) in _LEGEND.items()
    )
    return f'<ul class="eg-legend">{"".join(parts)}</ul>'


def asked(question: str, passages: int, model: str) -> str:
    """What the tabs beside the first one are about."""
    count = f"{passages} passage{'' if passages == 1 else 's'}"
    return f'<p class="eg-asked">{user_text(question)} <span class="eg-note">{count}, {user_text(model)}</span></p>'


def line(label: str, style: str, value: float | None, old: float | None = None, *, mark: float | None = None) -> str:
    """A labelled bar from 0 to 1 with its value; a dashed frame is the value before, an upright line the `mark`."""
    if value is None:
        return f'<div class="eg-line"><span>{label}</span><span></span><span class="eg-value">none</span></div>'
    was = changed_from(old, value)
    frame = f'<div class="eg-old" style="width:{_percent(old)}"></div>' if was else ""
    threshold = "" if mark is None else f'<div class="eg-mark" style="left:{_percent(mark)}"></div>'
    return (
        f'<div class="eg-line"><span>{label}</span><div class="eg-track" aria-hidden="true">'
        f'<div class="eg-fill eg-{style}" style="width:{_percent(value)}"></div>{frame}{threshold}</div>'
        f'<span class="eg-value">{value:.3f}{was}</span></div>'
    )


def changed_from(old: float | None, value: float | None, digits: int = 3) -> str:
    """The value before, where it differs in the digits shown."""
    if old is None or value is None or f"{old:.{digits}f}" == f"{value:.{digits}f}":
        return ""
    return f' <span class="eg-was">was {old:.{digits}f}</span>'


def user_text(text: str) -> str:
    """A visitor's text as HTML: escaped, and isolated, so that its direction does not spill over."""
    return f"<bdi>{escape(text)}</bdi>"


def short_name(item: dict, length: int) -> str:
    """The title of a passage, else the beginning of its text, on one line."""
    name = " ".join((item["title"] or item["text"]).split())
    return name if len(name) <= length else name[: length - 1] + "…"


def passage_name(item: dict, length: int = 48) -> str:
    """`Passage 2: name`: what a passage is called everywhere, by its number in the input, whatever its rank."""
    return f"Passage {item['index'] + 1}: {short_name(item, length)}"


def numbered_names(passages: tuple) -> list[str]:
    """The name of each passage in input order."""
    return [passage_name({"index": at, "title": title, "text": text}) for at, (title, text) in enumerate(passages)]


def _about_answerable(calibration, count):
    if calibration is None:
        return "“Answerable” puts lists in an order. It is no calibrated probability."
    return (
        f"“Answerable” is a probability, fitted on {calibration['questions']:,} questions with lists of "
        f"{calibration['size']} passages, half of them without evidence; the line marks {ENOUGH_FROM:g}."
        + ("" if count == calibration["size"] else f" This list has {count}, so take it as rough.")
    )


def _card(item: dict[str, Any], count: int, limits: dict[str, float]) -> str:
    found = verdict(item, count)
    mark = "" if found is None else f'<span class="eg-verdict eg-is-{found[0]}">{found[1]}</span>'
    title = f"<b>{user_text(item['title'])}</b> " if item["title"] else ""
    bars = "".join(
        line("effective mass" if measure == "effective" else measure, measure, item[measure], mark=limits.get(measure))
        for measure in MEASURES
    )
    return (
        f'<li class="eg-card"><div class="eg-head"><b class="eg-rank">rank {item["rank"]}</b>'
        f"<span>Passage {item['index'] + 1}</span>"
        f'<span class="eg-support">probability of support <b>{item["probability"]:.2f}</b></span>{mark}</div>'
        f'<div class="eg-text">{title}{_folded(item["text"])}</div>{bars}</li>'
    )


def _folded(text: str) -> str:
    if len(text) <= _LONG:
        return user_text(text)
    return (
        f"<details><summary>{user_text(text[:_LONG])}… ({len(text):,} characters, open)</summary>"
        f"{user_text(text[_LONG:])}</details>"
    )


def _percent(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.1f}%"
