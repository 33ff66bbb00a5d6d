"""How good a decision is, as a number that open and closed gates can be judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .decisions import DecisionCase, log_sigmoid


@dataclass(frozen=True)
class Utility:
    """One row of `UTILITIES`.

    Attributes:
        of: `(labels [C], logits [..., C], answerability logits [...]) -> [...]`, larger is better.
        needs_gold: undefined for a question without evidence.
        summary: one line for reports.
    """

    of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    needs_gold: bool
    summary: str


def _gold_log_probability(labels, logits, answerability):
    return log_sigmoid(logits[..., labels == 1]).mean(-1)


def _negative_loss(labels, logits, answerability):
    return log_sigmoid(np.where(labels == 1, logits, -logits)).mean(-1)


def _listwise(labels, logits, answerability):
    share = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return share[..., labels == 1].mean(-1)


def _answerability(labels, logits, answerability):
    return log_sigmoid(answerability if (labels == 1).any() else -answerability)


#: A gate changes the logit of its own candidate alone. The first two are therefore sums over candidates: marginal
#: values under them do not depend on which other gates are open, and a distractor helps by being closed or not at all.
UTILITIES = {
    "gold_log_probability": Utility(_gold_log_probability, True, "mean log-probability of the evidence"),
    "negative_loss": Utility(_negative_loss, False, "minus the binary cross-entropy over the list"),
    "listwise": Utility(_listwise, True, "mean log-share of the evidence in a softmax over the list"),
    "answerability": Utility(_answerability, False, "log-probability of the truth about the list's answerability"),
}


def find_utility(name: str) -> Utility:
    """The row `name` of `UTILITIES`, or a `ValueError` that lists the names."""
    if name not in UTILITIES:
        raise ValueError(f"utility is {name!r}; choose one of {', '.join(map(repr, UTILITIES))}.")
    return UTILITIES[name]


def utility_of(case: DecisionCase, name: str, keep: np.ndarray) -> np.ndarray:
    """Utility `[...]` of the decision when only the candidates `keep` (`[..., C]`, bool) keep their permission.

    Raises:
        ValueError: an unknown name, or a question without evidence where the utility needs some.
    """
    utility = find_utility(name)
    if utility.needs_gold and not (case.labels == 1).any():
        raise ValueError(f"question {case.id!r} has no evidence, which utility {name!r} needs; leave it out.")
    masses = case.with_open(keep)
    return utility.of(case.labels, case.rule.logits(masses), case.rule.answerability(masses))


def judged(cases: list[DecisionCase], name: str) -> tuple[list[DecisionCase], list[str]]:
    """The cases on which the utility is defined, and the ids of the others.

    Raises:
        ValueError: an unknown name, or no case is left.
    """
    needs_gold = find_utility(name).needs_gold
    kept = [case for case in cases if not needs_gold or (case.labels == 1).any()]
    if not kept:
        raise ValueError(
            f"no question has evidence, which utility {name!r} needs; give other rows or another utility."
        )
    chosen = {id(case) for case in kept}
    return kept, [case.id for case in cases if id(case) not in chosen]


__all__ = ["UTILITIES", "Utility", "find_utility", "judged", "utility_of"]
