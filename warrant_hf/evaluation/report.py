"""Metric tables as Markdown and JSON, written so that a reader never sees half a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..whole_file import check_target, replaced_when_complete


def metrics_table_markdown(
    metrics: Mapping[str, Mapping[str, float]], title: str, config: Mapping[str, Any] | None = None
) -> str:
    """A heading, the settings, and one row per metric with its interval (and `p` for comparisons)."""
    lines = [f"## {title}", ""]
    if config:
        lines += [f"- {_cell(name)}: {_cell(value)}" for name, value in config.items()] + [""]
    with_p = any("p" in entry for entry in metrics.values())
    lines.append("| metric | value | interval |" + (" p |" if with_p else ""))
    lines.append("|---|---:|---:|" + ("---:|" if with_p else ""))
    for name, entry in metrics.items():
        low, high = entry.get("low", math.nan), entry.get("high", math.nan)
        span = "–" if math.isnan(low) else f"{low:.3f} … {high:.3f}"
        lines.append(f"| {name} | {entry['value']:.3f} | {span} |" + (f" {entry['p']:.3f} |" if with_p else ""))
    return "\n".join(lines) + "\n"


def write_json(path: str | Path, payload: Any) -> None:
    """Strict JSON (NaN becomes null, no other conversion), written at once."""
    write_text(path, json.dumps(_without_nan(payload), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """The old content or the new, never a part; the folder is made if there is none."""
    check_target(path, create_folder=True)
    with replaced_when_complete(path) as file:
        file.write(text)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
