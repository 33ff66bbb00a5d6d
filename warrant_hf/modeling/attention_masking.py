"""Who reads whom: rows without any key, keys that nobody reads, and blanking what stands there."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .attention_gates import ItemGate


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """bool `[1, 1, Q, K]`: query i may read key j <= i + K - Q."""
    last = torch.arange(queries, device=device).unsqueeze(-1) + (keys - queries)
    return (torch.arange(keys, device=device) <= last)[None, None]


def with_causal(keep: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    future = causal_mask(query.shape[2], key.shape[2], query.device)
    return future if keep is None else keep & future


def rows_with_key(keep: Tensor | None, is_causal: bool, query: Tensor, key: Tensor) -> Tensor:
    """bool `[b, h, q]`, without building a mask of queries x keys that is not there yet."""
    queries, keys = query.shape[2], key.shape[2]
    if not is_causal:
        if keep is None:
            return torch.ones(1, 1, 1, dtype=torch.bool, device=query.device)
        return keep.any(-1)
    if keep is not None and keep.shape[2] > 1:
        return with_causal(keep, query, key).any(-1)
    last = torch.arange(queries, device=query.device) + (keys - queries)
    if keep is None:
        return (last >= 0)[None, None]
    # argmax of a bool row is its first kept key.
    first = keep.to(torch.uint8).argmax(-1)
    return keep.any(-1) & (first <= last)


def blank_unread(query, key, value, gate, log_precision, keep, is_causal):
    """Zeros where no row reads, because 0 * NaN is NaN: it is blanked at the source and not multiplied away later.

    `keep` bool `[b, h, q, K]` or `None`. Returns query, key, value, gate and log_precision.
    """
    pairs = [x for x in (gate, log_precision) if isinstance(x, Tensor) and x.shape[2] > 1]
    if is_causal and (pairs or (keep is not None and keep.shape[2] > 1)):
        keep, is_causal = with_causal(keep, query, key), False
    has_key = rows_with_key(keep, is_causal, query, key).unsqueeze(-1)
    query = _blank(query, has_key)
    if keep is None:  # the last row of a causal problem reads every key
        read = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    else:
        # A key axis of the mask that has H heads counts for the key head that they share.
        read = keep.any(-2)
        if read.shape[1] not in (1, key.shape[1]):
            read = read.unflatten(1, (key.shape[1], -1)).any(2)
        key, value = _blank(key, read.unsqueeze(-1)), _blank(value, read.unsqueeze(-1))
        read = keep.any(-2).unsqueeze(-1)  # [b, h, K, 1]
    if isinstance(gate, Tensor):
        gate = gate if keep is None else _blank(gate, keep)
    elif isinstance(gate, ItemGate):
        values = _blank(gate.values, has_key)
        if keep is not None:
            items = gate.items[:, None, :].expand(max(gate.items.shape[0], read.shape[0]), read.shape[1], -1)
            here = (read.squeeze(-1) & (items >= 0)).expand(items.shape)
            count = values.new_zeros(*items.shape[:2], values.shape[-1], dtype=torch.int64)
            count = count.scatter_add(-1, items.clamp(min=0), here.to(torch.int64))
            values = _blank(values, (count > 0).unsqueeze(2))
        gate = dataclasses.replace(gate, values=values)
    elif gate is not None:
        gate = dataclasses.replace(gate, query=_blank(gate.query, has_key), key=_blank(gate.key, read))
    if log_precision is not None and keep is not None:
        log_precision = _blank(log_precision, keep)
    return query, key, value, gate, log_precision


def _blank(x: Tensor, read: Tensor) -> Tensor:
    """Zero where no row that shares the entry reads it; axes on which `x` broadcasts stay broadcast."""
    for axis in range(3):
        if x.shape[axis] == 1 and read.shape[axis] > 1:
            read = read.any(dim=axis, keepdim=True)
    return x.masked_fill(~read, 0.0)


__all__ = ["blank_unread", "causal_mask", "rows_with_key", "with_causal"]
