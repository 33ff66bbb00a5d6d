"""A small model with two paths: relevance from content, log-precision from reliability evidence."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from ..modeling.attention_ops import evidence_attention
from .sensor_world import SensorBatch


class FactorisedModel(Protocol):
    """What the six tests need of a model; all tensors without gradients or with, as the model likes."""

    def relevance(self, batch: SensorBatch) -> Tensor:
        """`[N, K]`, the logits r."""

    def log_precision(self, batch: SensorBatch) -> Tensor:
        """`[N, K]`, l as it is added to r: after the bound, where there is one."""

    def predict(self, batch: SensorBatch, log_precision: Tensor | None = None) -> Tensor:
        """`[N]`; `log_precision` (`[N, K]`) takes the place of the model's own."""


class ReliabilityHead(nn.Module):
    """l_j = w . GELU(W e_j + b) + c: a log-precision per source, `[..., F]` -> `[...]`, before any bound.

    Evidence is standardised with `mean` and `deviation` (buffers, `[F]`), which training sets. l starts at 0.
    """

    def __init__(self, evidence_size: int, hidden_size: int):
        super().__init__()
        self.of_evidence = nn.Linear(evidence_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        self.register_buffer("mean", torch.zeros(evidence_size))
        self.register_buffer("deviation", torch.ones(evidence_size))

    def standardise(self, evidence: Tensor) -> None:
        """Takes mean and deviation from evidence, `[..., F]`; a constant column stays as it is."""
        columns = evidence.detach().flatten(0, -2)
        self.mean.copy_(columns.mean(0))
        deviation = columns.std(0)
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def forward(self, evidence: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.of_evidence((evidence - self.mean) / self.deviation))
        return self.score(hidden).squeeze(-1)


class PrecisionModel(nn.Module):
    r"""h = sum_j softmax_j(r_j + clip(l_j, -b, b)) x_j (PFA, the minimal factorisation).

    r_j = (W_q q) . (W_k c_j) / sqrt(D) of query and content; l_j of reliability evidence. The values x_j are readings
    of one quantity as they are, in whose units exp(-l_j / 2) is a standard deviation.

    Args:
        content_size (`int`): C, of query and content.
        evidence_size (`int`): F.
        size (`int`): D, width of the relevance path.
        hidden_size (`int`): of the reliability head.
        bound (`float`, *optional*): b > 0; `None` leaves l unbounded.

    Attributes:
        clipped_share: buffer, 0-dim: share of the log-precisions that the bound clipped, in the last call of
            `log_precision` or `predict` that used the head.
    """

    def __init__(
        self,
        content_size: int,
        evidence_size: int,
        *,
        size: int = 16,
        hidden_size: int = 16,
        bound: float | None = 4.0,
    ):
        super().__init__()
        for name, value in (("content_size", content_size), ("evidence_size", evidence_size), ("size", size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more.")
        if bound is not None and not 0 < bound < math.inf:
            raise ValueError(f"bound is {bound}; give a number above 0, such as 4, or None for no bound.")
        self.bound = bound
        self.of_query, self.of_content = nn.Linear(content_size, size), nn.Linear(content_size, size)
        self.head = ReliabilityHead(evidence_size, hidden_size)
        self.register_buffer("clipped_share", torch.zeros(()))

    def relevance(self, batch: SensorBatch) -> Tensor:
        query, key = self.of_query(batch.query), self.of_content(batch.content)
        return torch.einsum("nd,nkd->nk", query, key) / query.shape[-1] ** 0.5

    def log_precision(self, batch: SensorBatch) -> Tensor:
        raw = self.head(batch.evidence)
        if self.bound is None:
            return raw
        with torch.no_grad():
            self.clipped_share.copy_((raw.abs() > self.bound).float().mean())
        return raw.clamp(-self.bound, self.bound)

    def predict(self, batch: SensorBatch, log_precision: Tensor | None = None) -> Tensor:
        log_precision = self.log_precision(batch) if log_precision is None else log_precision
        output = evidence_attention(
            self.of_query(batch.query)[:, None, None],
            self.of_content(batch.content)[:, None],
            batch.reading[:, None, :, None],
            log_precision=log_precision,
            precision_bound=self.bound,
            return_mass=False,
        )
        return output.context[:, 0, 0, 0]


__all__ = ["FactorisedModel", "PrecisionModel", "ReliabilityHead"]
