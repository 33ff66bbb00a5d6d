"""Rivals of PFA with equal width: what else could explain its gain (PFA, "a matched experiment").

All are a `PrecisionModel` with the same layers. They differ in where the output a_j of the reliability head goes, and
every rival's head learns from the task alone. Where it goes into the key, k_j = W c_j + a_j 1: standard attention, in
which "a key can encode source quality".
"""

from __future__ import annotations

from dataclasses import replace

import torch

from warrant_hf.precision import PrecisionModel


class Softmax(PrecisionModel):
    """softmax(q.k_j), reliability in the keys; there is no separate log-precision."""

    def relevance(self, batch):
        query, key = self.of_query(batch.query), self.of_content(batch.content)
        key = key + self.head(batch.evidence)[..., None]
        return torch.einsum("nd,nkd->nk", query, key) / query.shape[-1] ** 0.5

    def log_precision(self, batch):
        return torch.zeros_like(batch.reading)

    def predict(self, batch, log_precision=None):
        logits = self.relevance(batch)
        return (self.normalise(logits if log_precision is None else logits + log_precision) * batch.reading).sum(-1)

    def normalise(self, logits):
        return logits.softmax(-1)


class BlindSoftmax(Softmax):
    """Softmax with the evidence of another list: the same parameters and distribution, without information."""

    def relevance(self, batch):
        return super().relevance(replace(batch, evidence=batch.evidence.roll(1, dims=0)))


class Temperature(Softmax):
    """softmax(q.k_j / T) with one learned T."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log_temperature = torch.nn.Parameter(torch.zeros(()))

    def normalise(self, logits):
        return (logits * (-self.log_temperature).exp()).softmax(-1)


class EntropyControlled(Softmax):
    """softmax(q.k_j / T_i), log T_i = a + b H_i: each row's temperature follows the entropy that it has at T = 1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.offset, self.slope = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(()))

    def normalise(self, logits):
        entropy = torch.distributions.Categorical(logits=logits).entropy()[..., None]
        return (logits * (-self.offset - self.slope * entropy).exp()).softmax(-1)


class Sparsemax(Softmax):
    """sparsemax(q.k_j)."""

    def normalise(self, logits):
        from entmax import sparsemax

        return sparsemax(logits, dim=-1)


class Entmax(Softmax):
    """1.5-entmax(q.k_j)."""

    def normalise(self, logits):
        from entmax import entmax15

        return entmax15(logits, dim=-1)


#: Name -> (class, bound, loss of the head, whether the package entmax is needed, definition).
RIVALS = {
    "softmax_blind": (BlindSoftmax, None, "task", False, "softmax, keys with another list's evidence"),
    "softmax": (Softmax, None, "task", False, "softmax, evidence in the keys"),
    "temperature": (Temperature, None, "task", False, "softmax, and one learned temperature"),
    "entropy": (EntropyControlled, None, "task", False, "softmax, and a temperature that follows the row's entropy"),
    "sparsemax": (Sparsemax, None, "task", True, "sparsemax, evidence in the keys"),
    "entmax": (Entmax, None, "task", True, "1.5-entmax, evidence in the keys"),
    "bias": (PrecisionModel, None, "task", False, "softmax(r + l), l unbounded, from the task alone"),
    "pfa": (PrecisionModel, 4.0, "gaussian", False, "softmax(r + clip(l)), l from repeated readings"),
    "pfa_beta": (PrecisionModel, 4.0, "beta", False, "the same, beta-NLL"),
    "pfa_laplace": (PrecisionModel, 4.0, "laplace", False, "the same, Laplace"),
    "pfa_quantile": (PrecisionModel, 4.0, "quantile", False, "the same, quantile"),
}
