"""The fused operator as one `torch.library` operator: forward, backward, shapes for `torch.compile`.

Saved for the backward pass are the inputs, the output and one or two normalisers per row. With

    lse_i = log sum_j exp(s_ij)       lse_power_i = (1/p) log sum_j exp(p s_ij)
    alpha_ij = exp(s_ij - lse_i)      w_ij = exp(s_ij - lse_power_i)      r_ij = exp(p (s_ij - lse_power_i))

the gradients of context_i = sum_j g_ij w_ij v_j, mass_i = sum_j g_ij alpha_ij and of both normalisers are

    dG_ij = w_ij (dcontext_i . v_j) + alpha_ij dmass_i
    dS_ij = g_ij dG_ij + alpha_ij (dlse_i - mass_i dmass_i) + r_ij (dlse_power_i - dcontext_i . context_i)

so that, as in FlashAttention, no `[Q, K]` tensor has to be kept.
"""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Not `from . import`, which transformers does not follow when it copies the code of a checkpoint.
from .attention_blockwise import forward as _blockwise
from .attention_cpu import forward as _cpp
from .attention_problem import AttentionProblem
from .attention_triton import forward as _triton
from .code_copy import IS_COPY

FUSED_BACKENDS = {
    name: sys.modules[function.__module__]
    for name, function in {"blockwise": _blockwise, "cpp": _cpp, "triton": _triton}.items()
}

# Under the same name, the operator of a checkpoint's code would take the place of this one.
_NAMESPACE = "warrant_hf" + (f"_{hashlib.sha256(__name__.encode()).hexdigest()[:12]}" if IS_COPY else "")

_DIFFERENTIABLE = ("query", "key", "value", "bias", "gate", "power")


@torch.library.custom_op(f"{_NAMESPACE}::evidence_attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: list[Tensor],
    power_tensor: Tensor | None,
    seed: Tensor | None,
    gate_kind: str,
    leak: float,
    scale: float,
    power: float,
    is_causal: bool,
    dropout: float,
    need_mass: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = _problem(
        query, key, value, keep, bias, gate, power_tensor, seed, gate_kind, leak, scale, power, is_causal, dropout
    )
    context, mass, lse, lse_power = FUSED_BACKENDS[backend].forward(problem, need_mass)
    if lse_power is lse:  # outputs of a custom operator may not alias each other
        lse_power = lse.new_empty(0) if power_tensor is None else lse.clone()
    return context, mass, lse, lse_power


@_attention.register_fake
def _(query, key, value, keep, bias, gate, power_tensor, seed, gate_kind, leak, scale, power, is_causal, dropout,
      need_mass, backend):  # fmt: skip
    row_dtype = torch.promote_types(query.dtype, torch.float32)
    rows = query.shape[:-1]
    is_softmax = power_tensor is None and power == 1
    return (
        query.new_empty(*rows, value.shape[-1]),
        query.new_empty(rows if need_mass else (0,), dtype=row_dtype),
        query.new_empty(rows, dtype=row_dtype),
        query.new_empty((0,) if is_softmax else rows, dtype=row_dtype),
    )


@torch.library.custom_op(f"{_NAMESPACE}::evidence_attention_backward", mutates_args=())
def _attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    gate: list[Tensor],
    power_tensor: Tensor | None,
    seed: Tensor | None,
    gate_kind: str,
    leak: float,
    scale: float,
    power: float,
    is_causal: bool,
    dropout: float,
    backend: str,
    needs: str,
    lse: Tensor,
    lse_power: Tensor,
    d_context: Tensor,
    d_mass: Tensor | None,
    row: Tensor,
    row_power: Tensor,
) -> list[Tensor]:
    problem = _problem(
        query, key, value, keep, bias, gate, power_tensor, seed, gate_kind, leak, scale, power, is_causal, dropout
    )
    wanted = frozenset(needs.split())
    if lse_power.numel() == 0:
        lse_power = lse
    found = FUSED_BACKENDS[backend].backward(problem, lse, lse_power, d_context, d_mass, row, row_power, wanted)
    return [
        # A backend computes in float32; contiguous, as the shapes for `torch.compile` promise.
        gradient.to(of.dtype).contiguous()
        for of, gradient in zip(_wanted(problem, power_tensor, wanted), _wanted_gradients(found, gate, wanted))
    ]


@_attention_backward.register_fake
def _(query, key, value, keep, bias, gate, power_tensor, seed, gate_kind, leak, scale, power, is_causal, dropout,
      backend, needs, lse, lse_power, d_context, d_mass, row, row_power):  # fmt: skip
    problem = AttentionProblem(
        query, key, value, keep, bias, gate_kind, tuple(gate), leak, scale, power, is_causal, dropout, 0
    )
    return [of.new_empty(of.shape) for of in _wanted(problem, power_tensor, frozenset(needs.split()))]


