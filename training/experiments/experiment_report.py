"""What the experiments share: intervals over seeds, the machine, cells of a table."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import scipy
import sklearn
import torch
import transformers
from scipy import stats


def over_seeds(values) -> dict:
    """Mean with Student's 95 % interval; one value, or equal ones, have none."""
    values = np.asarray(values, dtype=float)
    low = high = np.nan
    if len(values) > 1 and values.std() > 0:
        low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return {"value": float(values.mean()), "low": float(low), "high": float(high)}


def paired(values, baseline) -> dict:
    """`over_seeds` of the differences, with `up`, in how many seeds it rose, and Wilcoxon's two-sided `p`."""
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    p = float(stats.wilcoxon(differences).pvalue) if np.any(differences != 0) else 1.0
    return {**over_seeds(differences), "up": int((differences > 0).sum()), "of": len(differences), "p": p}


def machine() -> dict:
    """Processor, and the versions that a number depends on."""
    name, cpuinfo = platform.processor(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        name = next((line.split(":")[1].strip() for line in cpuinfo.open() if line.startswith("model name")), name)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    for library in (torch, transformers, sklearn, scipy):
        versions[library.__name__] = library.__version__
    return {"processor": name, "threads": torch.get_num_threads(), **versions}


def cell(entry, digits: int = 3) -> str:
    """A number with its interval, for a Markdown table."""
    if not np.isfinite(entry["value"]):
        return "–"
    if not np.isfinite(entry["low"]):
        return f"{entry['value']:.{digits}f}"
    return f"{entry['value']:.{digits}f} [{entry['low']:.{digits}f}, {entry['high']:.{digits}f}]"


def table(header, rows) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]
