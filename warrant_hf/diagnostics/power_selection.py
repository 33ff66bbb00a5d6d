"""Which power p, and against what (MAA, section on power selection and ablations).

The rule is lexicographic and is fixed before anything is tested: of the powers that preserve the utility of the task
on the selection split, the one with the best recovery. Recovery never buys a loss of utility. A choice knows the
cells that it was made on, and refuses to be tested on them.

Needs pandas: pip install pandas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn
from torch.nn import functional as F

from ..modeling.attention_interface import check_power_field
from ..modeling.attention_modules import MassAwareAttention, WarrantAttention

#: Powers of the paper's sweeps; 1 is softmax.
POWERS = (1.0, 1.02, 1.1, 1.2, 1.3, 2.0)
SCHEDULES = ("fixed", "forward", "reverse")
_CELL = ("model", "dataset", "seed", "split")


@dataclass(frozen=True)
class PowerChoice:
    """A power, frozen.

    Attributes:
        power: the chosen one.
        baseline: the power that it is compared with.
        feasible: powers whose utility is preserved, ascending; the baseline is always among them.
        selected_on: cells that the choice was made on.
    """

    power: float
    baseline: float
    feasible: tuple[float, ...]
    selected_on: frozenset = field(repr=False)

    def evaluate(self, test) -> dict[str, float]:
        """Utility and recovery of the frozen power on other cells, the mean over cells after the mean over seeds.

        Args:
            test: table as in [`select_power`]; of its powers only the chosen one and the baseline are looked at.

        Returns:
            `{"power", "cells", "utility", "recovery", "utility_gain", "recovery_gain"}`; gains are over the baseline.

        Raises:
            ValueError: a cell took part in the selection, or one of the two powers is missing in a cell.
        """
        table = _table(test)
        used = sorted(_cells(table) & self.selected_on)
        if used:
            raise ValueError(f"{used[0]} took part in the selection; test the frozen power on cells that did not.")
        means = _means(table[table["power"].isin([self.power, self.baseline])], [self.power, self.baseline])
        chosen, baseline = means.xs(self.power, level="power"), means.xs(self.baseline, level="power")
        gains = (chosen - baseline).mean()
        return {
            "power": self.power,
            "cells": len(chosen),
            "utility": float(chosen["utility"].mean()),
            "recovery": float(chosen["recovery"].mean()),
            "utility_gain": float(gains["utility"]),
            "recovery_gain": float(gains["recovery"]),
        }


def select_power(table, *, baseline: float = 1.0, tolerance: float = 0.0) -> PowerChoice:
    """The paper's rule: first the powers that preserve utility, then the best recovery among them.

    Means are taken over the seeds of a cell first and over cells then, so that a cell with more seeds counts no more.
    Of equal recoveries the power nearest to the baseline is taken.

    Args:
        table: a DataFrame, or a list of dicts, with `power`, `utility` (higher is better: give minus a loss) and
            `recovery`, and whichever of `model`, `dataset`, `seed` and `split` tell rows apart. Every cell has every
            power.
        baseline: the power whose utility is to be preserved.
        tolerance: how much utility may be lost at most, in its own units.

    Raises:
        ValueError: columns or powers are missing, a row occurs twice, or a number is not finite.
    """
    table = _table(table)
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance is {tolerance}; give a number of 0 or more.")
    powers = sorted(table["power"].unique())
    if baseline not in powers:
        raise ValueError(f"The table has no rows with power {baseline}, the baseline; measure it too.")
    means = _means(table, powers).groupby(level="power").mean()
    # Sums of equal numbers in another order may differ in the last digit, which is no loss of utility.
    floor = means.loc[baseline, "utility"] - tolerance - 1e-12
    feasible = [power for power in powers if means.loc[power, "utility"] >= floor]
    best = max(feasible, key=lambda power: (means.loc[power, "recovery"], -abs(power - baseline)))
    return PowerChoice(float(best), float(baseline), tuple(map(float, feasible)), frozenset(_cells(table)))


def leave_one_model_out(table, *, test=None, baseline: float = 1.0, tolerance: float = 0.0) -> list[dict]:
    """For each model: the power that the other models choose, and how it does on the one that was left out.

    Args:
        table: as in [`select_power`], with a column `model` of two models or more.
        test: where the excluded model is evaluated; `None` for its own rows in `table`, none of which was looked at.

    Returns:
        One dict a model: `model`, `feasible`, and what [`PowerChoice.evaluate`] gives.

    Raises:
        ValueError: fewer than two models, and what [`select_power`] refuses.
    """
    table = _table(table)
    models = list(dict.fromkeys(table["model"])) if "model" in table else []
    if len(models) < 2:
        raise ValueError("The table has fewer than two models; to leave one out, give a column `model` with more.")
    test = table if test is None else _table(test)
    folds = []
    for model in models:
        choice = select_power(table[table["model"] != model], baseline=baseline, tolerance=tolerance)
        found = choice.evaluate(test[test["model"] == model])
        folds.append({"model": model, "feasible": choice.feasible, **found})
    return folds


def power_schedule(kind: str, steps: int, *, mild: float = 1.1, strong: float = 2.0) -> list[float]:
    """Powers of `steps` steps: "fixed" (mild), "forward" (strong to mild) or "reverse" (mild to strong), linear.

    The paper changes p over training; the same list over the layers of a model goes to `set_maa_power`.

    Raises:
        ValueError: an unknown kind, no step, or a power that is not above 0.
    """
    if kind not in SCHEDULES:
        raise ValueError(f"kind is {kind!r}; choose one of {', '.join(SCHEDULES)}.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps is {steps!r}; give a whole number of 1 or more.")
    for name, power in (("mild", mild), ("strong", strong)):
        check_power_field(power, name)
    if kind == "fixed":
        return [float(mild)] * steps
    start, end = (strong, mild) if kind == "forward" else (mild, strong)
    return [start + (end - start) * step / max(steps - 1, 1) for step in range(steps)]


class UnitMassAttention(MassAwareAttention):
    """[`MassAwareAttention`] whose aggregates, one per query and head, are divided by their L_2 norm.

    The matched control of the ablation: the amplitude g_p of equation (4) cannot pass, and what p then still changes
    is what training made of it. They enter the output layer with length sqrt(head width), that of unit variance.

    Args: see [`MassAwareAttention`].
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, **settings):
        super().__init__(embed_dim, num_heads, dropout, bias, **settings)
        self.out_proj = _UnitHeads(self.out_proj, num_heads)


