"""Permission: how strongly what was read may count (Warrant, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

#: Forms of the gate that learn a permission; the others leave it at 1.
LEARNED_GATES = ("pair", "query", "item", "shuffled")


@dataclass(frozen=True)
class PermissionVariant:
    """One row of the table of controls.

    Args:
        path (`bool`): the logit comes through the effective mass; otherwise from a content head on the same states.
        gate (`str`): what the gate sees, one of `PermissionGate.FORMS`.
        summary (`str`): one line for reports.
        acts (`str`): on what the gate acts: `"terms"` of the sum, their `"shares"` (renormalised), the `"logits"` of
            the attention, the `"items"` that are read, the `"tokens"` of a candidate before its marker reads them
            ([`MarkerReadout`]), or `"nothing"`.
    """

    path: bool
    gate: str
    summary: str
    acts: str = "terms"

    @property
    def has_gate(self) -> bool:
        """Whether a permission is learned."""
        return self.gate in LEARNED_GATES


#: Every variant but the two of the marker has the same parameters, so that two of them differ in what the gate may do
#: and in nothing else. What a variant does not use is frozen.
PERMISSION_VARIANTS = {
    "base": PermissionVariant(False, "one", "content head on the same states and parameters, no evidence path"),
    "open": PermissionVariant(True, "one", "the evidence path with every gate fixed at 1"),
    "pair": PermissionVariant(True, "pair", "one learned gate per (question, item), not renormalised"),
    "query": PermissionVariant(True, "query", "one gate per question: it scales the mass of the whole list"),
    "item": PermissionVariant(True, "item", "one gate per item, blind to the question beyond the item's states"),
    "shuffled": PermissionVariant(True, "shuffled", "each item has the gate of the item before it in the list"),
    "normalized": PermissionVariant(True, "pair", "the gated mass divided by its sum over the list", "shares"),
    "attention_adapter": PermissionVariant(True, "one", "psi is added to the logits of the attention", "logits"),
    "attention_readout": PermissionVariant(True, "pair", "gates are reported, the score is the open mass", "nothing"),
    "param_mlp": PermissionVariant(True, "mlp", "no gate; its parameters are an MLP on the items", "items"),
    "post_attention_glu": PermissionVariant(True, "glu", "no gate; its parameters are a GLU on the items", "items"),
    "g1": PermissionVariant(True, "g1", "Qiu's G1: a sigmoid per channel of pooled items, by the question", "items"),
    "g2": PermissionVariant(True, "g2", "Qiu's G2: a sigmoid per channel of each token before pooling", "items"),
    "marker_path": PermissionVariant(False, "pair", "the paper's path: a marker reads its own gated tokens", "tokens"),
    "marker_open": PermissionVariant(False, "one", "the paper's path with every gate fixed at 1", "tokens"),
}


class PermissionGate(nn.Module):
    r"""Permission of an item for a query,

        psi(q, k) = w . GELU(W_q q + W_k k) + b,        g = leak + (1 - leak) * sigmoid(psi)

    The last layer starts at w = 0 and b = logit((init - leak) / (1 - leak)), so that every gate is `init` before the
    first step. Nothing is renormalised: a closed gate removes mass (Warrant, equations 2 and 3).

    Args:
        query_size, key_size (`int`): widths of the two inputs.
        hidden_size (`int`): width of the hidden layer.
        form (`str`): `"pair"`; `"query"` and `"item"` leave out the other term; `"shuffled"` is `"pair"` on keys that
            the caller has moved; `"one"` is g = 1. The others turn the same parameters into a change of the items,
            through h(x) = W_k^T GELU(W_q x): `"mlp"` k + h(k), `"glu"` k + k sigmoid(h(k)), `"g1"` k sigmoid(h(q) +
            b), `"g2"` the factor sigmoid(h(x) + b) of a token's value x. Their gate is 1.
        leak, init (`float`): smallest and initial permission.
    """

    # Parameters that a form does not use.
    FORMS = {
        "pair": (),
        "shuffled": (),
        "query": ("key.weight",),
        "item": ("query.weight",),
        "one": ("query.weight", "query.bias", "key.weight", "score.weight", "score.bias"),
        "mlp": ("score.weight", "score.bias"),
        "glu": ("score.weight", "score.bias"),
        "g1": ("score.weight",),
        "g2": ("score.weight",),
    }

    def __init__(self, query_size, key_size, hidden_size, *, form="pair", leak=0.05, init=0.95):
        super().__init__()
        if form not in self.FORMS:
            raise ValueError(f"form is {form!r}; choose one of {', '.join(map(repr, self.FORMS))}.")
        if form not in (*LEARNED_GATES, "one") and query_size != key_size:
            raise ValueError(
                f"form is {form!r}, for which query_size {query_size} and key_size {key_size} must agree."
            )
        self.form, self.leak, self.init = form, leak, init
        self.query = nn.Linear(query_size, hidden_size)
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1)

    def freeze_unused(self):
        for name in self.FORMS[self.form]:
            self.get_parameter(name).requires_grad_(False)

    def reset_score(self, init_ops=nn.init):
        """Puts every gate at `init`."""
        start = (self.init - self.leak) / (1 - self.leak)
        init_ops.zeros_(self.score.weight)
        init_ops.constant_(self.score.bias, math.log(start / (1 - start)))

    def logit(self, query, key):
        """psi for `query [..., Dq]` and `key [..., Dk]` (broadcast against each other) -> `[...]`."""
        return self.score(nn.functional.gelu(self.query(query) + self.key(key))).squeeze(-1)

    def change(self, values, by):
        """`values [..., D]` changed as the form says; `by` is what the change is made from, `[..., D]`."""
        seen = nn.functional.linear(nn.functional.gelu(self.query(by)), self.key.weight.T)
        if self.form == "mlp":
            return values + seen
        if self.form == "glu":
            return values + values * torch.sigmoid(seen)
        return values * torch.sigmoid(seen + self.score.bias)

    def forward(self, query, key):
        """Gates in [leak, 1] for `query [..., Dq]` and `key [..., Dk]` -> `[...]`."""
        shape = torch.broadcast_shapes(query.shape[:-1], key.shape[:-1])
        if self.form not in LEARNED_GATES:
            return torch.ones(shape, device=key.device)
        query = torch.zeros_like(query) if self.form == "item" else query
        key = torch.zeros_like(key) if self.form == "query" else key
        return (self.leak + (1 - self.leak) * torch.sigmoid(self.logit(query, key))).expand(shape)


__all__ = ["PERMISSION_VARIANTS", "PermissionGate", "PermissionVariant"]
