"""Evidence attention: permission (Warrant), log-precision (PFA) and power (MAA) in one operator.

This file is the specification. Faster backends are correct when they agree with `_reference_attention`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BACKENDS = ("auto", "reference")

# Below this distance from p = 1 the Renyi quotient 0/0 loses its digits and is replaced by its series.
_NEAR_ONE = 3e-3


class EvidenceAttentionOutput(NamedTuple):
    """What [`evidence_attention`] returns; `mass`, `support` and `weights` are at least float32.

    Attributes:
        context: `[B, H, Q, Dv]`, in the dtype of the query.
        mass: `[B, H, Q]`, sum_j g_ij alpha_ij: the share of the attention that was allowed to count.
        support: `[B, H, Q]`, exp(H_p(alpha_i)), the number of keys the row effectively reads, 1 to K; `None` if not
            requested.
        weights: `[B, H, Q, K]`, the clean w_ij, before the gate; `None` unless requested.
    """

    context: Tensor
    mass: Tensor
    support: Tensor | None
    weights: Tensor | None


def evidence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    gate: Tensor | None = None,
    log_precision: Tensor | None = None,
    precision_bound: float | None = None,
    power: float | Tensor = 1.0,
    return_weights: bool = False,
    return_support: bool = True,
    backend: str = "auto",
) -> EvidenceAttentionOutput:
    r"""Attention with a permission per term, a log-precision per key and an L_p normaliser.

        s_ij = scale * q_i.k_j + mask_ij + clip(l_j, -b, b)        PFA, the minimal factorisation
        w_ij = exp(s_ij) / (sum_j exp(p s_ij))^(1/p)               MAA, eq. (3);  alpha = w at p = 1
        context_i = sum_j g_ij w_ij v_j                            Warrant, section 4.2, nothing is renormalised
        mass_i = sum_j g_ij alpha_ij                               Warrant, section 4.2
        support_i = exp(H_p(alpha_i)), H_p = log(sum_j alpha_ij^p) / (1 - p)      Renyi; Shannon at p = 1

    With g = 1, l = 0 and p = 1 this is softmax attention. MAA's amplitude is w_ij / alpha_ij = support_i^(1 - 1/p).

    **Masking.** A masked term is excluded from every sum, also from the normaliser. A row without any key gives 0 in
    every output and zero gradients. Whatever stands at a place nobody may read (NaN in padding, for example) reaches
    neither outputs nor gradients. In a float mask, -inf and the lowest finite number of its dtype mean masked.

    **Precision.** float16 and bfloat16 inputs are computed in float32. Autocast is off inside; only dtypes decide.

    **Shortcut.** With `return_support=False`, no weights, the number 1 as power and a gate that is the same for all
    queries, backend "auto" calls `torch.nn.functional.scaled_dot_product_attention`. This is exact, because
    alpha_ij (g_j v_j) = g_j (alpha_ij v_j), and as g_j is appended to g_j v_j as one more value column, the same call
    returns the mass. Half-precision inputs then follow the kernel's arithmetic, and the mass has their resolution.
    Support needs the log-normaliser, which that function does not give.

    Args:
        query: `[B, H, Q, D]`, floating.
        key: `[B, Hkv, K, D]`; Hkv divides H, and each key head serves H / Hkv consecutive query heads.
        value: `[B, Hkv, K, Dv]`.
        scale: factor of the dot product; `None` means 1/sqrt(D).
        mask: bool (True = may be read) or floating (added to the logits).
        gate: permission g in [0, 1], floating.
        log_precision: l, floating, added to the logits after clipping.
        precision_bound: b > 0; `None` means no clipping.
        power: p > 0, a number or a 0-dim tensor (then differentiable); MAA's useful range is 1.02 to 1.3.
        return_weights: also return w.
        return_support: `False` leaves `support` out, which opens the shortcut.
        backend: "auto", or "reference" to never take the shortcut.

    `mask`, `gate` and `log_precision` have shape `[B, K]` or `[B, 1 | Hkv | H, 1 | Q, K]`; B may be 1 in both.
    The values in tensors (gate in [0, 1], power > 0) are not checked, as this would wait for the device.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, device or value.
    """
    _check_inputs(query, key, value)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    else:
        _check_number("scale", scale, positive=False)
    if precision_bound is not None:
        _check_number("precision_bound", precision_bound, positive=True)
    _check_power(power, query)
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(map(repr, BACKENDS))}.")
    mask, gate, log_precision = (
        _to_pairs(name, pairs, query, key)
        for name, pairs in (("mask", mask), ("gate", gate), ("log_precision", log_precision))
    )

    # From here on all heads are query heads.
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)

    keep, bias = mask, None
    if mask is not None and mask.is_floating_point():
        # `>` is also False for NaN. Masks of transformers hold finfo.min where others write -inf.
        keep = mask > torch.finfo(mask.dtype).min
        bias = mask.masked_fill(~keep, 0.0)
    if keep is not None:
        # 0 * NaN is NaN, so what nobody reads is blanked at the source and not multiplied away later.
        query = query.masked_fill(~keep.any(dim=-1, keepdim=True), 0.0)
        unread = ~keep.any(dim=-2).unsqueeze(-1)
        key, value = key.masked_fill(unread, 0.0), value.masked_fill(unread, 0.0)
        gate, log_precision = _blank_unread(gate, keep), _blank_unread(log_precision, keep)
    if log_precision is not None:
        if precision_bound is not None:
            log_precision = log_precision.clamp(-precision_bound, precision_bound)
        bias = log_precision if bias is None else bias + log_precision

    is_softmax = not isinstance(power, Tensor) and power == 1
    query_free_gate = gate is None or gate.shape[2] == 1
    use_sdpa = backend == "auto" and is_softmax and query_free_gate and not (return_weights or return_support)
    with torch.autocast(query.device.type, enabled=False):
        if use_sdpa:
            return _sdpa_attention(query, key, value, scale=scale, keep=keep, bias=bias, gate=gate)
        return _reference_attention(
            query,
            key,
            value,
            scale=scale,
            keep=keep,
            bias=bias,
            gate=gate,
            power=None if is_softmax else power,
            return_weights=return_weights,
            return_support=return_support,
        )


def _reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: Tensor | None,
    power: float | Tensor | None,
    return_weights: bool,
    return_support: bool,
) -> EvidenceAttentionOutput:
    """The definition, term by term. `keep`, `bias` and `gate` broadcast to `[B, H, Q, K]`; `power=None` means 1."""
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
    context = torch.matmul(permitted, value.to(dtype))
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
    return EvidenceAttentionOutput(context.to(query.dtype), permitted.sum(dim=-1), support, weights)


def _renyi_entropy(
    attention: Tensor, log_attention: Tensor, log_total: Tensor, log_power_total: Tensor | None, power: Tensor | None
) -> Tensor:
    """H_p of each row, `[B, H, Q]`; around p = 1 its series H_1 - (p - 1)/2 Var(log alpha)."""
    shannon = -(attention * log_attention).sum(dim=-1)
    if power is None:
        return shannon
    distance = power - 1.0
    is_near = distance.abs() < _NEAR_ONE
    variance = (attention * log_attention.square()).sum(dim=-1) - shannon.square()
    series = shannon - 0.5 * distance * variance
    # `where` around the denominator too: an unused 0/0 would still make the gradient NaN.
    quotient = (log_power_total - power * log_total).squeeze(-1) / torch.where(is_near, 1.0, -distance)
    return torch.where(is_near, series, quotient)


def _sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: Tensor | None,
) -> EvidenceAttentionOutput:
    """p = 1 and a gate `[.., .., 1, K]`: one call gives sum_j alpha_ij [g_j v_j, g_j] = [context_i, mass_i]."""
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

    context = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, scale=scale)
    if gate is None:
        mass = torch.ones(context.shape[:-1], dtype=mass_dtype, device=context.device)
    else:
        context, mass = context[..., :value_width], context[..., value_width].to(mass_dtype)
    if has_key is not None:
        context, mass = context.masked_fill(~has_key, 0.0), mass.masked_fill(~has_key.squeeze(-1), 0.0)
    return EvidenceAttentionOutput(context, mass, None, None)


def _blank_unread(pairs: Tensor | None, keep: Tensor) -> Tensor | None:
    """Zero where no row that shares the entry may read it; axes on which `pairs` broadcasts stay broadcast."""
    if pairs is None:
        return None
    for axis in range(3):
        if pairs.shape[axis] == 1:
            keep = keep.any(dim=axis, keepdim=True)
    return pairs.masked_fill(~keep, 0.0)


def _to_pairs(name: str, pairs: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
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


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
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


def _check_number(name: str, number: float, *, positive: bool) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} is a {type(number).__name__}; pass a number.")
    if not (0.0 if positive else -math.inf) < number < math.inf:
        raise ValueError(f"{name} is {number}; pass a finite number{' above 0' if positive else ''}.")


def _check_power(power: float | Tensor, query: Tensor) -> None:
    if not isinstance(power, Tensor):
        _check_number("power", power, positive=True)
    elif power.dim() != 0:
        raise ValueError(f"power has shape {list(power.shape)}; pass a number or a 0-dim tensor.")
    elif not power.is_floating_point():
        raise TypeError(f"power has dtype {power.dtype}; cast it to a floating dtype.")
    elif power.device != query.device:
        raise ValueError(f"power is on {power.device} but query is on {query.device}; move them to one device.")


__all__ = ["EvidenceAttentionOutput", "evidence_attention"]
