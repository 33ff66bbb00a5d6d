"""The reliability diagram of a card: what the probabilities say against how often they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..whole_file import replaced_when_complete


def save_reliability_diagram(path: str | Path, curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Writes a PNG with one panel a data set: mean probability against frequency of evidence, and the counts below.

    Args:
        path: the file; all of it is written, or nothing.
        curves: name of a data set -> the bins that `reliability_bins` gives.

    Raises:
        ValueError: there is nothing to draw, or the file cannot be written.
        ModuleNotFoundError: matplotlib is not installed (extra `experiments`).
    """
    if not curves or not all(curves.values()):
        raise ValueError("curves has no bins; give those of reliability_bins for at least one data set.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(curves), 4.2), layout="constrained")
    panels = figure.subplots(2, len(curves), sharex=True, squeeze=False, gridspec_kw={"height_ratios": [3, 1]})
    for (above, below), (name, bins) in zip(panels.T, curves.items(), strict=True):
        left, width = [b["low"] for b in bins], [b["high"] - b["low"] for b in bins]
        above.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        above.plot([b["probability"] for b in bins], [b["frequency"] for b in bins], color="#1b6ca8", marker="o")
        above.set(xlim=(0, 1), ylim=(0, 1))
        above.set_title(name, fontsize=9, parse_math=False, wrap=True)
        below.bar(left, [b["count"] for b in bins], width, align="edge", color="#1b6ca8")
        below.set_yscale("log")
        below.set_xlabel("probability of a candidate")
    panels[0, 0].set_ylabel("share that supports")
    panels[1, 0].set_ylabel("candidates")
    with replaced_when_complete(path) as file:
        figure.savefig(file.buffer, format="png", dpi=120)


__all__ = ["save_reliability_diagram"]
