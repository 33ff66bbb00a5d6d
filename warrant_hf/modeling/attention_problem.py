"""What the fused backends compute: one problem in, outputs and gradients out.

`attention_ops.evidence_attention` checks and prepares the arguments, so a backend sees clean tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionProblem(NamedTuple):
    """Prepared arguments; `b`, `h`, `q` below are 1 or the full size B, H, Q.

    Attributes:
        query: `[B, H, Q, D]`.
        key: `[B, Hkv, K, D]`; query head h reads key head h // (H / Hkv).
        value: `[B, Hkv, K, Dv]`.
        keep: bool `[b, h, q, K]`; a term without it does not exist.
        bias: floating `[b, h, q, K]`, added to the logits.
        gate_kind: "none", "tensor", "item", "mlp" or "low_rank".
        gate: the tensors of that kind, as the `tensors` method of its class in attention_gates.py orders them.
        leak: smallest gate of "mlp" and "low_rank".
        scale: factor of the dot product.
        power: p > 0.
        is_causal: term (i, j) exists only for j <= i + K - Q.
        dropout: share of the weights that is dropped; the other ones grow by 1 / (1 - dropout).
        seed: of the dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    bias: Tensor | None
    gate_kind: str
    gate: tuple[Tensor, ...]
    leak: float
    scale: float
    power: float
    is_causal: bool
    dropout: float
    seed: int


class AttentionGradients(NamedTuple):
    """Gradients of an [`AttentionProblem`]; `None` for what was not asked or has no gradient."""

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    bias: Tensor | None = None
    gate: tuple[Tensor | None, ...] = ()
    power: Tensor | None = None


class Block(NamedTuple):
    """A slice of batch rows, heads, queries and keys."""

    batch: slice
    head: slice
    row: slice
    key: slice

    @property
    def rows(self) -> tuple[slice, ...]:
        """Index into `[B, H, Q, ...]`."""
        return self.batch, self.head, self.row

    @property
    def keys(self) -> tuple[slice, ...]:
        """Index into `[B, H, K, ...]`."""
        return self.batch, self.head, self.key

    def pairs(self, of: Tensor) -> tuple[slice, ...]:
        """Index into `[b, h, q, K]`, whose axes of size 1 stay whole."""
        return tuple(slice(None) if size == 1 else part for size, part in zip(of.shape, self))


__all__ = ["AttentionGradients", "AttentionProblem", "Block"]
