"""Evidence attention: permission (Warrant), log-precision (PFA) and power (MAA) in one operator.

The specification is attention_reference.py. Faster backends are correct when they agree with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .attention_checks import check_gate, check_inputs, check_number, check_power, to_pairs
from .attention_dropout import dropout_rows
from .attention_fused import FUSED_BACKENDS, fused_attention, has_tangents
from .attention_gates import GATE_CLASSES, ItemGate, LowRankGate, PairwiseGate, own_gate
from .attention_masking import blank_unread, rows_with_key, with_causal
from .attention_problem import AttentionProblem
from .attention_reference import NEAR_ONE, reference_attention
from .attention_sdpa import sdpa_attention

BACKENDS = ("auto", "reference", *FUSED_BACKENDS)

# Terms (queries x keys x heads x batch, times the hidden size of a pairwise gate) from which a fused backend pays.
FUSED_FROM = 1 << 20


class EvidenceAttentionOutput(NamedTuple):
    """What [`evidence_attention`] returns; `mass`, `support` and `weights` are at least float32.

    Attributes:
        context: `[B, H, Q, Dv]`, in the dtype of the query.
        mass: `[B, H, Q]`, sum_j g_ij alpha_ij: the share of the attention that was allowed to count, 0 to 1; `None`
            if not requested. At p != 1 the context is made of g_ij w_ij, which differ from g_ij alpha_ij by one
            factor per row, support_i^(1 - 1/p).
        support: `[B, H, Q]`, exp(H_p(alpha_i)), the number of keys the row effectively reads, 1 to K; `None` unless
            requested.
        weights: `[B, H, Q, K]`, the clean w_ij, before gate and dropout; `None` unless requested.
    """

    context: Tensor
    mass: Tensor | None
    support: Tensor | None
    weights: Tensor | None


def evidence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    gate: Tensor | ItemGate | PairwiseGate | LowRankGate | None = None,
    log_precision: Tensor | None = None,
    precision_bound: float | None = None,
    power: float | Tensor = 1.0,
    dropout: float = 0.0,
    return_mass: bool = True,
    return_support: bool = False,
    return_weights: bool = False,
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

    **Precision.** Logits, normalisers and gates of float16 and bfloat16 inputs are computed in float32, and every
    product accumulates in it. Autocast is off inside; only dtypes decide.

    **Dropout.** A weight w_ij is 0 with this probability and grows by 1 / (1 - dropout) otherwise, before the gate
    (the order makes no difference). Mass, support and weights are the clean ones.

    **Backends.** "auto" takes the first that fits:

    - `scaled_dot_product_attention`, if p is the number 1, the gate is the same for all queries, no support, weights
      or dropout is asked for: alpha_ij (g_j v_j) = g_j (alpha_ij v_j), and as g_j is appended to g_j v_j as one more
      value column, the same call returns the mass. Half-precision inputs then follow the kernel's arithmetic.
    - "reference", which stores `[B, H, Q, K]`: small problems, weights, the support at (or near) p = 1, and export.
    - "triton" on CUDA, "cpp" on a CPU with a compiler (built once, at first use), where they can do the problem.
    - "blockwise", plain PyTorch: any device, memory linear in K.

    The last three store the output and two numbers per row for the backward pass; they are differentiable once, and
    backwards only. "auto" takes "reference" in forward mode.

    Args:
        query: `[B, H, Q, D]`, floating.
        key: `[B, Hkv, K, D]`; Hkv divides H, and each key head serves H / Hkv consecutive query heads.
        value: `[B, Hkv, K, Dv]`.
        scale: factor of the dot product; `None` means 1/sqrt(D).
        mask: bool (True = may be read) or floating (added to the logits, differentiable).
        is_causal: query i reads key j only if j <= i + K - Q, also if there is a mask.
        gate: permission g in [0, 1]: floating, or an [`ItemGate`], [`PairwiseGate`] or [`LowRankGate`], which is
            computed inside and never stored as `[Q, K]` by fused backends.
        log_precision: l, floating, added to the logits after clipping.
        precision_bound: b > 0; `None` means no clipping.
        power: p > 0, a number or a 0-dim tensor (then differentiable); MAA's useful range is 1.02 to 1.3.
        dropout: in [0, 1).
        return_mass, return_support, return_weights: which outputs to compute.
        backend: "auto", "reference", "blockwise", "cpp" or "triton".

    `mask`, `gate` and `log_precision` have shape `[B, K]` or `[B, 1 | Hkv | H, 1 | Q, K]`; B may be 1 in both.
    The values in tensors (gate in [0, 1], power > 0) are not checked, as this would wait for the device.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, device or value, or the named backend cannot do this.
    """
    check_inputs(query, key, value)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    else:
        check_number("scale", scale, positive=False)
    if precision_bound is not None:
        check_number("precision_bound", precision_bound, positive=True)
    check_power(power, query)
    check_number("dropout", dropout, positive=False)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; pass a number from 0 to below 1.")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(map(repr, BACKENDS))}.")
    if isinstance(gate, Tensor) or gate is None:
        gate = to_pairs("gate", gate, query, key)
    else:
        gate = own_gate(gate)
        check_gate(gate, query, key)
    mask = to_pairs("mask", mask, query, key)
    log_precision = to_pairs("log_precision", log_precision, query, key)

    is_softmax = not isinstance(power, Tensor) and power == 1
    is_causal = bool(is_causal) and key.shape[2] > 1
    keep, bias = mask, None
    if mask is not None and mask.is_floating_point():
        # `>` is also False for NaN. Masks of transformers hold finfo.min where others write -inf.
        keep = mask > torch.finfo(mask.dtype).min
        bias = mask.masked_fill(~keep, 0.0)
    if isinstance(gate, GATE_CLASSES) and _is_query_free(gate):
        gate = gate.dense()  # [b, h, 1, K], no larger than its inputs
    if keep is not None or is_causal:
        query, key, value, gate, log_precision = blank_unread(query, key, value, gate, log_precision, keep, is_causal)
    if log_precision is not None:
        if precision_bound is not None:
            log_precision = log_precision.clamp(-precision_bound, precision_bound)
        bias = log_precision if bias is None else bias + log_precision

    with torch.autocast(query.device.type, enabled=False):
        is_simple = is_softmax and dropout == 0 and not (return_weights or return_support)
        if backend == "auto" and is_simple and (gate is None or (isinstance(gate, Tensor) and gate.shape[2] == 1)):
            context, mass = sdpa_attention(
                query, key, value, scale=scale, keep=keep, bias=bias, gate=gate, is_causal=is_causal
            )
            return EvidenceAttentionOutput(context, mass if return_mass else None, None, None)
        seed = torch.randint(2**62, ()) if dropout else None
        kind, tensors = "none", ()
        if gate is not None:
            kind, tensors = ("tensor", (gate,)) if isinstance(gate, Tensor) else (gate.kind, gate.tensors())
        problem = AttentionProblem(
            query=query,
            key=key,
            value=value,
            keep=keep,
            bias=bias,
            gate_kind=kind,
            gate=tensors,
            leak=getattr(gate, "leak", 0.0),
            scale=scale,
            power=1.0 if isinstance(power, Tensor) else float(power),
            is_causal=is_causal,
            dropout=dropout,
            seed=0,
        )
        learned_power = power if isinstance(power, Tensor) else None
        is_near_one = learned_power is not None or abs(power - 1) < NEAR_ONE
        needs_terms = return_weights or (return_support and is_near_one)
        backend = _choose_backend(backend, problem, needs_terms, has_tangents(problem, learned_power))
        if backend == "reference":
            return _reference(
                problem, gate, power=None if is_softmax else power, seed=seed, return_support=return_support,
                return_weights=return_weights, return_mass=return_mass,
            )  # fmt: skip
        context, mass, lse, lse_power = fused_attention(
            problem, power=learned_power, seed=seed, need_mass=return_mass and gate is not None, backend=backend
        )
    has_key = None
    if (return_mass and gate is None) or return_support:
        has_key = rows_with_key(keep, is_causal, query, key)
    support = None
    if return_support:
        support = (power * (lse_power - lse) / (1 - power)).exp().where(has_key, 0.0)
    if return_mass and gate is None:
        mass = has_key.expand(lse.shape).to(lse.dtype)
    return EvidenceAttentionOutput(context, mass, support, None)


