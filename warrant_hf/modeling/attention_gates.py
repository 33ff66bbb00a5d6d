"""Gates that are computed inside the attention, so that nothing of size queries x keys has to be stored.

`dense` of each class is its specification; fused backends evaluate the same formula block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ItemGate:
    """One permission per (query, item): g_ij = values[.., i, items[j]], and 1 for a key without item.

    Attributes:
        values: `[B | 1, H | 1, Q | 1, M]`, floating, in [0, 1].
        items: `[B | 1, K]`, int64; the item of each key, 0 to M - 1, or -1 for none (a question token, say).
    """

    values: Tensor
    items: Tensor

    kind = "item"

    def dense(self) -> Tensor:
        """`[b, h, q, K]`."""
        values, items = self.tensors()
        batch = max(values.shape[0], items.shape[0])
        values = values.expand(batch, -1, -1, -1)
        index = items[:, None, None, :].expand(batch, *values.shape[1:3], -1)
        return values.gather(-1, index)

    def tensors(self) -> tuple[Tensor, ...]:
        """Values with a last item that is always 1, which the keys without item belong to."""
        values = F.pad(self.values, (0, 1), value=1.0)
        count = self.values.shape[-1]
        items = torch.where(self.items < 0, count, self.items + (self.items >= count))  # M itself stays out of range
        return values, items


@dataclass(frozen=True)
class PairwiseGate:
    """The papers' gate, a small MLP per (query, key) (Warrant, equations 2 and 3).

        psi_ij = sum_r weight_r GELU(query_ir + key_jr) + offset        g_ij = leak + (1 - leak) sigmoid(psi_ij)

    It takes states that are projected already, here by two layers from width D to R, one gate for each head:

        >>> gate = PairwiseGate(of_query(q), of_key(k), torch.zeros(R), torch.tensor(4.0))  # q [B, H, Q, D]
        >>> context = evidence_attention(q, k, v, gate=gate).context

    Attributes:
        query: `[B | 1, H | 1, Q | 1, R]`, W_q q + b_q, already projected.
        key: `[B | 1, H | 1, K, R]`, W_k k.
        weight: `[R]`.
        offset: 0-dim.
        leak: smallest gate, in [0, 1).
    """

    query: Tensor
    key: Tensor
    weight: Tensor
    offset: Tensor
    leak: float = 0.05

    kind = "mlp"

    def dense(self) -> Tensor:
        """`[b, h, q, K]`; stores `[b, h, q, K, R]` on the way."""
        hidden = F.gelu(self.query.unsqueeze(-2) + self.key.unsqueeze(-3))
        return _squash(hidden @ self.weight + self.offset, self.leak)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.weight, self.offset


@dataclass(frozen=True)
class LowRankGate:
    """A bilinear gate, as cheap as the attention logits: psi_ij = query_i . key_j + offset.

    It takes states that are projected already, here by two layers from width D to R, one gate for each head:

        >>> gate = LowRankGate(of_query(q), of_key(k), torch.tensor(4.0))  # q [B, H, Q, D]
        >>> context = evidence_attention(q, k, v, gate=gate).context

    Attributes:
        query: `[B | 1, H | 1, Q | 1, R]`.
        key: `[B | 1, H | 1, K, R]`.
        offset: 0-dim.
        leak: smallest gate, in [0, 1).
    """

    query: Tensor
    key: Tensor
    offset: Tensor
    leak: float = 0.05

    kind = "low_rank"

    def dense(self) -> Tensor:
        """`[b, h, q, K]`."""
        return _squash(self.query @ self.key.transpose(-1, -2) + self.offset, self.leak)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.offset


def _squash(psi: Tensor, leak: float) -> Tensor:
    return leak + (1 - leak) * torch.sigmoid(psi)


GATE_CLASSES = (ItemGate, PairwiseGate, LowRankGate)
_BY_NAME = {gate.__name__: gate for gate in GATE_CLASSES}


def own_gate(gate):
    """A gate of another copy of this file as one of ours; anything else as it is.

    The code of a checkpoint is such a copy, and all copies share the attention keys of transformers.
    """
    if gate is None or isinstance(gate, (Tensor, *GATE_CLASSES)) or type(gate).__name__ not in _BY_NAME:
        return gate
    return _BY_NAME[type(gate).__name__](**vars(gate))


__all__ = ["GATE_CLASSES", "ItemGate", "LowRankGate", "PairwiseGate", "own_gate"]
