"""Attention, permission and effective mass of some questions as three heatmaps, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data.candidates import seeded_random, shuffled
from ..whole_file import replaced_when_complete
from .decisions import DecisionCase

#: File endings that a heatmap can be written to.
FORMATS = {".png": "png", ".svg": "svg"}


def draw_cases(cases: Sequence[DecisionCase], count: int = 12, seed: int = 0) -> list[DecisionCase]:
    """`count` cases (all, if there are fewer) drawn at random by the seed, in input order, whatever they show.

    Raises:
        ValueError: no cases, or `count` below 1.
    """
    if not cases or count < 1:
        raise ValueError(f"{len(cases)} cases, count {count}: give at least one case and a count of 1 or more.")
    drawn = shuffled(range(len(cases)), seeded_random("heatmap", seed, len(cases)))[:count]
    return [cases[at] for at in sorted(drawn)]


def heatmap_figure(cases: Sequence[DecisionCase], title: str = ""):
    """A matplotlib figure of three panels, questions by candidates in input order; gold cells are outlined.

    Attention and effective mass share one colour scale, from 0 to the largest attention, so that what the permission
    takes away can be seen; permission runs from 0 to 1. A row is not normalised.

    Args:
        cases: one row each.

    Raises:
        ValueError: no cases. ModuleNotFoundError: matplotlib is not installed (extra `experiments`).
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if not cases:
        raise ValueError("cases is empty; give at least one question.")
    width = max(len(case.labels) for case in cases)
    masses = Normalize(0, max(float(max(case.attention.max(), case.effective.max())) for case in cases))
    panels = (
        ("attention", "Blues", masses),
        ("permission", "Greens", Normalize(0, 1)),
        ("effective", "Blues", masses),
    )
    figure = Figure(figsize=(3 * (1.4 + 0.3 * width), 1.6 + 0.3 * len(cases)), layout="constrained")
    figure.suptitle(title, fontsize=10, parse_math=False)
    axes = figure.subplots(1, 3, sharey=True, squeeze=False)[0]
    for axis, (name, colours, scale) in zip(axes, panels, strict=True):
        grid = np.full((len(cases), width), np.nan)
        for row, case in enumerate(cases):
            grid[row, : len(case.labels)] = getattr(case, name)
        image = axis.imshow(np.ma.masked_invalid(grid), cmap=colours, norm=scale, aspect="auto")
        for row, case in enumerate(cases):
            for column in np.flatnonzero(case.labels == 1):
                axis.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d95f02", linewidth=2)
                )
        axis.set_facecolor("0.85")  # where a shorter list has no candidate
        axis.set_title({"effective": "effective mass"}.get(name, name), fontsize=10)
        axis.set_xticks(range(width))
        axis.set_xlabel("candidate")
        figure.colorbar(image, ax=axis, shrink=0.8)
    axes[0].set_yticks(range(len(cases)), [f"Q{row}" for row in range(1, len(cases) + 1)])
    return figure


def check_heatmap_name(path: str | Path) -> str:
    """The format of a heatmap's file, by its ending; a `ValueError` for another one."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{path} is no name for a heatmap; give one that ends in {' or '.join(FORMATS)}.")
    return FORMATS[ending]


def save_heatmaps(path: str | Path, cases: Sequence[DecisionCase], *, count: int = 12, seed: int = 0) -> list[str]:
    """Writes the heatmaps of `count` cases drawn by the seed, all of the file or nothing, and returns their ids.

    Raises:
        ValueError: no cases, `count` below 1, or a file that is not `.png` or `.svg` or cannot be written.
        ModuleNotFoundError: matplotlib is not installed (extra `experiments`).
    """
    kind = check_heatmap_name(path)
    drawn = draw_cases(cases, count, seed)
    title = f"{len(drawn)} of {len(cases)} questions, drawn at random with seed {seed}; gold is outlined"
    figure = heatmap_figure(drawn, title)
    with replaced_when_complete(path) as file:
        figure.savefig(file.buffer, format=kind, dpi=150)
    return [case.id for case in drawn]


__all__ = ["FORMATS", "check_heatmap_name", "draw_cases", "heatmap_figure", "save_heatmaps"]
