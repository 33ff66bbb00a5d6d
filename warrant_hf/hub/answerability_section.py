"""The section of a card that says how good a probability the answerability is."""

from __future__ import annotations

import html
import re

# What stands between the two is written anew by each calibration, and nothing else.
_START, _END = "<!-- answerability -->\n", "<!-- end of answerability -->\n"
_BEFORE = "\n## Limits\n"


def answerability_section(calibration: dict) -> str:
    """Markdown between two comments, from the field `answerability_calibration` of a config."""
    brier = calibration["brier"]
    data = html.escape(" ".join(calibration["data"].split()), quote=False)
    return (
        f"{_START}## Answerability\n\n"
        "`answerability` is fitted as the probability that a list holds evidence at all (`warrant-hf calibrate`).\n\n"
        "| | |\n|---|---|\n"
        f"| fitted on | {data.replace('|', '&#124;')} |\n"
        f"| questions | {calibration['questions']}, each with its evidence and with distractors in its place |\n"
        f"| candidates a list | {calibration['size']} |\n"
        f"| calibration error, 15 bins | {calibration['ece']:.4f} |\n"
        f"| Brier score | {brier['value']:.4f}, 95 % interval {brier['low']:.4f} – {brier['high']:.4f} |\n\n"
        "Both scores are out of fold: of probabilities that were fitted on other questions. They hold for lists like\n"
        f"these.\n{_END}"
    )


def with_answerability(card: str, calibration: dict) -> str:
    """The card with this section: in place of an earlier one, or else before its limits, or at its end."""
    section = answerability_section(calibration)
    text, replaced = re.subn(f"{_START}.*?{_END}", lambda _: section, card, flags=re.DOTALL)
    if replaced:
        return text
    head, limits, rest = card.rpartition(_BEFORE)
    return f"{head}\n{section}{limits}{rest}" if limits else f"{card.rstrip()}\n\n{section}"


__all__ = ["answerability_section", "with_answerability"]
