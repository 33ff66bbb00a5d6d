"""The prediction path: the question reads its candidates, and what it was allowed to read makes the score."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .attention_ops import evidence_attention
from .outputs import EvidenceOutput
from .permission import PERMISSION_VARIANTS, PermissionGate
from .precision import PrecisionHead

# Floor of `C * m_c` inside the logarithm: a closed gate gives a finite, lowest logit instead of -inf.
MASS_FLOOR = 1e-9


@dataclass
class PooledEvidence:
    """Question and items as the readout compares them.

    Args:
        query (`[B, 1, size]`, or `[B, S, size]` where each item was read with a question of its own).
        key (`[B, S, size]`).
        token_share (`[B, T]`, *optional*): each token's share of its item.
    """

    query: torch.Tensor
    key: torch.Tensor
    token_share: torch.Tensor | None = None


class EvidenceReadout(nn.Module):
    r"""Scores candidates by the evidence mass that may pass.

    Tokens of an item (a candidate, or one segment of a long candidate) are pooled by the question,

        pi_t = softmax_{t in item}(u(q) . U x_t),      k_j = P_k [sum_t pi_t x_t ; x_last]

    and the question, one query per head, reads the items:

        alpha_j = softmax_j(q . k_j),   a_c = sum_{j in c} alpha_j,   m_c = sum_{j in c} alpha_j g(q, k_j)
        logit_c = beta log(C m_c) + b

    `C` is the number of candidates, so an evenly read, fully permitted candidate scores `b` in a list of any length.
    alpha sums to one over the list and can only rank; the gate is not renormalised (Warrant, section 3.3), so it alone
    can say "none of these". Nothing bypasses the mass. Values of the attention are the one-hot candidate of each item,
    bare and times its gate, which makes the operator's context the vectors of attention and effective mass.

    With `reading_power` p, alpha is the weight of MAA (equation 3), which does not sum to one; with
    `precision_features`, a bounded log-precision of the candidate is added to q . k (PFA).

    Variant `base` has the same parameters and no path: `logit_c = beta LSE_{j in c}(q . k_j + psi(q, k_j)) + b`. The
    other controls are those of `PERMISSION_VARIANTS`.

    Args:
        config: any config with the fields of [`WarrantConfig`].
        hidden_size (`int`): width D of the encoder states.
    """

    def __init__(self, config, hidden_size: int):
        super().__init__()
        size, self.heads = config.readout_size, config.readout_heads
        self.variant = PERMISSION_VARIANTS[config.variant]
        self.loss_name = config.evidence_loss
        self.answerability_weight = config.answerability_weight
        self.permission_supervision = config.permission_supervision
        self.dropout = nn.Dropout(config.readout_dropout)
        self.pool_query = nn.Linear(hidden_size, size // self.heads)
        self.pool_key = nn.Linear(hidden_size, size // self.heads, bias=False)
        self.query = nn.Linear(2 * hidden_size, size)
        self.key = nn.Linear(2 * hidden_size, size)
        self.gate = PermissionGate(
            size, size, config.gate_size, form=self.variant.gate, leak=config.gate_leak, init=config.gate_init
        )
        self.reading_power, self.precision_bound = config.reading_power, config.precision_bound
        names = config.precision_features
        self.precision = None if names is None else PrecisionHead(len(names), bound=config.precision_bound)
        self.beta = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))
        self.mass_scale = nn.Parameter(torch.ones(()))
        self.mass_bias = nn.Parameter(torch.zeros(()))
        self.freeze_unused()

    def freeze_unused(self):
        """Holds still the parameters that the variant does not use."""
        if self.variant.path and self.variant.acts != "logits":  # base and the adapter use psi without a gate
            self.gate.freeze_unused()

    def freeze_reading(self):
        """Holds still what only a reading of its own needs, where another takes its place."""
        idle = {"one": ("pool_query", "pool_key", "query", "key"), "query": ("pool_query", "pool_key", "key")}
        idle["item"] = ("query",)
        for name in idle.get(self.gate.form, ()) if self.variant.path else ():
            self.get_submodule(name).requires_grad_(False)

    def forward(self, states, segment_ids, item_candidates, candidate_mask, **settings) -> EvidenceOutput:
        """Scores candidates by the states of their tokens.

        Args:
            states (`[B, T, D]`): encoder states of all windows of a row, one after the other.
            segment_ids (`[B, T]`, int): -1 padding, 0 question, s + 1 the tokens of item s.
            item_candidates, candidate_mask, settings: see `score`.
        """
        pooled = self.pool(states, segment_ids, item_candidates.shape[1])
        return self.score(pooled, segment_ids, item_candidates, candidate_mask, **settings)

    def permission(self, pooled, item_candidates, candidate_mask, permission_override=None):
        """Permission of each item, `[B, S]`; the arguments are those of `score`."""
        key = pooled.key
        if self.gate.form == "shuffled":
            count = (item_candidates >= 0).sum(1, keepdim=True).clamp(min=1)
            before = (torch.arange(key.shape[1], device=key.device) - 1) % count
            key = key.gather(1, before.unsqueeze(-1).expand_as(key))
        gate = self.gate(pooled.query, key)
        return replaced_permission(gate, permission_override, members(item_candidates, candidate_mask))

    def score(
        self,
        pooled,
        segment_ids,
        item_candidates,
        candidate_mask,
        *,
        gate=None,
        reading=None,
        candidate_lists=None,
        labels=None,
        permission_override=None,
        candidate_features=None,
    ) -> EvidenceOutput:
        """Scores candidates by pooled items.

        Args:
            pooled (`PooledEvidence`): from `pool`.
            segment_ids (`[B, T]`, int): as in `forward`, for the values per token.
            item_candidates (`[B, S]`, int): candidate of each item, -1 where a row has fewer items.
            candidate_mask (`[B, C]`, bool): which candidates exist.
            gate (`[B, S]`, *optional*): from `permission`, where it was needed before.
            reading (`[B, H, S]`, *optional*): log-weights of a reading that took place elsewhere, such as the
                cross-attention of a decoder or the head of a cross-encoder; they take the place of the readout's own
                `q . k`.
            candidate_lists (`[B, K, C]`, bool, *optional*): lists of candidates to compute the loss over; the full
                list when not given. Used with `labels` only.
            labels (`[B, C]`, *optional*): 1 supports, 0 does not, -100 not labelled.
            permission_override (`[B, C]`, float, *optional*): replaces the permission of a candidate; NaN keeps the
                learned one.
            candidate_features (`[B, C, F]`, float, *optional*): the numbers that `precision_features` names.

        Raises:
            ValueError: `candidate_features` is missing, or given to a readout without precision.
        """
        member = members(item_candidates, candidate_mask)
        if gate is None:
            gate = self.permission(pooled, item_candidates, candidate_mask, permission_override)
        precision = self._log_precision(candidate_features, candidate_mask)
        item_precision = None if precision is None else torch.einsum("bsc,bc->bs", member, precision)
        read = _Reader(self, pooled, gate, member, item_candidates >= 0, reading, item_precision, permission_override)

        every = candidate_mask.unsqueeze(1)
        logits, answerable, masses = read(every)
        fields = {
            "logits": logits.squeeze(1).masked_fill(~candidate_mask, float("-inf")),
            "answerability_logits": answerable.squeeze(1),
        }
        if masses is not None:
            attention, weighed, effective, item_attention = masses
            attention, weighed, effective = (mass.squeeze(1) for mass in (attention, weighed, effective))
            fields |= {
                "attention": attention,
                "permission": mean_permission(weighed, attention, gate, member),
                "effective": effective,
                "mass": effective.sum(-1),
            }
            if item_attention is not None:
                fields["item_attention"] = pooled.token_share * of_token(item_attention.squeeze(1), segment_ids)
                fields["item_permission"] = of_token(gate, segment_ids)
            if precision is not None:
                fields["precision"] = precision
        if labels is not None:
            lists = every
            if candidate_lists is not None:
                lists = candidate_lists & every
                logits, answerable, _ = read(lists)
            fields["loss"] = self.loss(logits, answerable, lists, labels, fields.get("permission"), candidate_mask)
        return EvidenceOutput(**fields)

    def _log_precision(self, features, candidate_mask):
        """Bounded log-precision of each candidate, `[B, C]`, or `None`."""
        if self.precision is None:
            if features is not None:
                raise ValueError(
                    "candidate_features is given, but the selector has no precision_features; leave it out."
                )
            return None
        if features is None or features.shape != (*candidate_mask.shape, self.precision.of_state.in_features):
            found = "missing" if features is None else f"of the shape {list(features.shape)}"
            raise ValueError(
                f"candidate_features is {found}; the selector's precision needs "
                f"{[*candidate_mask.shape, self.precision.of_state.in_features]}, made by its processor."
            )
        keep = candidate_mask[:, None, None, :]
        return self.precision(features.unsqueeze(1).float(), keep=keep)[:, 0, 0].masked_fill(~candidate_mask, 0.0)

    @torch.no_grad()
    def lowest_logit(self) -> float:
        """The logit of a candidate without any effective mass."""
        return float(self.beta * math.log(MASS_FLOOR) + self.bias)

    @torch.no_grad()
    def lowest_answerability_logit(self) -> float:
        """The answerability logit of a list without any effective mass, such as an empty one."""
        return float(self.mass_scale * math.log(MASS_FLOOR) + self.mass_bias) if self.variant.path else -math.inf

    def pool(self, states, segment_ids, item_count) -> PooledEvidence:
        """Question and items of `[B, T, D]` states; see `forward`. Items without tokens are zero."""
        states = self.dropout(states.float())
        rows, tokens, width = states.shape
        segments = item_count + 1
        offset = torch.arange(rows, device=states.device).unsqueeze(1) * segments
        present = segment_ids >= 0
        flat = (segment_ids.clamp(min=0) + offset).reshape(-1)

        def total(values):
            # One row per (row, segment); padding adds zeros to segment 0.
            out = values.new_zeros(rows * segments, *values.shape[2:])
            return out.index_add(0, flat, values.flatten(0, 1))

        asks = (segment_ids == 0).to(states.dtype).unsqueeze(1)
        question = (asks @ states / asks.sum(2, keepdim=True).clamp(min=1)).squeeze(1)
        score = torch.einsum("btd,bd->bt", self.pool_key(states), self.pool_query(question))
        score = score.masked_fill(~present, float("-inf")) / self.pool_query.out_features**0.5
        peak = score.new_full((rows * segments,), float("-inf"))
        peak = peak.scatter_reduce(0, flat, score.detach().reshape(-1), "amax")
        share = (score - peak[flat].view(rows, tokens)).masked_fill(~present, float("-inf")).exp()
        share = share / total(share)[flat].view(rows, tokens).clamp(min=torch.finfo(share.dtype).tiny)
        pooled = total(states * share.unsqueeze(-1)).view(rows, segments, width)
        by_token = None
        if self.gate.form == "g2":
            value = F.linear(states, self.key.weight[:, :width])
            change = self.gate.change(value, value) - value
            by_token = total(change * share.unsqueeze(-1)).view(rows, segments, -1)[:, 1:]

        place = torch.arange(tokens, device=states.device).expand(rows, tokens).masked_fill(~present, 0)
        last = place.new_zeros(rows * segments).scatter_reduce(0, flat, place.reshape(-1), "amax")
        ends = states.gather(1, last.view(rows, segments, 1).expand(-1, -1, width))
        question = torch.cat([question, states[:, 0]], -1)
        query, key = self.query(question).unsqueeze(1), self.key(torch.cat([pooled, ends], -1)[:, 1:])
        if by_token is not None:
            key = key + by_token
        elif self.variant.acts == "items":
            key = self.gate.change(key, by=query if self.gate.form == "g1" else key)
        return PooledEvidence(query, key, share * (segment_ids > 0))

    def loss(self, logits, answerable, lists, labels, permission, candidate_mask):
        known = lists & (labels != -100).unsqueeze(1)
        target = (labels == 1).unsqueeze(1).expand_as(known) & known
        listed = known.any(-1)
        if self.loss_name == "bce":
            each = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
            each = (each * known).sum(-1) / known.sum(-1).clamp(min=1)
        else:
            listed = target.any(-1)
            share = target.to(logits.dtype) / target.sum(-1, keepdim=True).clamp(min=1)
            each = -(share * logits.masked_fill(~known, -1e9).log_softmax(-1)).sum(-1)
        loss = (each * listed).sum() / listed.sum().clamp(min=1)
        if self.answerability_weight:
            full = (known == lists).all(-1) & lists.any(-1)  # a list with unknown labels has no known answer
            each = F.binary_cross_entropy_with_logits(
                answerable, target.any(-1).to(answerable.dtype), reduction="none"
            )
            loss = loss + self.answerability_weight * (each * full).sum() / full.sum().clamp(min=1)
        if self.permission_supervision and self.variant.has_gate:
            gold, other = (labels == 1) & candidate_mask, (labels == 0) & candidate_mask
            pairs = gold.unsqueeze(2) & other.unsqueeze(1)
            gap = F.softplus(permission.unsqueeze(1) - permission.unsqueeze(2) + 0.02)  # [B, gold, other]
            loss = loss + self.permission_supervision * (gap * pairs).sum() / pairs.sum().clamp(min=1)
        return loss


class _Reader:
    """Scores lists `[B, K, C]` of one encoded batch: K lists are K query rows with K masks over the same items."""

    def __init__(self, readout, pooled, gate, member, item_mask, reading, log_precision, override):
        self.readout, self.gate, self.member, self.item_mask = readout, gate, member, item_mask
        self.log_precision, self.override = log_precision, override
        self.taint = None
        if reading is not None:
            # An operator takes a NaN for a masked item. It must not look like a passage that nobody has read.
            self.taint = (reading - reading).detach().masked_fill(~item_mask.unsqueeze(1), 0).sum((1, 2))
        query = pooled.query.unflatten(-1, (readout.heads, -1)).transpose(1, 2)  # [B, H, 1 | S, d]
        key = pooled.key.unflatten(-1, (readout.heads, -1)).transpose(1, 2)  # [B, H, S, d]
        adapted = readout.variant.acts == "logits"
        if reading is None and query.shape[2] == 1 and not adapted:
            self.query, self.key, self.reading = query, key, None
        else:  # logits that are no product of one query with the keys: they come in as the bias of a zero product
            if reading is None:
                reading = (query * key).sum(-1) / key.shape[-1] ** 0.5
            if adapted:
                reading = reading + readout.gate.logit(pooled.query, pooled.key).unsqueeze(1)
            self.query, self.key = (reading.new_zeros(*reading.shape[:2], n, 1) for n in (1, reading.shape[2]))
            self.reading = reading
        self.logits = None
        if not readout.variant.path:
            content = (query * key).sum((1, 3)) / key.shape[-1] ** 0.5 if reading is None else reading.mean(1)
            self.logits = content + readout.gate.logit(pooled.query, pooled.key)

    def __call__(self, lists):
        readout = self.readout
        listed = torch.einsum("bkc,bsc->bks", lists.to(self.member.dtype), self.member) > 0
        if self.logits is not None:
            score = self.logits.unsqueeze(1).masked_fill(~listed, float("-inf"))  # [B, K, S]
            items = score.unsqueeze(-1).masked_fill(self.member.unsqueeze(1) == 0, float("-inf"))
            logits = readout.beta * torch.where(lists, items.logsumexp(2), 0.0) + readout.bias
            best = logits.masked_fill(~lists, float("-inf")).amax(-1)
            best = torch.where(lists.any(-1), best, 0.0)
            return logits, readout.mass_scale * best + readout.mass_bias, None
        heads, rows = self.key.shape[1], lists.shape[1]
        mask = (listed & self.item_mask.unsqueeze(1)).unsqueeze(1)
        if self.reading is not None:
            mask = self.reading.unsqueeze(2).masked_fill(~mask, float("-inf"))
        # Attention and effective mass come from one softmax: alpha (g v) = g (alpha v), with the gate on the values.
        value = torch.cat([self.member, self.member * self.gate.unsqueeze(-1)], -1)
        read = evidence_attention(
            self.query.expand(-1, -1, rows, -1),
            self.key,
            value.unsqueeze(1).expand(-1, heads, -1, -1),
            mask=mask,
            log_precision=self.log_precision,
            precision_bound=readout.precision_bound,
            power=readout.reading_power,
            return_weights=not readout.training,
            return_support=False,
        )
        attention, weighed = read.context.mean(1).chunk(2, -1)
        effective = self._counts(attention, weighed)
        size = lists.sum(-1, keepdim=True)
        logits = readout.beta * (size * effective).clamp(min=MASS_FLOOR).log() + readout.bias
        if self.taint is not None:
            logits = logits + self.taint[:, None, None]
        total = effective.sum(-1).clamp(min=MASS_FLOOR).log()
        item_attention = None if read.weights is None else read.weights.mean(1)
        masses = (attention, weighed, effective, item_attention)
        return logits, readout.mass_scale * total + readout.mass_bias, masses

    def _counts(self, attention, weighed):
        """Effective mass: what the gate lets through, unless the variant is a control in which it acts otherwise."""
        acts = self.readout.variant.acts
        if acts == "shares":
            return weighed / weighed.sum(-1, keepdim=True).clamp(min=torch.finfo(weighed.dtype).tiny)
        if acts == "nothing":  # but a permission that a person sets
            return attention if self.override is None else attention * self.override.nan_to_num(1.0).unsqueeze(1)
        return weighed


def replaced_permission(gate, permission_override, member):
    """Gates `[B, S]` of items in which the permission `[B, C]` of a candidate, where it is not NaN, stands for all.

    Raises:
        ValueError: a permission outside 0 to 1.
    """
    if permission_override is None:
        return gate
    outside = (permission_override < 0) | (permission_override > 1)  # NaN is neither
    if outside.any():
        value = permission_override[outside][0].item()
        raise ValueError(f"permission_override has {value:g}; give 0 to 1, or NaN for the learned permission.")
    override = torch.einsum("bsc,bc->bs", member, permission_override.nan_to_num(0.0).to(gate.dtype))
    replaced = torch.einsum("bsc,bc->bs", member, (~permission_override.isnan()).to(gate.dtype)) > 0
    return torch.where(replaced, override, gate)


def mean_permission(effective, attention, gate, member):
    """Permission of each candidate; the mean over its items where nothing of it was read, up to underflow."""
    mean = torch.einsum("bs,bsc->bc", gate, member) / member.sum(1).clamp(min=1)
    tiny = torch.finfo(torch.float32).tiny
    return torch.where(attention > tiny, effective / attention.clamp(min=tiny), mean).clamp(max=1)


def members(item_candidates, candidate_mask):
    """One-hot candidate of each item, `[B, S, C]`; zero for items that a row lacks."""
    member = F.one_hot(item_candidates.clamp(min=0), candidate_mask.shape[1]).to(torch.float32)
    return member * (item_candidates >= 0).unsqueeze(-1)


def of_token(per_item, segment_ids):
    """Copies `[B, S]` to the tokens `[B, T]` of each item; 0 elsewhere."""
    return per_item.gather(1, (segment_ids - 1).clamp(min=0)) * (segment_ids > 0)


__all__ = [
    "MASS_FLOOR",
    "EvidenceReadout",
    "PooledEvidence",
    "mean_permission",
    "members",
    "of_token",
    "replaced_permission",
]
