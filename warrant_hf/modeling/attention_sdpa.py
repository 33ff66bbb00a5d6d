"""The cases in which `scaled_dot_product_attention` already is the operator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_masking import with_causal


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: Tensor | None,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """p = 1 and a gate `[.., .., 1, K]`: one call gives sum_j alpha_ij [g_j v_j, g_j] = [context_i, mass_i]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    has_mask = keep is not None or bias is not None
    if is_causal and (has_mask or query.shape[2] != key.shape[2]):
        # The function counts causality from the first key and takes no mask beside it.
        keep, is_causal = with_causal(keep, query, key), False
    value_width, mass_dtype = value.shape[-1], torch.promote_types(query.dtype, torch.float32)
    attn_mask, has_key = keep, None
    if keep is not None:
        # Kernels disagree about rows without any key: let these read everything and clear them afterwards.
        has_key = keep.any(dim=-1, keepdim=True)
        attn_mask = keep | ~has_key
    if bias is not None:
        limit = torch.finfo(query.dtype).max
        if torch.finfo(bias.dtype).max > limit:
            # A mask of -1e9 must not become -inf in float16: its row would lose every key.
            bias = bias.clamp(-limit, limit)
        bias = bias.to(query.dtype)
        attn_mask = bias if attn_mask is None else torch.where(attn_mask, bias, -math.inf)

    if gate is not None:
        gate = gate.to(value.dtype).transpose(-1, -2)  # [.., .., K, 1]
        value = torch.cat([gate * value, gate.expand(*value.shape[:-1], 1)], dim=-1)
        # Fused kernels want one width for q, k and v, in steps of 8; zero columns change no dot product.
        width = -(-max(query.shape[-1], value.shape[-1]) // 8) * 8
        query, key, value = (F.pad(x, (0, width - x.shape[-1])) for x in (query, key, value))

    context = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    if gate is None:
        mass = torch.ones(context.shape[:-1], dtype=mass_dtype, device=context.device)
    else:
        context, mass = context[..., :value_width], context[..., value_width].to(mass_dtype)
    if has_key is not None:
        context, mass = context.masked_fill(~has_key, 0.0), mass.masked_fill(~has_key.squeeze(-1), 0.0)
    return context, mass


__all__ = ["sdpa_attention"]
