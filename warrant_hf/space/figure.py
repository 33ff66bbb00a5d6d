"""The heatmap of a result as PNG, SVG and JSON files."""

from __future__ import annotations

import io
import json

from matplotlib import rc_context
from matplotlib.figure import Figure

from .render import MEASURES, passage_name

_RAMPS = {"attention": "Blues", "permission": "Greens", "effective": "PuRd"}
_ROW = 0.36  # inches
# Control characters have no place in SVG; Unicode has pictures of them. Nor have its two codes that are no characters.
_PICTURED = {code: 0x2400 + code for code in range(32)} | {127: 0x2421, 0xFFFE: 0xFFFD, 0xFFFF: 0xFFFD}


def heatmap_file(result: dict, kind: str) -> bytes:
    """Passages × measures as a picture: attention and effective mass on one colour scale, permission on its own.

    Args:
        kind: "png" or "svg".

    Raises:
        ValueError: the model of the result has no permission.
    """
    if result["mass"] is None:
        raise ValueError("This model has no attention and permission by passage: there is no heatmap to save.")
    evidence = result["evidence"]
    names = [f"{passage_name(item)} (rank {item['rank']})".translate(_PICTURED) for item in evidence]
    top = max(item["attention"] for item in evidence) or 1.0
    # A figure of its own, not pyplot's, which keeps state that requests would share.
    figure = Figure(figsize=(7.5, 1.6 + _ROW * len(evidence)), layout="constrained")
    axes = figure.subplots(1, len(MEASURES), sharey=True)
    for axis, measure in zip(axes, MEASURES, strict=True):
        highest = 1 if measure == "permission" else top
        values = [[item[measure]] for item in evidence]
        image = axis.imshow(values, aspect="auto", cmap=_RAMPS[measure], vmin=0, vmax=highest)
        for row, (value,) in enumerate(values):
            dark = value / highest > 0.6
            axis.text(0, row, f"{value:.3f}", ha="center", va="center", color="white" if dark else "black", fontsize=9)
        axis.set_title(measure, fontsize=10)
        axis.set_xticks([])
        figure.colorbar(image, ax=axis, location="bottom")
    axes[0].set_yticks(range(len(names)), names, fontsize=9, parse_math=False)
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(file, format=kind, dpi=150, metadata={"Title": "Evidence gates"})
    return file.getvalue()


def result_file(result: dict) -> bytes:
    """The whole result, tokens included, as JSON."""
    return json.dumps(result, indent=1, ensure_ascii=True).encode("ascii")
