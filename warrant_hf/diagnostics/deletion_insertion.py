"""Deletion and insertion curves: gates closed, or opened, one after another in the order of what a method trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..data.candidates import seeded_random, shuffled
from ..evaluation.bootstrap import bootstrap_interval, paired_difference
from .decisions import DecisionCase
from .utilities import judged, utility_of

#: Orders of candidates, most trusted first; equal values in input order.
ORDERS: dict[str, Callable[[DecisionCase], np.ndarray]] = {
    "attention": lambda case: case.attention,
    "permission": lambda case: case.permission,
    "effective": lambda case: case.effective,
    "score": lambda case: case.logits,
}
#: Shares of the candidates at which mean curves are given.
GRID = np.linspace(0, 1, 11)


def curves(case: DecisionCase, order: Sequence[int], utility: str = "negative_loss") -> tuple[np.ndarray, np.ndarray]:
    """Utility after 0, 1, ... C candidates were closed, and after as many were opened from all closed, `[C + 1]` each.

    Args:
        order (`[C]`): every candidate once. An opened candidate gets its learned permission.
        utility: a name of `UTILITIES`.

    Raises:
        ValueError: `order` is no permutation of the candidates, or the utility does not fit the question.
    """
    order = np.asarray(order)
    if sorted(order.tolist()) != list(range(len(case.labels))):
        raise ValueError(f"order is {order.tolist()}; give each of the {len(case.labels)} candidates once.")
    step = np.arange(len(order) + 1)[:, None]
    place = np.argsort(order)
    return utility_of(case, utility, place >= step), utility_of(case, utility, place < step)


def area(curve: np.ndarray) -> float:
    """Area under a curve over the share of candidates, 0 to 1, by trapezoids: the mean utility on the way."""
    return float((curve[1:] + curve[:-1]).mean() / 2)


def deletion_insertion_report(
    cases: Sequence[DecisionCase],
    utility: str = "negative_loss",
    *,
    random_orders: int = 20,
    resamples: int = 1000,
    seed: int = 0,
) -> dict:
    """Areas under deletion and insertion curves, for the orders of `ORDERS` and at random.

    An order that puts first what the utility needs has a small area of deletion and a large one of insertion. Random
    is the mean over `random_orders` orders of each question, drawn from the seed and the question's id.

    Returns:
        `utility`, `questions`, `skipped` (ids), `orders`: `{order: {"deletion" | "insertion": {"area": interval,
        "against_random": interval with p, "curve": [11 means over questions]}}}`, and `grid`.

    Raises:
        ValueError: no question on which the utility is defined, or `random_orders` below 1.
    """
    if random_orders < 1:
        raise ValueError(f"random_orders is {random_orders}; give 1 or more.")
    kept, skipped = judged(list(cases), utility)
    found = {
        name: [curves(case, np.argsort(-of(case), kind="stable"), utility) for case in kept]
        for name, of in ORDERS.items()
    }
    found["random"] = [_random_curves(case, utility, random_orders, seed) for case in kept]
    orders = {}
    for name, pairs in found.items():
        orders[name] = {}
        for at, kind in enumerate(("deletion", "insertion")):
            areas, chance = ([area(pair[at]) for pair in side] for side in (pairs, found["random"]))
            orders[name][kind] = {
                "area": bootstrap_interval(areas, resamples=resamples, seed=seed),
                "curve": np.mean([_on_grid(pair[at]) for pair in pairs], axis=0).tolist(),
            }
            if name != "random":
                difference = paired_difference(areas, chance, resamples=resamples, seed=seed)
                orders[name][kind]["against_random"] = difference
    return {
        "utility": utility,
        "questions": len(kept),
        "skipped": skipped,
        "random_orders": random_orders,
        "grid": GRID.tolist(),
        "orders": orders,
    }


def _random_curves(case, utility, count, seed) -> np.ndarray:
    rng = seeded_random("deletion_insertion", seed, case.id)
    drawn = [curves(case, shuffled(range(len(case.labels)), rng), utility) for _ in range(count)]
    return np.mean(drawn, axis=0)  # [2, C + 1]


def _on_grid(curve: np.ndarray) -> np.ndarray:
    return np.interp(GRID, np.linspace(0, 1, len(curve)), curve)


__all__ = ["GRID", "ORDERS", "area", "curves", "deletion_insertion_report"]
