"""The operator term by term: the specification that every other backend is tested against."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Below this distance from p = 1 the Renyi quotient 0/0 loses its digits and is replaced by its series.
NEAR_ONE = 3e-3


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: Tensor | None,
    power: float | Tensor | None,
    dropout_mask: Tensor | None,
    return_support: bool,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Context, mass, support and weights.

    `keep`, `bias` and `gate` broadcast to `[B, H, Q, K]`, key and value have H heads, `power=None` means 1.
    `dropout_mask` holds 0 and 1 / (1 - rate); it multiplies the weights of the context only.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = torch.matmul(query.to(dtype) * scale, key.to(dtype).transpose(-1, -2))  # [B, H, Q, K]
    if bias is not None:
        logits = logits + bias.to(dtype)
    masked = torch.zeros((), dtype=torch.bool, device=query.device) if keep is None else ~keep
    logits = logits.masked_fill(masked, -math.inf)
    # Every output is invariant to a shift of a row, so the row maximum needs no gradient. Masked terms are 0 here, not
    # -inf: a product with -inf in the backward pass is NaN.
    shifted = (logits - logits.detach().amax(dim=-1, keepdim=True)).masked_fill(masked, 0.0)

    mass_terms = shifted.exp().masked_fill(masked, 0.0)
    # The maximum contributes exp(0) = 1, hence only rows without any key are touched by the clamp.
    total = mass_terms.sum(dim=-1, keepdim=True).clamp(min=1.0)
    attention = mass_terms / total

    log_total, log_power_total, amplitude = total.log(), None, None
    if power is not None:
        power = power.to(dtype) if isinstance(power, Tensor) else query.new_full((), power, dtype=dtype)
        power_terms = (power * shifted).exp().masked_fill(masked, 0.0)
        log_power_total = power_terms.sum(dim=-1, keepdim=True).clamp(min=1.0).log()
        amplitude = (log_total - log_power_total / power).exp()  # [B, H, Q, 1], w = amplitude * alpha

    permitted = attention if gate is None else attention * gate.to(dtype)
    context = torch.matmul(permitted if dropout_mask is None else permitted * dropout_mask, value.to(dtype))
    weights = attention if return_weights else None
    if amplitude is not None:
        context = amplitude * context
        weights = amplitude * attention if return_weights else None

    support = None
    if return_support:
        entropy = _renyi_entropy(attention, shifted - log_total, log_total, log_power_total, power)
        support = entropy.exp()
        if keep is not None:
            support = support.masked_fill(~keep.any(dim=-1), 0.0)
    return context.to(query.dtype), permitted.sum(dim=-1), support, weights


def _renyi_entropy(
    attention: Tensor, log_attention: Tensor, log_total: Tensor, log_power_total: Tensor | None, power: Tensor | None
) -> Tensor:
    """H_p of each row, `[B, H, Q]`; around p = 1 its series H_1 - (p - 1)/2 Var(log alpha)."""
    shannon = -(attention * log_attention).sum(dim=-1)
    if power is None:
        return shannon
    distance = power - 1.0
    is_near = distance.abs() < NEAR_ONE
    variance = (attention * log_attention.square()).sum(dim=-1) - shannon.square()
    series = shannon - 0.5 * distance * variance
    # `where` around the denominator too: an unused 0/0 would still make the gradient NaN.
    quotient = (log_power_total - power * log_total).squeeze(-1) / torch.where(is_near, 1.0, -distance)
    return torch.where(is_near, series, quotient)


__all__ = ["NEAR_ONE", "reference_attention"]
