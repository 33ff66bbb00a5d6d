"""Fused attention in plain PyTorch: memory linear in the number of keys, any device, with its own backward pass.

A block is a slice of batch rows, heads and queries against all keys; the largest tensors are a few of that size.
Whatever a block needs twice is computed twice, and half-precision inputs are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .attention_blockwise_gates import BLOCK_GATES
from .attention_dropout import TILE_ROWS, dropout_rows
from .attention_problem import AttentionGradients, AttentionProblem, Block

# Elements of one block. Three or four float32 tensors of this size stay in the cache of one core.
BLOCK_ELEMENTS = 1 << 20


def unsupported(problem: AttentionProblem) -> str | None:
    return None


def forward(problem: AttentionProblem, need_mass: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run = _Run(problem)
    rows = problem.query.shape[:-1]
    context = run.query.new_empty(*rows, problem.value.shape[-1])
    mass = run.query.new_empty(rows if need_mass else (0,))
    lse = run.query.new_zeros(rows)
    lse_power = lse if run.is_softmax else torch.zeros_like(lse)
    for block, gate in run.blocks():
        weights, _, amplitude, empty = run.attend(block, lse, lse_power)
        if gate is not None:
            weights.mul_(gate)
        if need_mass:
            mass[block.rows] = weights.sum(-1)
        if problem.dropout:
            weights.mul_(run.dropped(block))
        out = _matmul(weights, run.value[block.keys])
        if amplitude is not None:
            out *= amplitude
        if empty is not None:
            out.masked_fill_(empty, 0.0)
            if need_mass:
                mass[block.rows] = mass[block.rows].masked_fill(empty.squeeze(-1), 0.0)
        context[block.rows] = out
    return context.to(problem.query.dtype), mass, lse, lse_power


def backward(
    problem: AttentionProblem,
    lse: Tensor,
    lse_power: Tensor,
    d_context: Tensor,
    d_mass: Tensor | None,
    row: Tensor,
    row_power: Tensor,
    needs: frozenset[str],
) -> AttentionGradients:
    run = _Run(problem)
    d_query = torch.zeros_like(run.query)
    d_key, d_value = torch.zeros_like(run.key), torch.zeros_like(run.value)
    d_bias = torch.zeros_like(problem.bias, dtype=run.dtype) if "bias" in needs else None
    d_power = run.query.new_zeros(())
    d_context = d_context.to(run.dtype)
    for block, gate in run.blocks(backward="gate" in needs):
        weights, r, amplitude, empty = run.attend(block, None, None, log_ratio=lse[block.rows] - lse_power[block.rows])
        d_out, d_m = d_context[block.rows], None if d_mass is None else d_mass[block.rows].unsqueeze(-1)
        c, c_power = row[block.rows].unsqueeze(-1), row_power[block.rows].unsqueeze(-1)
        if empty is not None:
            d_out, c, c_power = (x.masked_fill(empty, 0.0) for x in (d_out, c, c_power))
            d_m = None if d_m is None else d_m.masked_fill(empty, 0.0)
        if amplitude is not None:
            d_out = d_out * amplitude
        d_gate = _matmul(d_out, run.value[block.keys].transpose(-1, -2))
        dropped = run.dropped(block) if problem.dropout else None
        if dropped is not None:
            d_gate.mul_(dropped)
        if d_m is not None:
            d_gate.add_(d_m)
        d_gate.mul_(weights)
        if "gate" in needs:
            run.gate.add(block, d_gate)
        d_logits = d_gate if gate is None else d_gate.mul_(gate)
        d_logits.addcmul_(weights, c if r is not None else c + c_power)
        if r is not None:
            d_logits.addcmul_(r, c_power)
        if "power" in needs:
            # sum_j r_ij s_ij - lse_power_i, by log r_ij = p (s_ij - lse_power_i); at p = 1, r is alpha.
            shares = weights if r is None else r
            d_power += (c_power * torch.xlogy(shares, shares).sum(-1, keepdim=True)).sum() / problem.power**2
        if d_bias is not None:
            at = block.pairs(d_bias)
            d_bias[at] += d_logits.sum_to_size(d_bias[at].shape)
        if "query" in needs:
            d_query[block.rows] = _matmul(d_logits, run.key[block.keys]) * problem.scale
        if "key" in needs:
            _add_matmul(d_key[block.keys], d_logits.transpose(-1, -2), run.query[block.rows])
        if "value" in needs:
            if gate is not None:
                weights.mul_(gate)
            if dropped is not None:
                weights.mul_(dropped)
            _add_matmul(d_value[block.keys], weights.transpose(-1, -2), d_out)
    kv_heads = problem.key.shape[1]
    return AttentionGradients(
        query=d_query,
        key=_sum_groups(d_key, kv_heads),
        value=_sum_groups(d_value, kv_heads),
        bias=d_bias,
        gate=run.gate.gradients() if "gate" in needs else (),
        power=d_power,
    )


class _Run:
    """One pass over the blocks of a problem, with inputs in the dtype of the computation."""

    def __init__(self, problem: AttentionProblem):
        self.problem = problem
        self.dtype = torch.promote_types(problem.query.dtype, torch.float32)
        groups = problem.query.shape[1] // problem.key.shape[1]
        # Scaled once here; the gradient of the key wants the scaled query, too.
        self.query = problem.query.to(self.dtype) * problem.scale
        self.key, self.value = (
            x.to(self.dtype).repeat_interleave(groups, dim=1) if groups > 1 else x.to(self.dtype).contiguous()
            for x in (problem.key, problem.value)
        )
        self.is_softmax = problem.power == 1
        self.drop = None if problem.keep is None else ~problem.keep
        make_gate = BLOCK_GATES.get(problem.gate_kind)
        self.gate = None if make_gate is None else make_gate(problem, self.dtype)

    def blocks(self, backward: bool = False) -> Iterator[tuple[Block, Tensor | None]]:
        """Blocks with their gate `[b, h, R, keys]`; a gate shared by heads is computed once for all of them."""
        batch, heads, queries, _ = self.query.shape
        keys = self.key.shape[2]
        if batch * heads * queries == 0:
            return
        room = max(BLOCK_ELEMENTS // keys, 1)  # rows of one block
        if self.problem.dropout:
            room = max(room, TILE_ROWS)
        per_row = min(room, queries)
        if self.problem.dropout and per_row < queries:
            per_row -= per_row % TILE_ROWS
        per_head = min(max(room // queries, 1), heads)
        per_batch = min(max(room // (queries * heads), 1), batch)
        for b in range(0, batch, per_batch):
            for i in range(0, queries, per_row):
                rows = slice(i, min(i + per_row, queries))
                seen = keys
                if self.problem.is_causal:
                    # No row of this block reads further; at least one key, so that no block is empty.
                    seen = min(max(rows.stop + keys - queries, 1), keys)
                every = Block(slice(b, min(b + per_batch, batch)), slice(0, heads), rows, slice(0, seen))
                shared = None
                if self.gate is not None and self.gate.is_shared:
                    shared = self.gate(every)
                    if backward:
                        self.gate.start(every, shared)
                for h in range(0, heads, per_head):
                    block = every._replace(head=slice(h, min(h + per_head, heads)))
                    gate = shared
                    if self.gate is not None and not self.gate.is_shared:
                        gate = self.gate(block)
                        if backward:
                            self.gate.start(block, gate)
                    yield block, gate
                    if backward and self.gate is not None and not self.gate.is_shared:
                        self.gate.finish(block)
                if backward and self.gate is not None and self.gate.is_shared:
                    self.gate.finish(every)

    def logits(self, block: Block) -> Tensor:
        """s `[b, h, R, keys]`, masked terms at -inf."""
        problem = self.problem
        logits = _matmul(self.query[block.rows], self.key[block.keys].transpose(-1, -2))
        if problem.bias is not None:
            logits += problem.bias[block.pairs(problem.bias)]
        dropped = None if self.drop is None else self.drop[block.pairs(self.drop)]
        if problem.is_causal:
            offset = problem.key.shape[2] - problem.query.shape[2]
            i = torch.arange(block.row.start, block.row.stop, device=logits.device).unsqueeze(-1) + offset
            future = torch.arange(block.key.stop, device=logits.device) > i
            dropped = future if dropped is None else dropped | future
        return logits if dropped is None else logits.masked_fill_(dropped, -math.inf)

    def attend(self, block: Block, lse: Tensor | None, lse_power: Tensor | None, log_ratio: Tensor | None = None):
        """alpha, r (`None` at p = 1), w / alpha per row (`None` at p = 1) and which rows have no key.

        Fills `lse` and `lse_power`, or takes their difference from `log_ratio`. At p = 1 nobody needs them here,
        because a block has all keys of its rows.
        """
        logits = self.logits(block)
        empty = None
        if self.drop is not None or self.problem.is_causal:
            peak = logits.amax(-1, keepdim=True)
            empty = peak == -math.inf
            logits.masked_fill_(empty, 0.0)
        if self.is_softmax:
            return torch.softmax(logits, -1), None, None, empty
        if lse is not None:
            peak = logits.amax(-1)
        alpha = torch.softmax(logits, -1)
        r = torch.softmax(logits.mul_(self.problem.power), -1)
        if lse is not None:
            # The largest share is exp(peak - lse): cheaper than a pass for the sum.
            lse[block.rows] = peak - alpha.amax(-1).log()
            lse_power[block.rows] = peak - r.amax(-1).log() / self.problem.power
            log_ratio = lse[block.rows] - lse_power[block.rows]
            if empty is not None:
                for rows in (lse, lse_power):
                    rows[block.rows] = rows[block.rows].masked_fill(empty.squeeze(-1), 0.0)
        return alpha, r, log_ratio.unsqueeze(-1).exp(), empty

    def dropped(self, block: Block) -> Tensor:
        shape = (*self.query.shape[:3], self.key.shape[2])
        mask = dropout_rows(
            shape, self.problem.dropout, self.problem.seed, block.row, block.head, block.batch, like=self.query
        )
        return mask[..., block.key]


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])


def _add_matmul(out: Tensor, left: Tensor, right: Tensor) -> None:
    """`out += left @ right`; `out` is a slice of a contiguous tensor."""
    out.view(-1, *out.shape[2:]).baddbmm_(left.flatten(0, 1), right.flatten(0, 1))


def _sum_groups(gradient: Tensor, kv_heads: int) -> Tensor:
    return gradient if gradient.shape[1] == kv_heads else gradient.unflatten(1, (kv_heads, -1)).sum(2)


__all__ = ["backward", "forward", "unsupported"]
