"""Argument checks of the operator; every message names the argument, its value and the remedy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attention_gates import GATE_CLASSES, ItemGate, PairwiseGate


def to_pairs(name: str, pairs: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Checks `mask`, `gate` or `log_precision` and gives it four axes, the second of size 1 or H."""
    if pairs is None:
        return None
    if not isinstance(pairs, Tensor):
        raise TypeError(f"{name} is a {type(pairs).__name__}; pass a torch.Tensor or None.")
    if pairs.device != query.device:
        raise ValueError(f"{name} is on {pairs.device} but query is on {query.device}; move them to one device.")
    if not pairs.is_floating_point() and not (name == "mask" and pairs.dtype == torch.bool):
        allowed = "bool (True = may be read) or floating (added)" if name == "mask" else "floating"
        raise TypeError(f"{name} has dtype {pairs.dtype}; make it {allowed}, for example with .to(...).")

    (batch, heads, queries), (kv_heads, keys) = query.shape[:3], key.shape[1:3]
    four = pairs[:, None, None, :] if pairs.dim() == 2 else pairs
    if four.dim() != 4 or not (
        four.shape[0] in (1, batch)
        and four.shape[1] in (1, kv_heads, heads)
        and four.shape[2] in (1, queries)
        and four.shape[3] == keys
    ):
        hint = f"; write a [Q, K] {name} as {name}[None, None]" if pairs.dim() == 2 else ""
        head_sizes = " | ".join(str(size) for size in dict.fromkeys((1, kv_heads, heads)))
        raise ValueError(
            f"{name} has shape {list(pairs.shape)}; expected [B, K] = [{batch}, {keys}] or "
            f"[B, heads, Q, K] = [{batch}, {head_sizes}, 1 | {queries}, {keys}]{hint}."
        )
    if four.shape[1] not in (1, heads):
        four = four.repeat_interleave(heads // kv_heads, dim=1)
    return four


def check_gate(gate: object, query: Tensor, key: Tensor) -> None:
    """Raises unless the tensors of a computed gate fit query and key."""
    if not isinstance(gate, GATE_CLASSES):
        names = ", ".join(kind.__name__ for kind in GATE_CLASSES)
        raise TypeError(f"gate is a {type(gate).__name__}; pass a torch.Tensor, one of {names}, or None.")
    name = type(gate).__name__
    sizes = {"B": query.shape[0], "H": query.shape[1], "Q": query.shape[2], "K": key.shape[2]}
    if isinstance(gate, ItemGate):
        _check_axes(f"{name}.values", gate.values, query, {**sizes, "M": None}, ("B", "H", "Q", "M"))
        items = gate.items
        if not isinstance(items, Tensor) or items.dtype != torch.int64:
            raise TypeError(f"{name}.items is {getattr(items, 'dtype', type(items).__name__)}; pass int64 items.")
        if items.device != query.device:
            raise ValueError(f"{name}.items is on {items.device} but query is on {query.device}; use one device.")
        if items.dim() != 2 or items.shape[0] not in (1, sizes["B"]) or items.shape[1] != sizes["K"]:
            raise ValueError(
                f"{name}.items has shape {list(items.shape)}; expected [B | 1, K] = [{sizes['B']} | 1, {sizes['K']}]."
            )
        _check_range(f"{name}.items", items, gate.values.shape[-1])
        return
    sizes["R"] = gate.query.shape[-1] if isinstance(gate.query, Tensor) and gate.query.dim() else 0
    _check_axes(f"{name}.query", gate.query, query, sizes, ("B", "H", "Q", "R"))
    _check_axes(f"{name}.key", gate.key, query, sizes, ("B", "H", "K", "R"))
    if isinstance(gate, PairwiseGate):
        _check_axes(f"{name}.weight", gate.weight, query, sizes, ("R",))
    _check_axes(f"{name}.offset", gate.offset, query, sizes, ())
    check_number(f"{name}.leak", gate.leak, positive=False)
    if not 0 <= gate.leak < 1:
        raise ValueError(f"{name}.leak is {gate.leak}; pass a number from 0 to below 1.")


def _check_range(name: str, items: Tensor, count: int) -> None:
    """On the CPU only: an accelerator would be waited for, and its own kernels stop at such an item."""
    if items.device.type != "cpu" or torch.compiler.is_compiling() or items.numel() == 0:
        return
    try:
        highest = int(items.max())
    except RuntimeError:  # what is traced or mapped has no values
        return
    if highest >= count:
        raise ValueError(f"{name} has item {highest}, but there are values of {count} items; number them from 0.")


def _check_axes(name: str, x: object, query: Tensor, sizes: dict, axes: tuple[str, ...]) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; pass a torch.Tensor.")
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; make it floating, for example with .to(...).")
    if x.device != query.device:
        raise ValueError(f"{name} is on {x.device} but query is on {query.device}; move them to one device.")
    fits = x.dim() == len(axes) and all(
        sizes[axis] in (None, size) or (axis in "BHQ" and size == 1) for axis, size in zip(axes, x.shape)
    )
    if not fits:
        expected = ", ".join(f"{axis} | 1" if axis in "BHQ" else axis for axis in axes)
        known = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if sizes[axis] is not None)
        raise ValueError(f"{name} has shape {list(x.shape)}; expected [{expected}]{' with ' if known else ''}{known}.")


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; pass a torch.Tensor.")
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {list(x.shape)}; give it four axes [batch, heads, length, width].")
        if not x.is_floating_point():
            raise TypeError(f"{name} has dtype {x.dtype}; cast it to a floating dtype.")
        if x.dtype != query.dtype:
            raise TypeError(f"{name} has dtype {x.dtype} but query has {query.dtype}; cast them to one dtype.")
        if x.device != query.device:
            raise ValueError(f"{name} is on {x.device} but query is on {query.device}; move them to one device.")
        if x.shape[0] != query.shape[0]:
            raise ValueError(f"{name} has batch size {x.shape[0]} but query has {query.shape[0]}; make them equal.")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(
            f"key has shape {list(key.shape)} but value has {list(value.shape)}; heads and length must be equal."
        )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has width {key.shape[-1]} but query has {query.shape[-1]}; project them to one width.")
    if key.shape[2] == 0:
        raise ValueError(f"key has shape {list(key.shape)}; pass at least one key, masked if it may not be read.")
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"query has {heads} heads and key has {kv_heads}; key heads must divide query heads.")


def check_number(name: str, number: float, *, positive: bool) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} is a {type(number).__name__}; pass a number.")
    if not (0.0 if positive else -math.inf) < number < math.inf:
        raise ValueError(f"{name} is {number}; pass a finite number{' above 0' if positive else ''}.")


def check_power(power: float | Tensor, query: Tensor) -> None:
    if not isinstance(power, Tensor):
        check_number("power", power, positive=True)
    elif power.dim() != 0:
        raise ValueError(f"power has shape {list(power.shape)}; pass a number or a 0-dim tensor.")
    elif not power.is_floating_point():
        raise TypeError(f"power has dtype {power.dtype}; cast it to a floating dtype.")
    elif power.device != query.device:
        raise ValueError(f"power is on {power.device} but query is on {query.device}; move them to one device.")


__all__ = ["check_gate", "check_inputs", "check_number", "check_power", "to_pairs"]
