"""What an evidence selector returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class EvidenceOutput(ModelOutput):
    """Output of every evidence selector. B rows (questions), C candidates (padded), S items, H heads.

    Args:
        loss (`torch.FloatTensor` of shape `()`, *optional*): training loss, when `labels` were given.
        logits (`torch.FloatTensor` of shape `[B, C]`): support logit of each candidate; `-inf` where a row has no
            such candidate.
        attention (`[B, C]`, *optional*): how strongly each candidate was read, `sum_j alpha_j`, averaged over heads
            and taken before any dropout. Sums to one over a row (at `reading_power` 1). `None` for the variant without
            an evidence path.
        permission (`[B, C]`, *optional*): how strongly what was read may count: `effective / attention`.
        effective (`[B, C]`, *optional*): `sum_j alpha_j g_j`, the mass that makes the logit.
        mass (`[B]`, *optional*): total effective mass of a row (Warrant, section 3.3).
        precision (`[B, C]`, *optional*): bounded log-precision of each candidate, with `precision_features`.
        answerability_logits (`[B]`): logit of "some candidate supports an answer".
        item_attention (`[B, T]`, *optional*): attention of each token (flattened windows) within its row; the tokens
            of a candidate sum to its `attention`. In evaluation mode only.
        item_permission (`[B, T]`, *optional*): permission of each token. In evaluation mode only.
    """

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    attention: torch.FloatTensor | None = None
    permission: torch.FloatTensor | None = None
    effective: torch.FloatTensor | None = None
    mass: torch.FloatTensor | None = None
    answerability_logits: torch.FloatTensor | None = None
    precision: torch.FloatTensor | None = None
    item_attention: torch.FloatTensor | None = None
    item_permission: torch.FloatTensor | None = None


__all__ = ["EvidenceOutput"]
