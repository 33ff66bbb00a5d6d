"""The information boundary: reliability evidence may not know the answer (PFA, "make precision earn its name").

Precision is the inverse conditional variance "given the evidence available before the target is known". Evidence that
holds the target, or the error that was made, would give a head that looks precise and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

#: From this share on, a label counts as determined. Honest evidence of our sensors stays below 0.3.
DETERMINED = 0.9
_FEWEST_ROWS = 50
_MOST_ROWS = 20_000


class LeakError(ValueError):
    """Reliability evidence determines a label."""


def check_information_boundary(
    evidence: np.ndarray, labels: Mapping[str, np.ndarray], names: Sequence[str] | None = None
) -> None:
    """Refuses evidence of which one column, or all columns together linearly, determine a label.

    A column determines a label if the label is (nearly) a function of it, of whatever shape: Chatterjee's coefficient
    of 0.9 or more, which also finds a copy, a rescaled copy, and the label's bin where the label is discrete. A label
    that only a nonlinear function of several columns would give passes; the homoscedastic null of the contract
    finds it by what it does.

    Args:
        evidence: `[N, K, F]` or `[N, F]`, finite; 50 rows (N * K) or more.
        labels: name -> `[N]` (the same for all K) or `[N, K]`: targets, and the errors of the readings.
        names: of the F columns.

    Raises:
        LeakError: a label is determined; the sentence names it and the columns.
        ValueError: shapes do not fit, or there are too few rows to tell.
    """
    evidence = np.asarray(evidence, dtype=np.float64)
    lists = evidence.shape[:-1]
    columns = evidence.reshape(-1, evidence.shape[-1]) if evidence.ndim in (2, 3) else evidence
    if columns.ndim != 2 or len(columns) < _FEWEST_ROWS or not np.isfinite(columns).all():
        raise ValueError(
            f"evidence has shape {list(evidence.shape)}; give finite [N, K, F] with {_FEWEST_ROWS} sensors or more."
        )
    names = list(names) if names is not None else [f"column {number}" for number in range(columns.shape[1])]
    if len(names) != columns.shape[1]:
        raise ValueError(f"names has {len(names)} entries and evidence {columns.shape[1]} columns; name each column.")
    for label, values in labels.items():
        values = np.asarray(values, dtype=np.float64)
        if values.shape not in (lists, lists[:1]):
            raise ValueError(f"label {label} has shape {list(values.shape)}; give {list(lists[:1])} or {list(lists)}.")
        if values.shape != lists:
            values = np.repeat(values, lists[1])
        _check_label(columns[:_MOST_ROWS], label, values.reshape(-1)[:_MOST_ROWS], names)


def dependence(x: np.ndarray, y: np.ndarray) -> float:
    """Chatterjee's coefficient of y on x, both `[n]`: 0 if independent, to 1 as y becomes a function of x.

    Equal x are put in random order, of a fixed seed. Equal y follow the general formula,
    1 - n sum |r_{i+1} - r_i| / (2 sum l_i (n - l_i)).
    """
    n = len(x)
    order = np.lexsort((np.random.default_rng(0).random(n), x))
    ascending = np.sort(y)
    at_most = np.searchsorted(ascending, y[order], side="right")
    at_least = n - np.searchsorted(ascending, y[order], side="left")
    spread = 2 * float((at_least * (n - at_least)).sum())
    return 1 - n * float(np.abs(np.diff(at_most)).sum()) / spread if spread else 0.0


def _check_label(columns: np.ndarray, label: str, values: np.ndarray, names: Sequence[str]) -> None:
    for name, column in zip(names, columns.T, strict=True):
        if dependence(column, values) >= DETERMINED:
            raise LeakError(f"evidence {name!r} determines {label}; leave it out: precision must not know the answer.")
    centred = values - values.mean()
    total = float(centred @ centred)
    if total == 0:
        return
    design = np.column_stack([columns, np.ones(len(columns))])
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    if 1 - float(((values - fitted) ** 2).sum()) / total >= DETERMINED:
        raise LeakError(
            f"the evidence columns {', '.join(names)} together determine {label}; leave out those that hold it."
        )


__all__ = ["DETERMINED", "LeakError", "check_information_boundary", "dependence"]
