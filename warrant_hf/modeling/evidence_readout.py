"""The prediction path: the question reads its candidates, and what it was allowed to read makes the score."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .attention_ops import evidence_attention
from .outputs import EvidenceOutput
from .permission import PERMISSION_VARIANTS, PermissionGate

# Floor of `C * m_c` inside the logarithm: a closed gate gives a finite, lowest logit instead of -inf.
MASS_FLOOR = 1e-9


class EvidenceReadout(nn.Module):
    r"""Scores candidates by the evidence mass that may pass.

    Tokens of an item (a candidate, or one segment of a long candidate) are pooled by the question,

        pi_t = softmax_{t in item}(u(q) . U x_t),      k_j = P_k [sum_t pi_t x_t ; x_last]

    and the question, one query per head, reads the items:

        alpha_j = softmax_j(q . k_j),   a_c = sum_{j in c} alpha_j,   m_c = sum_{j in c} alpha_j g(q, k_j)
        logit_c = beta log(C m_c) + b

    `C` is the number of candidates, so an evenly read, fully permitted candidate scores `b` in a list of any length.
    alpha sums to one over the list and can only rank; the gate is not renormalised (Warrant, section 3.3), so it alone
    can say "none of these". Nothing bypasses the mass. Values of the attention are the one-hot candidate of each
    item, bare and times its gate, which makes the operator's context the vectors of attention and effective mass.

    Variant `base` has the same parameters and no path: `logit_c = beta LSE_{j in c}(q . k_j + psi(q, k_j)) + b`.

    Args:
        config: any config with the readout fields of [`WarrantEncoderConfig`].
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
        # The content head needs psi to move, so only the variants whose gate is fixed at 1 on the path leave it idle.
        self.gate = PermissionGate(
            size, size, config.gate_size, form=self.variant.gate, leak=config.gate_leak, init=config.gate_init
        )
        if self.variant.path and self.variant.gate == "one":
            self.gate.requires_grad_(False)
        self.beta = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))
        self.mass_scale = nn.Parameter(torch.ones(()))
        self.mass_bias = nn.Parameter(torch.zeros(()))

    def forward(
        self,
        states,
        segment_ids,
        item_candidates,
        candidate_mask,
        *,
        candidate_lists=None,
        labels=None,
        permission_override=None,
    ) -> EvidenceOutput:
        """
        Args:
            states (`[B, T, D]`): encoder states of all windows of a row, one after the other.
            segment_ids (`[B, T]`, int): -1 padding, 0 question, s + 1 the tokens of item s.
            item_candidates (`[B, S]`, int): candidate of each item, -1 where a row has fewer items.
            candidate_mask (`[B, C]`, bool): which candidates exist.
            candidate_lists (`[B, K, C]`, bool, *optional*): lists of candidates to compute the loss over; the full
                list when not given. Used with `labels` only.
            labels (`[B, C]`, *optional*): 1 supports, 0 does not, -100 not labelled.
            permission_override (`[B, C]`, float, *optional*): replaces the permission of a candidate; NaN keeps the
                learned one.
        """
        states = self.dropout(states.float())
        question, items, token_share = self._pool(states, segment_ids, item_candidates.shape[1])
        query, key = self.query(question), self.key(items)
        member = F.one_hot(item_candidates.clamp(min=0), candidate_mask.shape[1]).to(states.dtype)
        member = member * (item_candidates >= 0).unsqueeze(-1)  # [B, S, C]
        gate = self.gate(query.unsqueeze(1), key)
        if permission_override is not None:
            override = torch.einsum("bsc,bc->bs", member, permission_override.nan_to_num(0.0).to(gate.dtype))
            replaced = torch.einsum("bsc,bc->bs", member, (~permission_override.isnan()).to(gate.dtype)) > 0
            gate = torch.where(replaced, override, gate)
        read = _Reader(self, query, key, gate, member, item_candidates >= 0)

        every = candidate_mask.unsqueeze(1)
        logits, answerable, masses = read(every)
        fields = {
            "logits": logits.squeeze(1).masked_fill(~candidate_mask, float("-inf")),
            "answerability_logits": answerable.squeeze(1),
        }
        if masses is not None:
            attention, effective, item_attention = masses
            attention, effective = attention.squeeze(1), effective.squeeze(1)
            fields |= {
                "attention": attention,
                "permission": (effective / attention.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1),
                "effective": effective,
                "mass": effective.sum(-1),
            }
            if item_attention is not None:
                fields["item_attention"] = token_share * _of_token(item_attention.squeeze(1), segment_ids)
                fields["item_permission"] = _of_token(gate, segment_ids)
        if labels is not None:
            lists = every
            if candidate_lists is not None:
                lists = candidate_lists & every
                logits, answerable, _ = read(lists)
            fields["loss"] = self._loss(logits, answerable, lists, labels, fields.get("permission"), candidate_mask)
        return EvidenceOutput(**fields)

    @torch.no_grad()
    def lowest_logit(self) -> float:
        """The logit of a candidate without any effective mass."""
        return float(self.beta * math.log(MASS_FLOOR) + self.bias)

    def _pool(self, states, segment_ids, item_count):
        """Question `[B, 2D]`, items `[B, S, 2D]` and each token's share of its item `[B, T]`."""
        rows, tokens, width = states.shape
        segments = item_count + 1
        offset = torch.arange(rows, device=states.device).unsqueeze(1) * segments
        present = segment_ids >= 0
        flat = (segment_ids.clamp(min=0) + offset).reshape(-1)

        def total(values):
            # One row per (row, segment); padding adds zeros to segment 0.
            out = values.new_zeros(rows * segments, *values.shape[2:])
            return out.index_add(0, flat, values.flatten(0, 1))

        count = total(present.to(states.dtype)).clamp(min=1).unsqueeze(-1)
        mean = total(states * present.unsqueeze(-1)) / count
        question = mean.view(rows, segments, width)[:, 0]
        score = torch.einsum("btd,bd->bt", self.pool_key(states), self.pool_query(question))
        score = score.masked_fill(~present, float("-inf")) / self.pool_query.out_features**0.5
        peak = score.new_full((rows * segments,), float("-inf"))
        peak = peak.scatter_reduce(0, flat, score.detach().reshape(-1), "amax")
        share = (score - peak[flat].view(rows, tokens)).masked_fill(~present, float("-inf")).exp()
        share = share / total(share)[flat].view(rows, tokens).clamp(min=torch.finfo(share.dtype).tiny)
        pooled = total(states * share.unsqueeze(-1)).view(rows, segments, width)

        place = torch.arange(tokens, device=states.device).expand(rows, tokens).masked_fill(~present, 0)
        last = place.new_zeros(rows * segments).scatter_reduce(0, flat, place.reshape(-1), "amax")
        ends = states.gather(1, last.view(rows, segments, 1).expand(-1, -1, width))
        question = torch.cat([question, states[:, 0]], -1)
        return question, torch.cat([pooled, ends], -1)[:, 1:], share * (segment_ids > 0)

    def _loss(self, logits, answerable, lists, labels, permission, candidate_mask):
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
        if self.permission_supervision and self.gate.form != "one":
            gold, other = (labels == 1) & candidate_mask, (labels == 0) & candidate_mask
            pairs = gold.unsqueeze(2) & other.unsqueeze(1)
            gap = F.softplus(permission.unsqueeze(1) - permission.unsqueeze(2) + 0.02)  # [B, gold, other]
            loss = loss + self.permission_supervision * (gap * pairs).sum() / pairs.sum().clamp(min=1)
        return loss


