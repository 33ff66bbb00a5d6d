"""The result of the six tests, and the name that a model has earned by them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..evaluation.report import write_json, write_text


@dataclass(frozen=True)
class ContractTest:
    """One test.

    Attributes:
        name: such as "task_error".
        asks: what its statistic is.
        value, low, high: the statistic with its 95 % interval.
        demands: the threshold, in words.
        passed: whether the whole interval meets it.
    """

    name: str
    asks: str
    value: float
    low: float
    high: float
    demands: str
    passed: bool


@dataclass(frozen=True)
class ContractReport:
    """All six tests.

    Attributes:
        tests: in the order of `check_precision_contract`.
        lists: how many lists they rest on.
        clipped_share: share of the log-precisions of the base lists at the bound; `None` if the model does not say.
    """

    tests: tuple[ContractTest, ...]
    lists: int
    clipped_share: float | None = None

    @property
    def passed(self) -> bool:
        return all(test.passed for test in self.tests)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(test.name for test in self.tests if not test.passed)

    @property
    def label(self) -> str:
        """What the score may be called: "precision" if all six tests passed, else "reliability score"."""
        return "precision" if self.passed else "reliability score"

    def __getitem__(self, name: str) -> ContractTest:
        return next(test for test in self.tests if test.name == name)

    def to_dict(self) -> dict[str, Any]:
        tests = [{**asdict(test), "passed": bool(test.passed)} for test in self.tests]
        return {"label": self.label, "lists": self.lists, "clipped_share": self.clipped_share, "tests": tests}

    def to_markdown(self, title: str = "Precision contract") -> str:
        clipped = "not recorded" if self.clipped_share is None else f"{self.clipped_share:.4f}"
        lines = [f"## {title}", "", f"Earned label: **{self.label}**", ""]
        lines += [f"- lists: {self.lists}", f"- log-precisions at the bound: {clipped}", ""]
        lines += ["| test | statistic | value | 95 % interval | demanded | verdict |", "|---|---|---:|---:|---|---|"]
        for test in self.tests:
            verdict = "pass" if test.passed else "FAIL"
            span = f"{test.low:.3f} … {test.high:.3f}"
            lines.append(f"| {test.name} | {test.asks} | {test.value:.3f} | {span} | {test.demands} | {verdict} |")
        return "\n".join(lines) + "\n"

    def write(self, *, json: str | Path | None = None, markdown: str | Path | None = None) -> None:
        """Writes the forms that a path is given for, each whole or not at all."""
        if json is not None:
            write_json(json, self.to_dict())
        if markdown is not None:
            write_text(markdown, self.to_markdown())


__all__ = ["ContractReport", "ContractTest"]
