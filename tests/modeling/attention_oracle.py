"""The formulas of the fused attention backends, dense, in differentiable float64: what they are tested against."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from warrant_hf.modeling.attention_problem import AttentionProblem


class DenseAttention(NamedTuple):
    """What [`dense`] returns, all float64.

    Attributes:
        context: `[B, H, Q, Dv]`.
        mass: `[B, H, Q]`.
        lse: `[B, H, Q]`.
        lse_power: `[B, H, Q]`.
    """

    context: Tensor
    mass: Tensor
    lse: Tensor
    lse_power: Tensor


def dense(problem: AttentionProblem) -> DenseAttention:
    """Evaluates the problem term by term; autograd through the result gives every gradient.

    Any tensor of the problem may be a leaf, and `power` may be a 0-dim tensor. Dropout is not applied.
    """
    query, key, value = (x.double() for x in (problem.query, problem.key, problem.value))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    exists = existing_terms(problem)
    logits = problem.scale * (query @ key.transpose(-1, -2))
    if problem.bias is not None:
        logits = logits + problem.bias.double()
    power = torch.as_tensor(problem.power, dtype=torch.float64)

    # Shifting by the row maximum and back changes nothing but the range of exp.
    top = logits.detach().masked_fill(~exists, -math.inf).amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    shifted = (logits - top).masked_fill(~exists, 0.0)
    has_key = exists.any(dim=-1, keepdim=True)
    total, power_total = (
        (factor * shifted).exp().masked_fill(~exists, 0.0).sum(dim=-1, keepdim=True).masked_fill(~has_key, 1.0)
        for factor in (1.0, power)
    )
    lse, lse_power = total.log() + top, power_total.log() / power + top
    attention = (shifted - total.log()).exp().masked_fill(~exists, 0.0)
    weights = (shifted - power_total.log() / power).exp().masked_fill(~exists, 0.0)
    gate = gate_values(problem)
    context = (weights * gate) @ value
    return DenseAttention(context, (attention * gate).sum(dim=-1), lse.squeeze(-1), lse_power.squeeze(-1))


def existing_terms(problem: AttentionProblem) -> Tensor:
    """Bool `[B, H, Q, K]`: the terms that are in the sums."""
    batch, heads, queries = problem.query.shape[:3]
    keys = problem.key.shape[2]
    exists = torch.ones(batch, heads, queries, keys, dtype=torch.bool, device=problem.query.device)
    if problem.keep is not None:
        exists = exists & problem.keep
    if problem.is_causal:
        exists = exists.tril(keys - queries)
    return exists


def gate_values(problem: AttentionProblem) -> Tensor:
    """g in float64, broadcastable to `[B, H, Q, K]`."""
    kind, gate = problem.gate_kind, problem.gate
    if kind == "none":
        return torch.ones(1, 1, 1, 1, dtype=torch.float64, device=problem.query.device)
    if kind == "tensor":
        return gate[0].double()
    if kind == "item":
        values, items = gate
        batch = max(values.shape[0], items.shape[0])
        values = values.double().expand(batch, -1, -1, -1)
        index = items[:, None, None, :].expand(batch, values.shape[1], values.shape[2], -1)
        return values.gather(-1, index)
    query, key = gate[0].double().unsqueeze(-2), gate[1].double().unsqueeze(-3)
    if kind == "mlp":
        psi = (F.gelu(query + key) * gate[2].double()).sum(dim=-1) + gate[3].double()
    elif kind == "low_rank":
        psi = (query * key).sum(dim=-1) + gate[2].double()
    else:
        raise ValueError(f"gate_kind is {kind!r}.")
    return problem.leak + (1.0 - problem.leak) * psi.sigmoid()


__all__ = ["DenseAttention", "dense", "existing_terms", "gate_values"]