class _Reader:
    """Scores lists `[B, K, C]` of one encoded batch: K lists are K query rows with K masks over the same items."""

    def __init__(self, readout, query, key, gate, member, item_mask):
        self.readout, self.gate, self.member, self.item_mask = readout, gate, member, item_mask
        self.query = query.unflatten(-1, (readout.heads, -1)).unsqueeze(2)  # [B, H, 1, d]
        self.key = key.unflatten(-1, (readout.heads, -1)).transpose(1, 2)  # [B, H, S, d]
        self.psi = None if readout.variant.path else readout.gate.logit(query.unsqueeze(1), key)

    def __call__(self, lists):
        readout = self.readout
        listed = torch.einsum("bkc,bsc->bks", lists.to(self.member.dtype), self.member) > 0
        if not readout.variant.path:
            score = (self.query * self.key).sum((1, 3)) / self.key.shape[-1] ** 0.5 + self.psi
            score = score.unsqueeze(1).masked_fill(~listed, float("-inf"))  # [B, K, S]
            items = score.unsqueeze(-1).masked_fill(self.member.unsqueeze(1) == 0, float("-inf"))
            logits = readout.beta * torch.where(lists, items.logsumexp(2), 0.0) + readout.bias
            best = logits.masked_fill(~lists, float("-inf")).amax(-1)
            best = torch.where(lists.any(-1), best, 0.0)
            return logits, readout.mass_scale * best + readout.mass_bias, None
        heads, rows = self.key.shape[1], lists.shape[1]
        # Attention and effective mass come from one softmax: alpha (g v) = g (alpha v), with the gate on the values.
        value = torch.cat([self.member, self.member * self.gate.unsqueeze(-1)], -1)
        read = evidence_attention(
            self.query.expand(-1, -1, rows, -1),
            self.key,
            value.unsqueeze(1).expand(-1, heads, -1, -1),
            mask=(listed & self.item_mask.unsqueeze(1)).unsqueeze(1),
            return_weights=not readout.training,
            return_support=False,
        )
        attention, effective = read.context.mean(1).chunk(2, -1)
        size = lists.sum(-1, keepdim=True)
        logits = readout.beta * (size * effective).clamp(min=MASS_FLOOR).log() + readout.bias
        total = effective.sum(-1).clamp(min=MASS_FLOOR).log()
        item_attention = None if read.weights is None else read.weights.mean(1)
        return logits, readout.mass_scale * total + readout.mass_bias, (attention, effective, item_attention)


def _of_token(per_item, segment_ids):
    """Copies `[B, S]` to the tokens `[B, T]` of each item; 0 elsewhere."""
    return per_item.gather(1, (segment_ids - 1).clamp(min=0)) * (segment_ids > 0)


__all__ = ["MASS_FLOOR", "EvidenceReadout"]
