"""Permission: how strongly what was read may count (Warrant, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class PermissionVariant:
    """One row of the table of controls.

    Args:
        path (`bool`): the logit comes through the effective mass; otherwise from a content head on the same states.
        gate (`str`): key of `PermissionGate.FORMS`.
        summary (`str`): one line for reports.
    """

    path: bool
    gate: str
    summary: str


#: Every variant has the same parameters, so that two of them differ in what the gate may do and in nothing else.
PERMISSION_VARIANTS = {
    "base": PermissionVariant(False, "one", "content head on the same states and parameters, no evidence path"),
    "open": PermissionVariant(True, "one", "the evidence path with every gate fixed at 1"),
    "pair": PermissionVariant(True, "pair", "one learned gate per (question, item), not renormalised"),
}


class PermissionGate(nn.Module):
    r"""Permission of an item for a query,

        psi(q, k) = w . GELU(W_q q + W_k k) + b,        g = leak + (1 - leak) * sigmoid(psi)

    The last layer starts at w = 0 and b = logit((init - leak) / (1 - leak)), so that every gate is `init` before the
    first step. Nothing is renormalised: a closed gate removes mass (Warrant, equations 2 and 3).

    Args:
        query_size, key_size (`int`): widths of the two inputs.
        hidden_size (`int`): width of the hidden layer.
        form (`str`): `"pair"` or `"one"` (g = 1; the parameters exist, frozen, so that the control is matched).
        leak, init (`float`): smallest and initial permission.
    """

    def __init__(self, query_size, key_size, hidden_size, *, form="pair", leak=0.05, init=0.95):
        super().__init__()
        if form not in self.FORMS:
            raise ValueError(f"form is {form!r}; choose one of {', '.join(map(repr, self.FORMS))}.")
        self.form, self.leak, self.init = form, leak, init
        self.query = nn.Linear(query_size, hidden_size)
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1)

    def reset_score(self, init_ops=nn.init):
        """Puts every gate at `init`."""
        start = (self.init - self.leak) / (1 - self.leak)
        init_ops.zeros_(self.score.weight)
        init_ops.constant_(self.score.bias, math.log(start / (1 - start)))

    def logit(self, query, key):
        """psi for `query [..., Dq]` and `key [..., Dk]` (broadcast against each other) -> `[...]`."""
        return self.score(nn.functional.gelu(self.query(query) + self.key(key))).squeeze(-1)

    def _pair(self, query, key):
        return self.leak + (1 - self.leak) * torch.sigmoid(self.logit(query, key))

    def _one(self, query, key):
        return torch.ones(torch.broadcast_shapes(query.shape[:-1], key.shape[:-1]), device=key.device)

    FORMS = {"pair": _pair, "one": _one}

    def forward(self, query, key):
        """Gates in [leak, 1] for `query [..., Dq]` and `key [..., Dk]` -> `[...]`."""
        return self.FORMS[self.form](self, query, key)


__all__ = ["PERMISSION_VARIANTS", "PermissionGate", "PermissionVariant"]