def _problem(
    query, key, value, keep, bias, gate, power_tensor, seed, gate_kind, leak, scale, power, is_causal, dropout
):
    if power_tensor is not None:
        power = float(power_tensor)
    return AttentionProblem(
        query, key, value, keep, bias, gate_kind, tuple(gate), leak, scale, power, is_causal, dropout,
        0 if seed is None else int(seed),
    )  # fmt: skip


def _wanted(problem, power_tensor, wanted):
    """The tensors that get a gradient, in the order of `_DIFFERENTIABLE`."""
    of_name = {
        "query": [problem.query],
        "key": [problem.key],
        "value": [problem.value],
        "bias": [problem.bias],
        "gate": [x for x in problem.gate if x.is_floating_point()],
        "power": [power_tensor],
    }
    return [x for name in _DIFFERENTIABLE if name in wanted for x in of_name[name]]


def _wanted_gradients(found, gate, wanted):
    of_name = {name: [getattr(found, name)] for name in _DIFFERENTIABLE if name != "gate"}
    of_name["gate"] = [d for x, d in zip(gate, found.gate) if x.is_floating_point()]
    return [x for name in _DIFFERENTIABLE if name in wanted for x in of_name[name]]


def _setup_context(ctx, inputs, output):
    query, key, value, keep, bias, gate, power_tensor, seed, *settings, need_mass, backend = inputs
    context, mass, lse, lse_power = output
    ctx.save_for_backward(
        query, key, value, keep, bias, power_tensor, seed, context, mass if need_mass else None, lse, lse_power, *gate
    )
    ctx.settings, ctx.backend = settings, backend


def _backward(ctx, d_context, d_mass, d_lse, d_lse_power):
    query, key, value, keep, bias, power_tensor, seed, context, mass, lse, lse_power, *gate = ctx.saved_tensors
    # One flag an input; the gate's flags come as a list.
    flags = ctx.needs_input_grad
    asked = {"query": flags[0], "key": flags[1], "value": flags[2], "bias": flags[4], "power": flags[6]}
    asked["gate"] = any(flags[5]) if isinstance(flags[5], (list, tuple)) else flags[5]
    names = [name for name in _DIFFERENTIABLE if asked[name]]
    if d_context is None:
        d_context = torch.zeros_like(context)
    row = lse.new_zeros(lse.shape) if d_lse is None else d_lse
    row_power = -(d_context.to(lse.dtype) * context.to(lse.dtype)).sum(-1)
    if d_lse_power is not None and lse_power.numel():
        row_power = row_power + d_lse_power
    if mass is None:
        d_mass = None
    elif d_mass is not None:
        row = row - mass * d_mass
    found = iter(
        _attention_backward(
            query,
            key,
            value,
            keep,
            bias,
            gate,
            power_tensor,
            seed,
            *ctx.settings,
            ctx.backend,
            " ".join(names),
            lse,
            lse_power,
            d_context,
            d_mass,
            row,
            row_power,
        )  # fmt: skip
    )
    gradients = {
        name: [next(found) if x.is_floating_point() else None for x in gate] if name == "gate" else next(found)
        for name in names
    }
    get = gradients.get
    return (
        get("query"), get("key"), get("value"), None, get("bias"), get("gate", [None] * len(gate)), get("power"), None,
        *[None] * (len(ctx.settings) + 2),
    )  # fmt: skip


_attention.register_autograd(_backward, setup_context=_setup_context)


def _refuse(ctx, *gradients):
    raise NotImplementedError(
        "The gradient of a fused evidence attention is differentiated, which it cannot be; use backend='reference'."
    )


_attention_backward.register_autograd(_refuse)


def has_tangents(problem: AttentionProblem, power: Tensor | None) -> bool:
    """Whether an input carries a tangent of forward-mode differentiation, which the operator would drop silently."""
    if torch.compiler.is_compiling():
        return False
    inputs = (problem.query, problem.key, problem.value, problem.bias, *problem.gate, power)
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def fused_attention(
    problem: AttentionProblem, *, power: Tensor | None, seed: Tensor | None, need_mass: bool, backend: str
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Context, mass (`None` unless needed), lse and lse_power; differentiable once.

    Args:
        problem: its `power` and `seed` count only where the two tensors below are `None`.
        power: 0-dim, if p is learned.
        seed: 0-dim int64, of the dropout.
    """
    context, mass, lse, lse_power = _attention(
        problem.query, problem.key, problem.value, problem.keep, problem.bias, list(problem.gate), power, seed,
        problem.gate_kind, problem.leak, problem.scale, problem.power, problem.is_causal, problem.dropout, need_mass,
        backend,
    )  # fmt: skip
    return context, mass if need_mass else None, lse, lse_power if lse_power.numel() else lse


__all__ = ["FUSED_BACKENDS", "fused_attention", "has_tangents"]