class _UnitHeads(nn.Linear):
    def __init__(self, linear, heads):
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)
        self.load_state_dict(linear.state_dict())
        self.heads = heads

    def forward(self, context):
        heads = context.unflatten(-1, (self.heads, -1))
        return super().forward((F.normalize(heads, dim=-1) * heads.shape[-1] ** 0.5).flatten(-2))


#: Rivals of a mass-aware layer -> how one is made from (embed_dim, heads, power, further settings).
MASS_CONTROLS = {
    "softmax": lambda width, heads, power, **more: MassAwareAttention(width, heads, power=1.0, **more),
    "maa": lambda width, heads, power, **more: MassAwareAttention(width, heads, power=power, **more),
    "maa_unit": lambda width, heads, power, **more: UnitMassAttention(width, heads, power=power, **more),
    "cpa_count": lambda width, heads, power, **more: WarrantAttention(width, heads, control="cpa_count", **more),
    "cpa_sum": lambda width, heads, power, **more: WarrantAttention(width, heads, control="cpa_sum", **more),
}


def mass_control(name: str, embed_dim: int, num_heads: int, power: float = 1.1, **settings) -> nn.Module:
    """An attention layer of `MASS_CONTROLS`: "softmax", "maa", "maa_unit" (no amplitude), "cpa_count" and "cpa_sum"
    (the number or the plain sum of the readable values is put in directly, whatever the attention says).

    Raises:
        ValueError: an unknown name, and what the layers refuse.
    """
    if name not in MASS_CONTROLS:
        raise ValueError(f"name is {name!r}; choose one of {', '.join(MASS_CONTROLS)}.")
    return MASS_CONTROLS[name](embed_dim, num_heads, power, **settings)


def _table(rows):
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("power selection needs pandas; install it with pip install pandas.") from error
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    missing = [name for name in ("power", "utility", "recovery") if name not in table]
    if missing:
        raise ValueError(f"The table has no column `{missing[0]}`; give power, utility and recovery in each row.")
    if table.empty:
        raise ValueError("The table has no rows; give one for each power.")
    numbers = table[["power", "utility", "recovery"]].astype(float)
    if not numbers.map(math.isfinite).all().all():
        raise ValueError("power, utility or recovery holds values that are not finite; leave those cells out.")
    table = table.assign(**numbers)
    keys = [*(name for name in _CELL if name in table), "power"]
    if table.duplicated(keys).any():
        row = table[table.duplicated(keys)].iloc[0]
        named = ", ".join(f"{key} {row[key]}" for key in keys)
        raise ValueError(
            f"{named} has two rows; give one, or add a column (model, dataset, seed, split) that differs."
        )
    return table


def _cells(table):
    names = [name for name in _CELL if name in table]
    # A table without any such column is one cell of its own.
    return {tuple(map(str, row)) for row in table[names].itertuples(index=False)} if names else set()


def _means(table, powers):
    """Utility and recovery by cell and power, the mean over seeds."""
    names = [name for name in _CELL if name in table]
    measured = table.groupby(names, dropna=False)["power"].nunique() if names else [table["power"].nunique()]
    if not len(measured) or min(measured) < len(set(powers)):
        raise ValueError(f"A cell lacks one of the powers {', '.join(f'{p:g}' for p in powers)}; measure all of them.")
    by = [name for name in names if name != "seed"]
    means = table.groupby([*by, "power"], dropna=False)[["utility", "recovery"]].mean()
    return means


__all__ = [
    "MASS_CONTROLS",
    "POWERS",
    "SCHEDULES",
    "PowerChoice",
    "UnitMassAttention",
    "leave_one_model_out",
    "mass_control",
    "power_schedule",
    "select_power",
]
