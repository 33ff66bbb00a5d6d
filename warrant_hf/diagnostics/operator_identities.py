"""What sets a gate on value terms apart from other gates, as identities of the operator (Warrant, appendix A)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..modeling import evidence_attention


@dataclass(frozen=True)
class SameAggregate:
    """Two lists of items that softmax attention cannot tell apart (Warrant, A.10), under four kinds of control.

    Each number is the norm of the difference between the outputs of the two lists.

    Attributes:
        none: without a gate. post_attention: of what a controller makes of the query and the aggregate.
        renormalised: with the item gates added to the attention logits, as logarithms. warrant: with the item gates on
            the value terms.
    """

    none: float
    post_attention: float
    renormalised: float
    warrant: float


def same_aggregate(direction: Tensor, gates: tuple[float, float], *, seed: int = 0) -> SameAggregate:
    """Reads items (u, -u) and (2u, -2u), weights one half each, with the same query and the same item gates (a, b).

    All outputs come from [`evidence_attention`]. By A.10 the last two differences are |a - b| / (a + b) |u| and
    |a - b| / 2 |u|; the first two are 0, whatever the controller is: here it adds a random sigmoid layer.

    Args:
        direction (`[D]`): u. gates: a and b, above 0 and at most 1. seed: of query and controller.

    Raises:
        ValueError: a direction that is no vector, or a gate out of range.
    """
    if direction.dim() != 1:
        raise ValueError(f"direction has the shape {list(direction.shape)}; give a vector.")
    for gate in gates:
        if not 0 < gate <= 1:
            raise ValueError(f"gates holds {gate}; give two numbers above 0 and up to 1.")
    u, size = direction.double(), len(direction)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 1, 1, size, generator=generator, dtype=torch.float64)
    layer = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64)
    gate = torch.tensor([gates], dtype=torch.float64)
    key = torch.zeros(1, 1, 2, size, dtype=torch.float64)  # equal keys: half of the attention each

    def read(scale, **settings):
        value = (scale * torch.stack([u, -u])).view(1, 1, 2, size)
        return evidence_attention(query, key, value, **settings).context.flatten()

    def controlled(aggregate):
        return aggregate + torch.sigmoid(layer @ torch.cat([query.flatten(), aggregate]))

    outputs = {
        "none": [read(scale) for scale in (1, 2)],
        "post_attention": [controlled(read(scale)) for scale in (1, 2)],
        "renormalised": [read(scale, log_precision=gate.log()) for scale in (1, 2)],
        "warrant": [read(scale, gate=gate) for scale in (1, 2)],
    }
    return SameAggregate(**{name: float((one - two).norm()) for name, (one, two) in outputs.items()})


@dataclass(frozen=True)
class SignalToNoise:
    """The signal-to-noise ratio of an aggregate with and without gates (Warrant, A.6 and A.7).

    Attributes:
        base, warranted: SNR_B and SNR_W. signal_kept, noise_kept: R_S, the mean gate of the signal, and R_N, the root
            mean square gate of the noise, each weighted by what an item contributes.
    """

    base: float
    warranted: float
    signal_kept: float
    noise_kept: float


def signal_to_noise(attention: Tensor, gate: Tensor, signal: Tensor, noise: Tensor) -> SignalToNoise:
    """Gates raise the ratio exactly when they keep more of the signal than of the noise: SNR_W / SNR_B = R_S / R_N.

    Args:
        attention, gate (`[K]`): of items with a scalar value.
        signal (`[K]`): mean mu_j of the items in S, 0 for those in N.
        noise (`[K]`): standard deviation sigma_j of the independent items in N, whose mean is 0; 0 for those in S.

    Raises:
        ValueError: shapes that differ, an item that is both, a negative deviation, or no signal or noise to divide by.
    """
    if not attention.shape == gate.shape == signal.shape == noise.shape or attention.dim() != 1:
        raise ValueError("attention, gate, signal and noise must be vectors of one length; give one number per item.")
    attention, gate, signal, noise = (value.double() for value in (attention, gate, signal, noise))
    if ((signal != 0) & (noise != 0)).any() or (noise < 0).any():
        raise ValueError("an item has both signal and noise, or a negative deviation; give it one of them.")
    read, spread = attention * signal, (attention * noise).square()
    if read.sum() == 0 or (gate.square() @ spread) == 0:
        raise ValueError("the ratio is undefined without signal, or without noise that passes; give some of both.")
    return SignalToNoise(
        base=float(read.sum() / spread.sum().sqrt()),
        warranted=float(gate @ read / (gate.square() @ spread).sqrt()),
        signal_kept=float(gate @ read / read.sum()),
        noise_kept=float((gate.square() @ spread / spread.sum()).sqrt()),
    )


def gate_gradient(gradient: Tensor, attention: Tensor, value: Tensor, psi: Tensor, leak: float) -> Tensor:
    r"""dL / dpsi_j = (1 - leak) sigma'(psi_j) <grad_h L, alpha_j v_j> of g_j = leak + (1 - leak) sigma(psi_j) (A.1).

    Args:
        gradient (`[D]`): of the loss by the context h. attention, psi (`[K]`), value (`[K, D]`): of the items.

    Returns:
        `[K]`. Whether a gate opens depends on its own term and on no other.
    """
    return (1 - leak) * _slope(psi) * attention * (value @ gradient)


def mass_jacobian(attention: Tensor, psi: Tensor, leak: float) -> Tensor:
    """d(alpha_j g_j) / dpsi_l, `[K, K]`: diagonal, as nothing is renormalised (A.9)."""
    return torch.diag((1 - leak) * _slope(psi) * attention)


def renormalised_jacobian(attention: Tensor, gate: Tensor) -> Tensor:
    """d(share_j) / d(log g_l), `[K, K]`, of share = softmax(s + log g): share_j (1[j = l] - share_l) (A.9).

    Off the diagonal it is below 0: closing one item opens the others.
    """
    share = attention * gate / (attention * gate).sum()
    return torch.diag(share) - torch.outer(share, share)


def _slope(psi):
    return torch.sigmoid(psi) * torch.sigmoid(-psi)


__all__ = [
    "SameAggregate",
    "SignalToNoise",
    "gate_gradient",
    "mass_jacobian",
    "renormalised_jacobian",
    "same_aggregate",
    "signal_to_noise",
]
