"""The lexicographic rule, its folds, and the controls of a mass-aware layer."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from warrant_hf import MassAwareAttention
from warrant_hf.diagnostics.power_selection import (
    MASS_CONTROLS,
    leave_one_model_out,
    mass_control,
    power_schedule,
    select_power,
)

# Utility and recovery: 1.1 recovers less than 2, but 2 costs utility.
PLAIN = {1.0: (0.90, 0.50), 1.1: (0.91, 0.60), 1.3: (0.895, 0.70), 2.0: (0.70, 0.99)}


def table(effects=PLAIN, models=("a", "b", "c"), seeds=(0, 1), split="select"):
    return pd.DataFrame(
        {"model": m, "dataset": "d", "seed": s, "split": split, "power": p, "utility": u + 0.01 * s, "recovery": r}
        for m in models
        for s in seeds
        for p, (u, r) in effects.items()
    )


def test_recovery_never_buys_a_loss_of_utility():
    choice = select_power(table())
    assert (choice.power, choice.feasible) == (1.1, (1.0, 1.1))
    assert select_power(table(), tolerance=0.006).power == 1.3
    assert select_power(table(), tolerance=1.0).power == 2.0


def test_the_baseline_remains_if_all_else_is_worse():
    worse = {1.0: (0.9, 0.5), 1.1: (0.8, 0.9), 1.2: (0.9, 0.4)}
    assert select_power(table(worse)).power == 1.0


def test_equal_recoveries_take_the_milder_power():
    tied = {1.0: (0.9, 0.5), 2.0: (0.9, 0.6), 1.1: (0.9, 0.6)}
    assert select_power(table(tied)).power == 1.1


def test_a_cell_with_more_seeds_counts_no_more():
    liked = table({1.0: (0.5, 0.5), 1.1: (0.5, 0.7), 1.2: (0.5, 0.6)}, models=("a",), seeds=range(9))
    disliked = table({1.0: (0.5, 0.5), 1.1: (0.5, 0.1), 1.2: (0.5, 0.6)}, models=("b",), seeds=(0,))
    assert select_power(pd.concat([liked, disliked])).power == 1.2


def test_a_frozen_power_is_tested_on_other_cells_only():
    choice = select_power(table())
    with pytest.raises(ValueError, match="took part in the selection"):
        choice.evaluate(table())
    test = table({1.0: (0.8, 0.4), 1.1: (0.7, 0.6), 2.0: (1.0, 1.0)}, split="test")
    found = choice.evaluate(test)
    assert found["power"] == 1.1 and found["cells"] == 3
    assert (found["utility_gain"], found["recovery_gain"]) == pytest.approx((-0.1, 0.2))
    with pytest.raises(AttributeError):
        choice.power = 2.0


def test_an_excluded_model_has_no_say():
    """Model c alone likes 1.3; each fold is decided by the other two."""
    other = {**PLAIN, 1.1: (0.1, 0.1), 1.3: (0.99, 0.99)}
    rows = pd.concat([table(models=("a", "b")), table(other, models=("c",))])
    folds = {fold["model"]: fold for fold in leave_one_model_out(rows)}
    assert list(folds) == ["a", "b", "c"]
    assert folds["c"]["power"] == 1.1 and folds["c"]["recovery_gain"] == pytest.approx(0.1 - 0.5)
    assert folds["a"]["power"] == folds["b"]["power"] == 1.3
    assert folds["a"]["utility_gain"] == pytest.approx(-0.005)


@pytest.mark.parametrize(
    "rows, message",
    [
        (table().drop(columns="utility"), "no column `utility`"),
        (table().iloc[:0], "no rows"),
        (table()[lambda t: t.power != 1], "no rows with power 1"),
        (table().iloc[1:].query("power != 1 or seed == 0 or model != 'a'").iloc[1:], "lacks one of the powers"),
        (pd.concat([table(), table()]), "has two rows"),
        (table({1.0: (float("nan"), 1)}), "not finite"),
    ],
)
def test_errors_of_a_table(rows, message):
    with pytest.raises(ValueError, match=message):
        select_power(rows)


def test_one_model_cannot_be_left_out():
    with pytest.raises(ValueError, match="fewer than two models"):
        leave_one_model_out(table(models=("a",)))


def test_schedules():
    assert power_schedule("fixed", 3) == [1.1, 1.1, 1.1]
    assert power_schedule("forward", 3, mild=1.0) == pytest.approx([2.0, 1.5, 1.0])
    assert power_schedule("reverse", 3, mild=1.0) == pytest.approx([1.0, 1.5, 2.0])
    assert power_schedule("forward", 1) == [2.0]
    for arguments, message in ((("up", 3), "kind is 'up'"), (("fixed", 0), "steps is 0")):
        with pytest.raises(ValueError, match=message):
            power_schedule(*arguments)
    with pytest.raises(ValueError, match="mild is -1"):
        power_schedule("fixed", 2, mild=-1)


def read_copies(name, copies, power=1.5):
    torch.manual_seed(0)
    layer = mass_control(name, 8, 2, power).eval()
    if layer.permission is not None:
        for parameter in layer.permission.parameters():  # 0 at first: softmax
            nn.init.ones_(parameter)
    items = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1)).repeat(1, copies, 1)
    query = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(2))
    return (layer(query, items)[0] - layer.out_proj.bias).detach().flatten().numpy()


def test_only_the_layers_with_mass_answer_to_repetition():
    for name in ("softmax", "maa_unit"):
        np.testing.assert_allclose(read_copies(name, 4), read_copies(name, 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(read_copies("maa", 4), 4 ** (1 - 1 / 1.5) * read_copies("maa", 1), rtol=1e-4)
    assert np.linalg.norm(read_copies("cpa_sum", 4)) > 2 * np.linalg.norm(read_copies("cpa_sum", 1))


def test_the_unit_control_keeps_direction_and_parameters():
    torch.manual_seed(0)
    unit = mass_control("maa_unit", 8, 2, 1.5)
    plain = MassAwareAttention(8, 2, power=1.5)
    plain.load_state_dict(unit.state_dict())  # the same names and shapes
    states = torch.randn(1, 5, 8)
    with torch.no_grad():
        for layer in (unit, plain):  # no mixing of heads
            layer.out_proj.weight.copy_(torch.eye(8))
            layer.out_proj.bias.zero_()
        a, b = unit(states)[0].unflatten(-1, (2, 4)), plain(states)[0].unflatten(-1, (2, 4))
    torch.testing.assert_close(torch.cosine_similarity(a, b, dim=-1), torch.ones(1, 5, 2))
    torch.testing.assert_close(a.norm(dim=-1), torch.full((1, 5, 2), 2.0))


def test_controls_are_named():
    with pytest.raises(ValueError, match="choose one of softmax"):
        mass_control("sum", 8, 2)
    assert list(MASS_CONTROLS) == ["softmax", "maa", "maa_unit", "cpa_count", "cpa_sum"]