def _is_query_free(gate: ItemGate | PairwiseGate | LowRankGate) -> bool:
    return (gate.values if isinstance(gate, ItemGate) else gate.query).shape[2] == 1


def _choose_backend(backend: str, problem: AttentionProblem, needs_terms: bool, forward_mode: bool) -> str:
    if backend in FUSED_BACKENDS:
        if needs_terms:
            raise ValueError(
                f"backend {backend!r} gives no weights and no support at or near power 1; use backend='reference'."
            )
        if forward_mode:
            raise ValueError(f"backend {backend!r} has no forward-mode derivative; use backend='reference'.")
        reason = FUSED_BACKENDS[backend].unsupported(problem)
        if reason is not None:
            raise ValueError(f"backend {backend!r} cannot do this: {reason}")
        return backend
    if backend == "reference" or needs_terms or forward_mode or torch.compiler.is_exporting():
        return "reference"
    query, key = problem.query, problem.key
    terms = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    if problem.gate_kind == "mlp":
        terms *= problem.gate[2].shape[0]
    if problem.dropout and torch.compiler.is_compiling():
        return "blockwise"  # an operator of its own may draw random numbers by a seed; a traced graph may not
    if terms < FUSED_FROM:
        return "reference"
    fast = "triton" if query.is_cuda else "cpp"
    return "blockwise" if FUSED_BACKENDS[fast].unsupported(problem) else fast


def _reference(problem, gate, *, power, seed, return_support, return_weights, return_mass):
    query, key, value = problem.query, problem.key, problem.value
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    keep = with_causal(problem.keep, query, key) if problem.is_causal else problem.keep
    dropped = None
    if problem.dropout:
        shape = (*query.shape[:3], key.shape[2])
        every = [slice(0, size) for size in shape]
        like = query.new_empty((), dtype=torch.promote_types(query.dtype, torch.float32))
        dropped = dropout_rows(shape, problem.dropout, int(seed), every[2], every[1], every[0], like=like)
    context, mass, support, weights = reference_attention(
        query,
        key,
        value,
        scale=problem.scale,
        keep=keep,
        bias=problem.bias,
        gate=gate.dense() if isinstance(gate, GATE_CLASSES) else gate,
        power=power,
        dropout_mask=dropped,
        return_support=return_support,
        return_weights=return_weights,
    )
    return EvidenceAttentionOutput(context, mass if return_mass else None, support, weights)


__all__ = ["BACKENDS", "EvidenceAttentionOutput", "evidence_attention"]
