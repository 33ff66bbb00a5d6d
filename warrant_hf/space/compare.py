"""Two models, or two variants of one, on the same input; what differs is in bold and not marked by colour alone."""

from __future__ import annotations

from html import escape

from .render import ENOUGH_FROM, answerable, enough, line, passage_name, user_text

#: From which difference on a value counts as different.
DIFFERS = {"probability": 0.1, "attention": 0.1, "permission": 0.2, "effective": 0.1}


def side_by_side(
    one: dict,
    other: dict,
    names: tuple[str, str],
    calibrations: tuple[dict | None, dict | None] = (None, None),
    *,
    only_gates: bool = False,
) -> str:
    """Two results of the same passages: which of them finds enough evidence, and a table in the order of the first.

    Args:
        calibrations: `answerability_calibration` of the two configs; without one nothing is said to be enough.
        only_gates: the two are one model with other gates.
    """
    second = {item["index"]: item for item in other["evidence"]}
    heads = "".join(f'<th scope="col">{measure}, {side}</th>' for measure in ("rank", *DIFFERS) for side in ("A", "B"))
    rows, moved = [], 0
    for item in one["evidence"]:
        twin = second[item["index"]]
        cells, marks = _cells(item, twin)
        moved += bool(marks)
        name = f'<th scope="row"{" class=eg-differs" if marks else ""}>{user_text(passage_name(item))}</th>'
        rows.append(f"<tr>{name}{cells}</tr>")
    gauges = "".join(
        f'<section><h2 class="eg-title">{side}: {escape(name)}</h2>'
        + line("answerable", "answer", result["answerability"], mark=calibration and ENOUGH_FROM)
        + line("effective mass, sum", "effective", result["mass"])
        + "</section>"
        for side, name, result, calibration in zip("AB", names, (one, other), calibrations, strict=True)
    )
    said = [_conclusion(*each) for each in zip("AB", (one, other), calibrations, strict=True)]
    if only_gates:
        said.append("Only the gates differ.")
    limits = ", ".join(f"{name} {limit:g}" for name, limit in DIFFERS.items())
    return (
        f'<p class="eg-headline">{" ".join(said)}</p><div class="eg-answers">{gauges}</div>'
        f"<p>{moved} of {len(rows)} passages differ.</p>"
        '<div class="eg-scroll" tabindex="0" role="region" aria-label="A and B"><table class="eg-table">'
        f'<thead><tr><th scope="col">passage</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<p class="eg-note">A passage differs with another rank, or from these differences on: {limits}.</p>'
    )


def differences(item: dict, twin: dict) -> list[str]:
    """In what one passage differs between two results."""
    marks = ["rank"] if item["rank"] != twin["rank"] else []
    return marks + [
        name
        for name, limit in DIFFERS.items()
        if item[name] is not None and twin[name] is not None and abs(item[name] - twin[name]) >= limit
    ]


def _conclusion(side: str, result: dict, calibration: dict | None) -> str:
    if all(item["permission"] == 1 for item in result["evidence"]):
        # Whatever the list holds, its attention sums to one, or near it: “enough” would be said of every list.
        return f"{side}: every gate is open, so {answerable(result)} tells of attention alone, not of evidence."
    if calibration is None:
        return f"{side}: {answerable(result)}, which is not calibrated."
    return f"{side}: {'enough' if enough(result) else 'not enough'} evidence ({answerable(result)})."


def _cells(item, twin) -> tuple[str, list[str]]:
    marks, cells = differences(item, twin), ""
    for name in ("rank", *DIFFERS):
        mark = ' class="eg-differs"' if name in marks else ""
        for side in (item, twin):
            value = side[name]
            shown = "none" if value is None else str(value) if name == "rank" else f"{value:.3f}"
            cells += f"<td{mark if side is twin else ''}>{shown}</td>"
    return cells, marks
