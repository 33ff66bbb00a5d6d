"""Permission inside an attention module: the gates of Warrant and the controls of the papers, as one table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention_gates import ItemGate, LowRankGate, PairwiseGate


@dataclass(frozen=True)
class AttentionControl:
    """One row of the table of controls.

    Args:
        acts_on (`str`): `"term"` (each weighted value), `"query"` (one factor for what a query reads), `"output"` or
            `"value"` (one factor per channel), `"logits"`, `"count"` or `"sum"` (no gate), `"nothing"`.
        summary (`str`): one line for reports.
        is_normalized (`bool`): the gated weights are made to sum to 1 again.
    """

    acts_on: str
    summary: str
    is_normalized: bool = False


#: Controls of the papers. Those without a gate start as the attention without them.
ATTENTION_CONTROLS = {
    "pair": AttentionControl("term", "Warrant: a gate per (query, key), not renormalised"),
    "open": AttentionControl("nothing", "the parameters of `pair`, frozen, and every gate 1 (the papers' OpenPath)"),
    "query": AttentionControl("query", "a gate per query, the same for all keys (the papers' scalar)"),
    "item": AttentionControl("term", "a gate per key, the same for all queries (the papers' item-only)"),
    "normalized": AttentionControl("term", "`pair`, renormalised: shares change, the mass does not", True),
    "adapter": AttentionControl("logits", "the paper's attention adapter: psi is added to the logits, no gate"),
    "g1": AttentionControl("output", "Qiu's G1: a sigmoid per channel of the output, by the query"),
    "g2": AttentionControl("value", "Qiu's G2: a sigmoid per channel of the value, by the key's token"),
    "cpa_count": AttentionControl("count", "CPA: the output grows with log of the number of readable keys"),
    "cpa_sum": AttentionControl("sum", "CPA: the unweighted sum of the readable values is added to the output"),
}
_BY_PAIR = ("pair", "open", "normalized", "adapter")
_BY_ITEM = ("pair", "open", "normalized", "item")
GATES, GRANULARITIES = ("pairwise", "low_rank"), ("token", "item")
# A smooth gate that can rise no further has no slope, so one that starts at 1 is this gate divided by its own start:
# exactly 1 at first, with the slope that sigmoid has here, and never above 1 / 0.99.
_SHARE_AT_ONE = 0.99


class Permit(NamedTuple):
    """What a permission does to one attention; every field is optional.

    Attributes:
        gate: of the terms, as [`evidence_attention`] takes it.
        bias: added to the logits, `[B, H | 1, Q, K]`.
        of_value: factor of the values, `[B, Hkv, K, Dv]`.
        stretch: what `gate` is to be multiplied by.
        of_output: factor of the context, `[B, H | 1, Q, Dv | 1]`.
        added: to the context, `[B, H, Q, Dv]`.
        is_normalized: divide the context by the mass, which takes `stretch` out.
    """

    gate: Tensor | ItemGate | PairwiseGate | LowRankGate | None = None
    bias: Tensor | None = None
    of_value: Tensor | None = None
    stretch: float = 1.0
    of_output: Tensor | None = None
    added: Tensor | None = None
    is_normalized: bool = False

    def dense(self, query: Tensor, keep: Tensor | None) -> Tensor:
        """The gates as one tensor, 0 for terms that may not be read; where there are none, what is there instead."""
        if self.gate is None:
            instead = (x for x in (self.bias, self.of_value, self.of_output, self.added) if x is not None)
            return next(instead, query.new_ones(1, 1, 1, 1))
        gate = self.gate if isinstance(self.gate, Tensor) else _dense(self.gate)
        gate = gate if self.stretch == 1 else gate * self.stretch
        return gate if keep is None else torch.where(keep, gate, 0.0)

    def mass(self, mass: Tensor) -> Tensor:
        """`[B, H, Q]`, the mass of the attention: sum_j g_ij alpha_ij, with what acts on the output as a whole."""
        if self.is_normalized:
            return mass.ne(0).to(mass.dtype)
        if self.of_output is not None and self.of_output.shape[-1] == 1:
            return mass * self.of_output.squeeze(-1)
        return mass * self.stretch


class AttentionPermission(nn.Module):
    r"""Permission by the projected queries and keys of an attention (Warrant, sections 3.2 and 4.1),

        psi(q, k) = w . GELU(W_q q + b_q + W_k k) + b,        g = leak + (1 - leak) sigmoid(psi)

    where models with rotary position embeddings give the rotated q and k. w starts at 0 and b so that every gate is
    `start`. Autocast acts on the projections W_q and W_k only; psi and g are float32 at least.

    With `start=1`, g is divided by its own first value: outputs are those of the attention without permission
    to rounding, the gradient is that of a gate that starts at 0.99, and a gate can rise to 1.01. Gradients reach W_q
    and W_k from the second step on, when w is no longer 0.

    Args:
        query_heads, key_heads (`int`): H and Hkv.
        head_size (`int`): D, also of the values.
        control (`str`): key of `ATTENTION_CONTROLS`.
        gate (`str`): `"pairwise"`, the MLP above, or `"low_rank"`, psi = (W_q q + b_q) . W_k k + b, as cheap as the
            attention logits.
        granularity (`str`): `"token"`, or `"item"`: one gate for all tokens of an item, by the mean of their keys; not
            for causal attention, which would see later tokens in the mean.
        per_head (`bool`): a gate for each head by its own q and k, with shared parameters; otherwise one gate for all
            heads by all of them.
        hidden_size (`int`): width of the MLP, or the rank.
        start (`float`), leak (`float`): first and smallest permission, 0 <= leak < start <= 1. The controls "g1" and
            "g2" have no leak, as in the paper, and those without a gate use neither.
        max_items (`int`, *optional*): most items of a row. They are counted in each batch when it is not given, for
            which an accelerator is waited for and a compiled graph is broken.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    def __init__(
        self,
        query_heads: int,
        key_heads: int,
        head_size: int,
        *,
        control: str = "pair",
        gate: str = "pairwise",
        granularity: str = "token",
        per_head: bool = False,
        hidden_size: int = 64,
        start: float = 1.0,
        leak: float = 0.05,
        max_items: int | None = None,
    ):
        super().__init__()
        for name, given, allowed in (
            ("control", control, ATTENTION_CONTROLS),
            ("gate", gate, GATES),
            ("granularity", granularity, GRANULARITIES),
        ):
            if given not in allowed:
                raise ValueError(f"{name} is {given!r}; choose one of {', '.join(map(repr, allowed))}.")
        if gate == "low_rank" and control not in _BY_PAIR:
            raise ValueError(f"gate is 'low_rank', but control {control!r} reads no pairs; leave gate out.")
        if granularity == "item" and control not in _BY_ITEM:
            raise ValueError(f"granularity is 'item', but control {control!r} has no gate per key; use 'token'.")
        for name, number in (("hidden_size", hidden_size), ("max_items", max_items)):
            if number is None and name == "max_items":
                continue
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} is {number!r}; give a whole number of 1 or more.")
        for name, number in (("start", start), ("leak", leak)):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"{name} is {number!r}; give a number.")
        if not 0 <= leak < start <= 1:
            raise ValueError(f"leak is {leak} and start is {start}; they need 0 <= leak < start <= 1.")
        self.heads = (query_heads, key_heads)
        self.control, self.gate, self.granularity, self.per_head = control, gate, granularity, per_head
        self.start, self.max_items = float(start), max_items
        self.acts_on = ATTENTION_CONTROLS[control].acts_on
        self.is_normalized = ATTENTION_CONTROLS[control].is_normalized
        #: Whether `forward` needs `keep`, which is a mask of all pairs where attention is causal.
        self.reads_mask = self.acts_on in ("count", "sum")
        self.leak = 0.0 if self.acts_on in ("output", "value") else float(leak)
        share = _SHARE_AT_ONE if start == 1 else (start - self.leak) / (1 - self.leak)
        self.first_psi = math.log(share / (1 - share))
        self.stretch = 1 / (self.leak + (1 - self.leak) * share) if start == 1 else 1.0
        query_size, key_size = (head_size, head_size) if per_head else (query_heads * head_size, key_heads * head_size)
        # Not named like the projections of a model, which adapters pick by the ends of names.
        if self.acts_on in ("count", "sum"):
            self.factor = nn.Parameter(torch.empty(query_heads, 1, head_size))
        elif self.acts_on in ("output", "value"):
            size = (query_heads if self.acts_on == "output" else key_heads) * head_size
            self.of_channel = nn.Linear(size, size)
        else:
            self.of_query = None if control == "item" else nn.Linear(query_size, hidden_size)
            self.of_key = None if control == "query" else nn.Linear(key_size, hidden_size, bias=control == "item")
            self.score = nn.Parameter(torch.empty(hidden_size)) if gate == "pairwise" else None
            self.offset = None if control == "adapter" else nn.Parameter(torch.empty(1))  # softmax takes it out
        self.reset_parameters()
        if control == "open":
            self.requires_grad_(False)

    def reset_parameters(self):
        """Puts every gate at `start`."""
        if self.acts_on in ("count", "sum"):
            nn.init.zeros_(self.factor)
        elif self.acts_on in ("output", "value"):
            nn.init.zeros_(self.of_channel.weight)
            nn.init.constant_(self.of_channel.bias, self.first_psi)
        else:
            for linear in (self.of_query, self.of_key):
                if linear is not None:
                    linear.reset_parameters()
            nn.init.zeros_(self.of_key.weight if self.score is None else self.score)
            if self.offset is not None:
                nn.init.constant_(self.offset, self.first_psi)

    def extra_repr(self):
        return f"control={self.control!r}, gate={self.gate!r}, granularity={self.granularity!r}, start={self.start}"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, keep: Tensor | None = None, items: Tensor | None = None
    ) -> Permit:
        """What to do to the attention of `query [B, H, Q, D]`, `key [B, Hkv, K, D]` and `value [B, Hkv, K, Dv]`.

        Args:
            keep: bool, broadcastable to `[B, H, Q, K]`: what may be read; `None` for all.
            items (`[B, K]`, int64): item of each key, -1 for none (question, padding), whose gate is 1. Used with
                `granularity="item"`. The values are checked on a CPU only; elsewhere what is below -1 counts as -1,
                and what is `max_items` or more must not occur.

        Raises:
            ValueError: items are needed and missing, or do not fit the keys.
        """
        return getattr(self, f"_act_on_{self.acts_on}")(query, key, value, keep, items)

    def _act_on_nothing(self, query, key, value, keep, items):
        return Permit()

    def _act_on_term(self, query, key, value, keep, items):
        if self.granularity == "item":
            return self._act_on_items(query, key, items)
        gate = self._gate(query, key)
        if self.of_query is None:
            return Permit(gate=_dense(gate) * self.stretch)
        return Permit(gate=gate, stretch=self.stretch, is_normalized=self.is_normalized)

    def _act_on_items(self, query, key, items):
        check_items(items, key, self.max_items)
        count = self.max_items
        if count is None:
            count = max(int(items.max()) + 1, 1)
        member = items.unsqueeze(1) == torch.arange(count, device=items.device).unsqueeze(-1)  # [B, M, K]
        share = member.to(key.dtype) / member.sum(-1, keepdim=True).clamp(min=1).to(key.dtype)
        with _without_autocast(key):
            pooled = torch.matmul(share.unsqueeze(1), key.masked_fill(~member.any(1)[:, None, :, None], 0.0))
        values = _dense(self._gate(query, pooled)) * self.stretch
        return Permit(gate=ItemGate(values, items), is_normalized=self.is_normalized)

    def _act_on_logits(self, query, key, value, keep, items):
        query, key = self._projected(query, key)
        with _without_autocast(key):
            if self.score is None:
                return Permit(bias=query @ key.transpose(-1, -2))
            hidden = F.gelu(query.unsqueeze(-2) + key.unsqueeze(-3))
            return Permit(bias=hidden @ _at_least_float32(self.score))

    def _act_on_query(self, query, key, value, keep, items):
        hidden = F.gelu(_at_least_float32(self.of_query(self._states(query))))
        with _without_autocast(query):
            psi = hidden @ _at_least_float32(self.score) + _at_least_float32(self.offset)
        return Permit(of_output=self._squash(psi).unsqueeze(-1))

    def _act_on_output(self, query, key, value, keep, items):
        psi = self.of_channel(_joined(query))
        return Permit(of_output=self._squash(_split(psi, self.heads[0])))

    def _act_on_value(self, query, key, value, keep, items):
        psi = self.of_channel(_joined(value))
        return Permit(of_value=self._squash(_split(psi, self.heads[1])))

    def _act_on_count(self, query, key, value, keep, items):
        count = key.shape[2] if keep is None else keep.sum(-1, keepdim=True).clamp(min=1)
        count = torch.as_tensor(count, dtype=torch.float32, device=key.device)
        return Permit(of_output=1 + self.factor.float() * count.log())

    def _act_on_sum(self, query, key, value, keep, items):
        value = value.repeat_interleave(self.heads[0] // self.heads[1], dim=1)
        if keep is None:
            total = value.sum(2, keepdim=True)
        else:
            keep = keep.expand(*keep.shape[:2], -1, value.shape[2])
            total = keep.to(value.dtype) @ value.masked_fill(~keep.any(2).unsqueeze(-1), 0.0)
        return Permit(added=total * _at_least_float32(self.factor))

    def _states(self, states):
        """`[B, H, N, D]` -> what the linear layers read, with a head axis of H or 1."""
        return states if self.per_head else _joined(states).unsqueeze(1)

    def _projected(self, query, key):
        """W_q q + b_q and W_k k; in float32 at least, because a permission near 1 has few digits in half precision."""
        key = self.of_key(self._states(key))
        if key.shape[1] > 1:
            key = key.repeat_interleave(self.heads[0] // self.heads[1], dim=1)
        if self.of_query is None:
            query = torch.zeros(1, 1, 1, key.shape[-1], dtype=key.dtype, device=key.device)
        else:
            query = self.of_query(self._states(query))
        return _at_least_float32(query), _at_least_float32(key)

    def _gate(self, query, key):
        query, key = self._projected(query, key)
        offset = _at_least_float32(self.offset).squeeze(0)
        if self.score is None:
            return LowRankGate(query, key, offset, leak=self.leak)
        return PairwiseGate(query, key, _at_least_float32(self.score), offset, leak=self.leak)

    def _squash(self, psi):
        return (self.leak + (1 - self.leak) * torch.sigmoid(_at_least_float32(psi))) * self.stretch


def check_items(items, key: Tensor, max_items: int | None) -> None:
    """Raises unless `items` says which item each key belongs to."""
    if items is None:
        raise ValueError(
            "items is missing, but an attached permission has granularity 'item'; pass items [B, K] to the forward "
            "pass (with Trainer, set remove_unused_columns=False, or it drops them)."
        )
    if not isinstance(items, Tensor) or items.dtype != torch.int64 or items.shape != (key.shape[0], key.shape[2]):
        found = f"{items.dtype} {list(items.shape)}" if isinstance(items, Tensor) else type(items).__name__
        raise ValueError(
            f"items is {found}; the attention with the permission needs int64 [B, K] = {[key.shape[0], key.shape[2]]}."
        )
    # Elsewhere the values would have to be waited for.
    if items.device.type == "cpu" and items.numel() and not torch.compiler.is_compiling():
        lowest, highest = (int(end) for end in items.aminmax())
        if lowest < -1:
            raise ValueError(f"items has {lowest}; give 0 and up, and -1 for a key that belongs to no item.")
        if max_items is not None and highest >= max_items:
            raise ValueError(f"items has item {highest}, but max_items is {max_items}; attach with more.")


def _joined(states):
    """`[B, H, N, D]` -> `[B, N, H * D]`."""
    return states.transpose(1, 2).flatten(2)


def _split(states, heads):
    return states.unflatten(-1, (heads, -1)).transpose(1, 2)


def _without_autocast(x):
    """Around what becomes a gate: autocast decides about the projections only."""
    return torch.autocast(x.device.type, enabled=False)


def _dense(gate):
    with _without_autocast(gate.tensors()[0]):
        return gate.dense()


def _at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


__all__ = ["ATTENTION_CONTROLS", "AttentionControl", "AttentionPermission", "Permit", "check_items"]
