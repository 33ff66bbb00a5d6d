"""What each passage is worth to a decision: exact Shapley values over the gates of the passages read most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from ..evaluation.bootstrap import bootstrap_interval
from .decisions import DecisionCase
from .utilities import judged, utility_of

#: 2^12 subsets a question.
MOST_ITEMS = 12
#: A value smaller than this is none: neither helpful nor harmful.
NEGLIGIBLE = 1e-6
_CHANCE_DRAWS = 1000
# Masses held at a time.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class MarginalValues:
    """What the gates of k candidates are worth in one decision; the gates of all others stay as learned.

    Attributes:
        id: of the question. items (`[k]`): the candidates, most attention first.
        attention, permission (`[k]`): of these candidates.
        shapley (`[k]`): phi, which sums to `full - empty`.
        leave_one_out (`[k]`): what closing this gate alone takes away.
        interactions (`[k, k]`): Shapley interaction index of two candidates, symmetric, 0 on the diagonal.
        full, empty: utility with all k gates as learned, and with all of them closed.
        best: largest utility of any subset, which only who knows the labels can choose. best_items: that subset.
    """

    id: str
    items: np.ndarray
    attention: np.ndarray
    permission: np.ndarray
    shapley: np.ndarray
    leave_one_out: np.ndarray
    interactions: np.ndarray
    full: float
    empty: float
    best: float
    best_items: np.ndarray


def marginal_values(case: DecisionCase, utility: str = "negative_loss", top_k: int = 8) -> MarginalValues:
    r"""Exact Shapley values of the `top_k` candidates with the largest attention, over all 2^k sets of open gates,

        phi_j = sum_{S without j} |S|! (k - |S| - 1)! / k! [u(S + j) - u(S)]

    where u(S) is the utility with the learned permission on S and 0 on the rest of the k.

    Args:
        case: of `read_decisions`.
        utility: a name of `UTILITIES`.
        top_k: 1 to 12; a list with fewer candidates has as many values as candidates.

    Raises:
        ValueError: `top_k` out of range, an unknown utility, or one that needs evidence on a question without.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= MOST_ITEMS:
        raise ValueError(f"top_k is {top_k!r}; give a whole number from 1 to {MOST_ITEMS}.")
    items = np.argsort(-case.attention, kind="stable")[:top_k]
    k = len(items)
    subsets = np.arange(1 << k)
    member = (subsets[:, None] >> np.arange(k)) & 1 == 1  # [2^k, k]
    values = []
    for part in np.array_split(member, -(-member.shape[0] * len(case.labels) // _AT_ONCE)):
        keep = np.ones((len(part), len(case.labels)), dtype=bool)
        keep[:, items] = part
        values.append(utility_of(case, utility, keep))
    values = np.concatenate(values)

    size = member.sum(1)
    shapley, interactions = np.zeros(k), np.zeros((k, k))
    for j in range(k):
        without = subsets[~member[:, j]]
        weight = np.array([1 / (k * comb(k - 1, s)) for s in range(k)])
        shapley[j] = weight[size[without]] @ (values[without | 1 << j] - values[without])
        for other in range(j):
            neither = without[~member[without, other]]
            weight = np.array([1 / ((k - 1) * comb(k - 2, s)) for s in range(k - 1)])
            both, one, two = (values[neither | bits] for bits in (1 << j | 1 << other, 1 << j, 1 << other))
            interactions[j, other] = weight[size[neither]] @ (both - one - two + values[neither])
    best = int(values.argmax())
    return MarginalValues(
        id=case.id,
        items=items,
        attention=case.attention[items],
        permission=case.permission[items],
        shapley=shapley,
        leave_one_out=values[-1] - values[subsets[-1] - (1 << np.arange(k))],
        interactions=interactions + interactions.T,
        full=float(values[-1]),
        empty=float(values[0]),
        best=float(values[best]),
        best_items=items[member[best]],
    )


def marginal_value_report(
    cases: Sequence[DecisionCase],
    utility: str = "negative_loss",
    *,
    top_k: int = 8,
    resamples: int = 1000,
    seed: int = 0,
) -> dict:
    """Whether attention and permission know what a passage is worth, with intervals over questions and chance levels.

    The chance levels stand beside the shares because about half of all values are negative where signs mean nothing,
    and an item taken at random is harmful as often as the items are. Their intervals hold 95 % of what chance gives on
    as many questions.

    | metric | mean over questions of |
    |---|---|
    | `spearman_attention`, `spearman_permission` | rank correlation with phi, where neither is constant |
    | `harmful_top_share` | whether the most attended candidate has phi < 0 |
    | `harmful_item_share` | the share of the k candidates with phi < 0 |
    | `pair_interaction` | the size of the interaction of two candidates |
    | `leave_one_out_gap` | \\|leave-one-out − phi\\| |
    | `oracle_subset_gain` | the utility of the best subset minus that of all: an oracle, it is chosen by the labels |

    Returns:
        `metrics`: `{name: {"value", "low", "high", "questions"}}`; `chance`: for a metric, `{null: {"value", "low",
        "high"}}` with the nulls "permutation" (phi shuffled among the k) and "sign_flip" (each phi keeps its size and
        gets a random sign); `efficiency_gap`: largest |sum phi − (full − empty)|; `skipped`: ids of questions on which
        the utility is undefined.

    Raises:
        ValueError: as for `marginal_values`, or no question on which the utility is defined.
    """
    kept, skipped = judged(list(cases), utility)
    found = [marginal_values(case, utility, top_k) for case in kept]
    per_question = {
        "spearman_attention": [_spearman(each.attention, each.shapley) for each in found],
        "spearman_permission": [_spearman(each.permission, each.shapley) for each in found],
        "harmful_top_share": [float(each.shapley[0] < -NEGLIGIBLE) for each in found],
        "harmful_item_share": [(each.shapley < -NEGLIGIBLE).mean() for each in found],
        "pair_interaction": [_mean_pair(each.interactions) for each in found],
        "leave_one_out_gap": [np.abs(each.leave_one_out - each.shapley).mean() for each in found],
        "oracle_subset_gain": [each.best - each.full for each in found],
    }
    metrics = {}
    for name, values in per_question.items():
        defined = [value for value in values if not np.isnan(value)]
        if defined:
            metrics[name] = bootstrap_interval(defined, resamples=resamples, seed=seed) | {"questions": len(defined)}
    return {
        "utility": utility,
        "top_k": top_k,
        "questions": len(found),
        "skipped": skipped,
        "metrics": metrics,
        "chance": _chance(found, metrics, seed),
        "efficiency_gap": max(abs(each.shapley.sum() - (each.full - each.empty)) for each in found),
    }


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.stats import spearmanr

    # What differs by rounding alone has no order.
    a, b = a.round(9), b.round(9)
    return float("nan") if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def _mean_pair(interactions: np.ndarray) -> float:
    pairs = interactions[np.triu_indices(len(interactions), 1)]
    return float(np.abs(pairs).mean()) if pairs.size else float("nan")


def _chance(found: list[MarginalValues], metrics: dict, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    sizes = np.array([len(each.items) for each in found])
    harmful = np.array([(each.shapley < -NEGLIGIBLE).sum() for each in found])
    valued = np.array([(np.abs(each.shapley) >= NEGLIGIBLE).sum() for each in found])
    top_valued = np.array([abs(each.shapley[0]) >= NEGLIGIBLE for each in found])
    draws = (_CHANCE_DRAWS, len(found))
    flips = rng.random(draws) < 0.5
    chance = {
        "harmful_top_share": {
            "permutation": _null((harmful / sizes).mean(), rng.random(draws) < harmful / sizes),
            "sign_flip": _null(top_valued.mean() / 2, flips & top_valued),
        },
        "harmful_item_share": {
            "sign_flip": _null((valued / sizes).mean() / 2, rng.binomial(valued, 0.5, draws) / sizes)
        },
    }
    for name, field in (("spearman_attention", "attention"), ("spearman_permission", "permission")):
        if name in metrics:
            # Over permutations a rank correlation of k items has mean 0 and variance 1 / (k - 1), with ties too.
            known = [len(each.items) for each in found if not np.isnan(_spearman(getattr(each, field), each.shapley))]
            reach = 1.96 * np.sqrt(sum(1 / (k - 1) for k in known)) / len(known)
            chance[name] = {"permutation": {"value": 0.0, "low": -float(reach), "high": float(reach)}}
    return chance


def _null(expected: float, draws: np.ndarray) -> dict[str, float]:
    """What chance gives: the expected mean over questions, and the middle 95 % of means of `[draws, questions]`."""
    low, high = np.quantile(draws.mean(1), [0.025, 0.975])
    return {"value": float(expected), "low": float(low), "high": float(high)}


__all__ = ["MOST_ITEMS", "MarginalValues", "marginal_value_report", "marginal_values"]
