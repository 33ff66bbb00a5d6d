"""The gate kinds of the blockwise backend: a block of gates, and their gradient from a block of dG."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_problem import AttentionProblem, Block


class _BlockGate:
    """Evaluates gates block by block and sums the gradients of its tensors.

    `start`, `add` (once or once per group of heads) and `finish` bracket each block; a subclass says in `collect` what
    to do with the finished block of dG.
    """

    def __init__(self, problem: AttentionProblem, dtype: torch.dtype):
        self.tensors = tuple(x.to(dtype) if x.is_floating_point() else x for x in problem.gate)
        self.leak = problem.leak
        self.is_shared = all(x.shape[1] == 1 for x in self.tensors if x.dim() == 4) and problem.query.shape[1] > 1
        self.sums = None

    def __call__(self, block: Block) -> Tensor:
        """`[b, h, R | 1, keys]`."""
        raise NotImplementedError

    def collect(self, block: Block, gate: Tensor, d_gate: Tensor) -> None:
        raise NotImplementedError

    def start(self, block: Block, gate: Tensor) -> None:
        self.gradients()
        self.gate, self.d_gate = gate, None

    def add(self, block: Block, d_gate: Tensor) -> None:
        if self.is_shared:
            summed = d_gate.sum(1, keepdim=True)
            self.d_gate = summed if self.d_gate is None else self.d_gate.add_(summed)
        else:
            self.d_gate = d_gate.clone()  # the caller goes on to change it

    def finish(self, block: Block) -> None:
        self.collect(block, self.gate, self.d_gate)
        self.gate = self.d_gate = None

    def gradients(self) -> tuple[Tensor | None, ...]:
        """The sums so far: zeros before the first block, and if there is none."""
        if self.sums is None:
            self.sums = [torch.zeros_like(x) if x.is_floating_point() else None for x in self.tensors]
        return tuple(self.sums)

    def _squash(self, psi: Tensor) -> Tensor:
        return psi.sigmoid_().mul_(1 - self.leak).add_(self.leak)

    def _d_psi(self, gate: Tensor, d_gate: Tensor) -> Tensor:
        """(1 - leak) sigma (1 - sigma) dG, with sigma from the gate itself."""
        passed = (gate - self.leak) / (1 - self.leak)
        return d_gate * passed * (1 - passed) * (1 - self.leak)


class _TensorGate(_BlockGate):
    def __call__(self, block):
        (values,) = self.tensors
        return values[block.pairs(values)]

    def collect(self, block, gate, d_gate):
        _add_sum(self.sums[0], block.pairs(self.sums[0]), d_gate)


class _ItemGate(_BlockGate):
    """Values of items reach their keys by a product with the 0/1 membership: a GEMM beats a gather."""

    def __init__(self, problem, dtype):
        super().__init__(problem, dtype)
        values, items = self.tensors
        member = F.one_hot(items, values.shape[-1]).to(dtype)
        self.member = member.transpose(-1, -2).unsqueeze(1)  # [b, 1, M, K]

    def __call__(self, block):
        values, _ = self.tensors
        return values[_rows(block, values)] @ self.member[_batch(block, self.member)][..., block.key]

    def collect(self, block, gate, d_gate):
        member = self.member[_batch(block, self.member)][..., block.key]
        _add_sum(self.sums[0], _rows(block, self.sums[0]), d_gate @ member.transpose(-1, -2))


class _LowRankGate(_BlockGate):
    def __call__(self, block):
        query, key, offset = self.tensors
        return self._squash(query[_rows(block, query)] @ key[_keys(block, key)].transpose(-1, -2) + offset)

    def collect(self, block, gate, d_gate):
        query, key, _ = self.tensors
        d_psi = self._d_psi(gate, d_gate)
        _add_sum(self.sums[0], _rows(block, query), d_psi @ key[_keys(block, key)])
        _add_sum(self.sums[1], _keys(block, key), d_psi.transpose(-1, -2) @ query[_rows(block, query)])
        self.sums[2] += d_psi.sum()


class _MLPGate(_BlockGate):
    """One hidden unit at a time: three tensors of the size of a block, whatever the hidden size."""

    def __call__(self, block):
        query, key, weight, offset = self.tensors
        query, key = query[_rows(block, query)], key[_keys(block, key)]
        psi = None
        for unit, factor in enumerate(weight.tolist()):
            hidden = F.gelu(_sum_of_unit(query, key, unit))
            psi = hidden.mul_(factor) if psi is None else psi.add_(hidden, alpha=factor)
        return self._squash(psi.add_(offset))

    def collect(self, block, gate, d_gate):
        query, key, weight, _ = self.tensors
        at_query, at_key = _rows(block, query), _keys(block, key)
        d_psi = self._d_psi(gate, d_gate)
        self.sums[3] += d_psi.sum()
        d_query, d_key = torch.zeros_like(query[at_query]), torch.zeros_like(key[at_key])
        for unit, factor in enumerate(weight.tolist()):
            x = _sum_of_unit(query[at_query], key[at_key], unit)
            normal = (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
            self.sums[2][unit] += (d_psi * x * normal).sum()
            slope = normal.add_(x * x.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi)))
            d_x = slope.mul_(d_psi).mul_(factor)
            d_query[..., unit] += _sum_to(d_x.sum(-1), d_query[..., unit].shape)
            d_key[..., unit] += _sum_to(d_x.sum(-2), d_key[..., unit].shape)
        self.sums[0][at_query] += d_query
        self.sums[1][at_key] += d_key


def _sum_of_unit(query: Tensor, key: Tensor, unit: int) -> Tensor:
    return query[..., unit].unsqueeze(-1) + key[..., unit].unsqueeze(-2)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    return x.sum_to_size(shape) if x.shape != shape else x


def _add_sum(total: Tensor, at: tuple[slice, ...], x: Tensor) -> None:
    total[at] += x.sum_to_size(total[at].shape)


def _batch(block: Block, of: Tensor) -> tuple[slice, ...]:
    return block.pairs(of)[:2]


def _rows(block: Block, of: Tensor) -> tuple[slice, ...]:
    """Index into `[b, h, q, any]`."""
    return block.pairs(of)[:3]


def _keys(block: Block, of: Tensor) -> tuple[slice, ...]:
    """Index into `[b, h, K, any]`; K is never a broadcast axis."""
    return *block.pairs(of)[:2], block.key


BLOCK_GATES = {"tensor": _TensorGate, "item": _ItemGate, "low_rank": _LowRankGate, "mlp": _MLPGate}

__all__ = ["BLOCK_GATES"]
