"""Replay: what follows from a ledger alone is computed again and compared with what it says.

Within a record: effective = attention * permission, and the contribution's norm; the logit from the effective mass and
the recorded constants, `beta log(max(C m, mass_floor)) + bias`; the probability from the logit; the selection from its
rule; the clipped log precision from the raw one. Over a decision whose records are all there: attention sums to one
(at `reading_power` 1), effective masses to `mass`, and ranks follow from the scores, equal ones in input order. The
answerability follows from `mass`.

A replay finds a number that was changed, not a forgery that is consistent in itself. Whether the model really gives
these numbers is another question, which [`rescore`] asks the model.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ledger_schema import DECISION_FIELDS, LedgerRecord

_NUMBERS = (
    "index attention permission effective contribution_norm score probability rank revoked selected mass "
    "answerability record_count candidate_count threshold top_k beta bias mass_floor mass_scale mass_bias "
    "log_precision_raw log_precision precision_bound precision_clipped reading_power"
).split()
#: The readout computes in float32; a ledger holds its numbers in full.
TOLERANCE = 1e-5
# Equal texts of a list share the numbers of the first, and the others' states differ by the rounding of the encoder.
_SUM_TOLERANCE, _COARSE_SUM_TOLERANCE = 1e-4, 2e-2
_FINE_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Difference:
    """A field of a record that is not what it should be.

    Args:
        record_id (`str`): the record; the first of a decision for a sum over it.
        field (`str`): name of the field, or `sum of attention`.
        recorded, recomputed: the two values; None for null.
        tolerance (`float`): how far apart they may be, in the unit of the field; 0 where they must be equal.
    """

    record_id: str
    field: str
    recorded: Any
    recomputed: Any
    tolerance: float

    def __str__(self) -> str:
        return (
            f"{self.record_id}: {self.field} is {_shown(self.recorded)}, recomputed {_shown(self.recomputed)} "
            f"(tolerance {self.tolerance:.1g})"
        )


@dataclass
class Replay:
    """What a replay found.

    Args:
        records, decisions (`int`): how many there were.
        incomplete (`dict[str, tuple[int, int]]`): decisions that lack records, with how many there are and should
            be: a writer was interrupted, or lines were taken out. Their sums and ranks were not checked.
        differences (`list[Difference]`).
    """

    records: int = 0
    decisions: int = 0
    incomplete: dict[str, tuple[int, int]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)


def replay(records: Iterable[LedgerRecord], *, tolerance: float = TOLERANCE) -> Replay:
    """Computes again what follows from the records of a ledger, in any order.

    Args:
        records: as `read_ledger` gives them; they are not kept.
        tolerance (`float`): relative, for masses and for logits (there of 1 + |logit|).

    Raises:
        ValueError: there are no records.
    """
    columns = _Columns(records)
    if not columns.record_ids:
        raise ValueError("there are no records to replay; give a ledger that holds some.")
    return columns.replayed(tolerance)


class _Columns:
    """The numbers of all records as arrays, null as NaN; what is not a number is compared while it goes by."""

    def __init__(self, records: Iterable[LedgerRecord]):
        numbers = {name: array("d") for name in _NUMBERS}
        decisions: dict[str, int] = {}
        first: list[tuple] = []
        self.record_ids: list[str] = []
        self.decision = array("q")
        self.coarse = array("b")
        self.found: list[Difference] = []
        seen: set[str] = set()
        for record in records:
            values = record.__dict__
            for name, column in numbers.items():
                value = values[name]
                column.append(np.nan if value is None else value)
            place = decisions.setdefault(record.decision_id, len(decisions))
            common = tuple([values[name] for name in DECISION_FIELDS])
            if place == len(first):
                first.append(common)
            elif common != first[place]:
                self._disagreement(record.record_id, common, first[place])
            self._check_identity(record, seen)
            self.record_ids.append(record.record_id)
            self.decision.append(place)
            self.coarse.append(record.dtype not in _FINE_DTYPES)
        self.decision_ids = list(decisions)
        for name, column in numbers.items():
            setattr(self, name, np.frombuffer(column) if column else np.empty(0))
        self.group = np.frombuffer(self.decision, dtype=np.int64) if self.record_ids else np.empty(0, dtype=np.int64)

    def _disagreement(self, record_id: str, common: tuple, first: tuple) -> None:
        for name, here, there in zip(DECISION_FIELDS, common, first, strict=True):
            if here != there:
                self.found.append(Difference(record_id, name, here, there, 0.0))

    def _check_identity(self, record: LedgerRecord, seen: set[str]) -> None:
        expected = f"{record.decision_id}/{record.index}"
        if record.record_id != expected:
            self.found.append(Difference(record.record_id, "record_id", record.record_id, expected, 0.0))
        if record.record_id in seen:
            self.found.append(Difference(record.record_id, "occurrences in the ledger", 2, 1, 0.0))
        seen.add(record.record_id)
        rule = "threshold" if record.threshold is not None else "top_k" if record.top_k is not None else None
        if record.rule != rule:
            self.found.append(Difference(record.record_id, "rule", record.rule, rule, 0.0))

    def replayed(self, tolerance: float) -> Replay:
        c = self
        with np.errstate(all="ignore"):  # null is NaN here
            self._compare("effective", c.attention * c.permission, 1e-9, tolerance)
            self._compare("contribution_norm", c.effective, 1e-9, tolerance)
            logit = c.beta * np.log(np.maximum(c.candidate_count * c.effective, c.mass_floor)) + c.bias
            self._compare("score", logit, tolerance, tolerance)
            self._compare("probability", _sigmoid(c.score), 1e-9)
            answerable = c.mass_scale * np.log(np.maximum(c.mass, c.mass_floor)) + c.mass_bias
            self._compare("answerability", _sigmoid(answerable), tolerance)
            chosen = np.where(np.isnan(c.top_k), c.probability >= c.threshold, c.rank <= c.top_k) & (c.revoked == 0)
            ruled = ~np.isnan(c.top_k) | ~np.isnan(c.threshold)
            self._compare("selected", np.where(ruled, chosen, np.nan), 0.0, kind=bool)
            for at in np.flatnonzero(~ruled & ~np.isnan(c.selected)):
                self._note(at, "selected", c.selected[at], np.nan, 0.0, bool)
            bounded = np.clip(c.log_precision_raw, -c.precision_bound, c.precision_bound)
            self._compare("log_precision", bounded, tolerance, tolerance)
            clipped = np.where(np.isnan(bounded), np.nan, np.abs(c.log_precision_raw) > c.precision_bound)
            self._compare("precision_clipped", clipped, 0.0, kind=bool)
            incomplete = self._over_decisions(tolerance)
        order = {record_id: at for at, record_id in reversed(list(enumerate(self.record_ids)))}
        self.found.sort(key=lambda difference: order[difference.record_id])
        return Replay(len(self.record_ids), len(self.decision_ids), incomplete, self.found)

    def _over_decisions(self, tolerance: float) -> dict[str, tuple[int, int]]:
        """Sums and ranks; the decisions that lack records are returned."""
        count = np.bincount(self.group)
        _, first = np.unique(self.group, return_index=True)
        wanted = self.record_count[first]
        short = {self.decision_ids[at]: (int(count[at]), int(wanted[at])) for at in np.flatnonzero(count < wanted)}
        whole = count == wanted
        coarse = np.frombuffer(self.coarse, dtype=np.int8)[first] == 1
        slack = np.maximum(np.where(coarse, _COARSE_SUM_TOLERANCE, _SUM_TOLERANCE), tolerance)
        # A sum with a null in it is NaN, and nothing follows from it.
        read, mass = np.bincount(self.group, self.attention), np.bincount(self.group, self.effective)
        power = self.reading_power[first]
        # What the weights of another power sum to depends on logits that no record holds.
        whole_share = np.where(np.isnan(power) | (power == 1), np.minimum(self.candidate_count[first], 1.0), read)
        recorded = self.mass[first]
        for name, here, again, near in (
            ("sum of attention", read, whole_share, slack),
            ("mass", recorded, mass, slack * (np.abs(mass) + 1e-6)),
        ):
            for at in np.flatnonzero(whole & ((np.abs(here - again) > near) | (np.isnan(here) & ~np.isnan(mass)))):
                self._note(first[at], name, here[at], again[at], near[at])
        order = np.lexsort((self.index, -self.score, self.group))
        rank = np.empty(len(order))
        rank[order] = np.arange(len(order)) - (np.cumsum(count) - count)[self.group[order]] + 1
        self._compare("rank", np.where(whole[self.group], rank, self.rank), 0.0, kind=int)
        return short

    def _compare(
        self, name: str, again: np.ndarray, absolute: float, relative: float = 0.0, *, kind: type = float
    ) -> None:
        """Notes where a column differs from what follows; where nothing follows there is nothing to compare."""
        recorded, tolerance = getattr(self, name), absolute + relative * np.abs(again)
        for at in np.flatnonzero((np.abs(recorded - again) > tolerance) | (np.isnan(recorded) & ~np.isnan(again))):
            self._note(at, name, recorded[at], again[at], tolerance[at], kind)

    def _note(self, at: int, name: str, recorded, again, tolerance, kind: type = float) -> None:
        values = (None if np.isnan(value) else kind(value) for value in (recorded, again))
        self.found.append(Difference(self.record_ids[at], name, *values, float(tolerance)))


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(logit))
    return np.where(logit >= 0, 1 / (1 + small), small / (1 + small))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


__all__ = ["TOLERANCE", "Difference", "Replay", "replay"]
