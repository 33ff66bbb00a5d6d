"""The path of the Warrant paper's HotpotQA experiment, as a control of the evidence readout."""

from __future__ import annotations

import math

import torch
from torch import nn

from .attention_ops import evidence_attention
from .evidence_readout import MASS_FLOOR, EvidenceReadout, mean_permission, members, replaced_permission
from .outputs import EvidenceOutput
from .permission import PERMISSION_VARIANTS, PermissionGate


class MarkerReadout(nn.Module):
    r"""A marker per item reads the question and the item's own tokens, and the gate acts on these tokens,

        u_s   = W_f [x_cls ; x_s ; x_cls * x_s]                  g_t = leak + (1 - leak) sigmoid(psi(u_s, x_t))
        ctx_s = sum_{t in item s} alpha_st g_t v_t + sum_{t in question} alpha_st v_t
        r_s   = W_m x_s + F([W_m x_s ; ctx_s ; W_m x_s * ctx_s]),        logit_c = LSE_{s in c}(w . r_s) + b

    with a two-layer MLP F. The state x_s of the item's last token takes the part of the paper's marker token, of which
    our inputs have none, and the attention has weights of its own instead of those of the encoder's last layer.

    The item's state bypasses the gate, so a closed gate need not lower the score: that is what this control is for.
    `attention` is the share of the marker's attention on the item's own tokens (the rest is the question's), and does
    not sum to one over the list.

    Args, methods and outputs are those of [`EvidenceReadout`], as far as they make sense here.
    """

    loss = EvidenceReadout.loss
    precision = None

    def __init__(self, config, hidden_size: int):
        super().__init__()
        size, self.heads = config.readout_size, config.readout_heads
        self.variant = PERMISSION_VARIANTS[config.variant]
        self.loss_name = config.evidence_loss
        self.answerability_weight = config.answerability_weight
        self.permission_supervision = config.permission_supervision
        self.dropout = nn.Dropout(config.readout_dropout)
        self.pair = nn.Linear(3 * hidden_size, size)
        self.query, self.key, self.value = (nn.Linear(hidden_size, size) for _ in range(3))
        self.marker = nn.Linear(hidden_size, size)
        self.fuse = nn.Sequential(nn.Linear(3 * size, size), nn.GELU(), nn.Dropout(0.1), nn.Linear(size, size))
        self.score = nn.Linear(size, 1)
        form = self.variant.gate
        self.gate = PermissionGate(
            size, hidden_size, config.gate_size, form=form, leak=config.gate_leak, init=config.gate_init
        )
        self.beta, self.mass_scale = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.bias, self.mass_bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.freeze_unused()

    def freeze_unused(self):
        """Holds still the parameters that the variant does not use."""
        self.gate.freeze_unused()
        if self.variant.gate == "one":
            self.pair.requires_grad_(False)

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
        candidate_features=None,
    ) -> EvidenceOutput:
        """Arguments as in [`EvidenceReadout.forward`]; `candidate_features` must be `None`."""
        if candidate_features is not None:
            raise ValueError("candidate_features is given, but the selector has no precision_features; leave it out.")
        states = self.dropout(states.float())
        member = members(item_candidates, candidate_mask)
        own = segment_ids.unsqueeze(1) == torch.arange(1, member.shape[1] + 1, device=states.device)[None, :, None]
        place = torch.arange(states.shape[1], device=states.device)
        last = torch.where(own, place, 0).amax(-1)  # [B, S]
        marker = states.gather(1, last.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        first = states[:, :1].expand_as(marker)
        u = self.pair(torch.cat([first, marker, first * marker], -1))

        at = (segment_ids - 1).clamp(min=0)
        gate = self.gate(u.gather(1, at.unsqueeze(-1).expand(-1, -1, u.shape[-1])), states)  # [B, T]
        gate = replaced_permission(gate, permission_override, of_candidate(member, segment_ids))
        gate = torch.where(segment_ids > 0, gate, 1.0)

        query, key, value = (
            layer(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, given in ((self.query, marker), (self.key, states), (self.value, states))
        )
        visible = own | (segment_ids == 0).unsqueeze(1)
        read = evidence_attention(
            query, key, value, mask=visible.unsqueeze(1), gate=gate[:, None, None], return_weights=True
        )
        alpha = read.weights.mean(1) * own  # [B, S, T], of the item's own tokens
        context = read.context.transpose(1, 2).flatten(2)
        marker = self.marker(marker)
        item = marker + self.fuse(torch.cat([marker, context, marker * context], -1))
        score = self.score(item)  # [B, S, 1]

        inside = member.bool() & (item_candidates >= 0).unsqueeze(-1)
        raw = score.masked_fill(~inside, float("-inf")).logsumexp(1)
        raw = self.beta * torch.where(candidate_mask, raw, 0.0) + self.bias
        attention = torch.einsum("bst,bsc->bc", alpha, member)
        effective = torch.einsum("bst,bt,bsc->bc", alpha, gate, member)
        of_item = torch.einsum("bst,bt->bs", own.to(gate.dtype), gate) / own.sum(-1).clamp(min=1)
        every = candidate_mask.unsqueeze(1)
        logits, answerable = self._lists(raw, every)
        permission = mean_permission(effective, attention, of_item, member)
        fields = {
            "logits": raw.masked_fill(~candidate_mask, float("-inf")),
            "answerability_logits": answerable.squeeze(1),
            "attention": attention,
            "permission": permission,
            "effective": effective,
            "mass": effective.sum(-1),
        }
        if not self.training:
            fields["item_attention"] = torch.einsum("bst->bt", alpha)
            fields["item_permission"] = gate * (segment_ids > 0)
        if labels is not None:
            lists = every if candidate_lists is None else candidate_lists & every
            logits, answerable = self._lists(raw, lists)
            fields["loss"] = self.loss(logits, answerable, lists, labels, permission, candidate_mask)
        return EvidenceOutput(**fields)

    def _lists(self, raw, lists):
        """Logits `[B, K, C]` and answerability `[B, K]` of lists; a marker does not see the rest of its list."""
        logits = raw.unsqueeze(1).expand(lists.shape)
        best = logits.masked_fill(~lists, float("-inf")).amax(-1)
        best = torch.where(lists.any(-1), best, 0.0)
        return logits, self.mass_scale * best + self.mass_bias

    @torch.no_grad()
    def lowest_logit(self) -> float:
        """Stands for the logit of a candidate that was not read; no candidate that was read need be above it."""
        return float(self.beta * math.log(MASS_FLOOR) + self.bias)

    def lowest_answerability_logit(self) -> float:
        return -math.inf


def of_candidate(member, segment_ids):
    """One-hot candidate of each token, `[B, T, C]`; zero for the question and padding."""
    at = (segment_ids - 1).clamp(min=0).unsqueeze(-1).expand(-1, -1, member.shape[-1])
    return member.gather(1, at) * (segment_ids > 0).unsqueeze(-1)


__all__ = ["MarkerReadout", "of_candidate"]
