"""Precision: how reliable each key's value is (PFA, "the minimal factorisation")."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PrecisionHead(nn.Module):
    r"""A bounded log-precision per key, the same for all queries and heads,

        l_j = clip(w . GELU(W v_j + b) + c, -bound, bound)

    It is added to the attention logits, which multiplies the unnormalised weights by a precision between exp(-bound)
    and exp(bound). w and c start at 0, and with equal precisions the attention is softmax.

    v_j are the projected values of the key's token, all heads side by side: an affine image of its hidden state that
    a cache of keys and values holds too, and no input of the relevance q.k. The paper asks for this separation; it
    also asks for a target of its own (known corruption, repeated measurements) before the output is called a
    precision. Without one it is a bias per key.

    Args:
        value_size (`int`): Hkv * Dv.
        hidden_size (`int`): width of the hidden layer.
        bound (`float`): above 0.

    Attributes:
        clipped_share: buffer, 0-dim: the share of the readable keys that were clipped in the last forward pass.
    """

    def __init__(self, value_size: int, *, hidden_size: int = 32, bound: float = 4.0):
        super().__init__()
        if isinstance(hidden_size, bool) or not isinstance(hidden_size, int) or hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size!r}; give a whole number of 1 or more.")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
            raise ValueError(f"bound is {bound!r}; give a number above 0, such as 4.0.")
        self.bound = float(bound)
        self.of_state = nn.Linear(value_size, hidden_size)
        self.score = nn.Parameter(torch.empty(hidden_size))
        self.offset = nn.Parameter(torch.empty(1))
        # Persistent, because loading leaves other buffers unwritten.
        self.register_buffer("clipped_share", torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self):
        """Puts every log-precision at 0."""
        self.of_state.reset_parameters()
        nn.init.zeros_(self.score)
        nn.init.zeros_(self.offset)
        nn.init.zeros_(self.clipped_share)

    def extra_repr(self):
        return f"bound={self.bound}"

    def forward(self, value: Tensor, *, keep: Tensor | None = None, given: Tensor | None = None) -> Tensor:
        """Log-precisions `[B, 1, 1, K]`, clipped, in float32 at least.

        Args:
            value: `[B, Hkv, K, Dv]`.
            keep: bool, broadcastable to `[B, H, Q, K]`: what may be read; `None` for all. Only the record needs it.
            given (`[B, K]`, floating): log-precisions from outside (calibration, provenance) instead of the head's.

        Raises:
            ValueError: `given` does not fit the keys.
        """
        if given is None:
            hidden = self.of_state(value.transpose(1, 2).flatten(2))
            dtype = torch.promote_types(hidden.dtype, torch.float32)
            with torch.autocast(value.device.type, enabled=False):  # it decides about the projection only
                hidden = nn.functional.gelu(hidden.to(dtype))
                given = hidden @ self.score.to(dtype) + self.offset.to(dtype)
        elif given.shape != (value.shape[0], value.shape[2]):
            raise ValueError(
                f"log_precision has shape {list(given.shape)}; the attention with the precision needs [B, K] = "
                f"{[value.shape[0], value.shape[2]]}."
            )
        with torch.no_grad():
            clipped, count = given.abs() > self.bound, given.numel()
            if keep is not None:
                read = keep.flatten(1, 2).any(1).expand(given.shape)
                clipped, count = clipped & read, read.sum().clamp(min=1)
            self.clipped_share.copy_(clipped.sum() / count)
        return given.clamp(-self.bound, self.bound)[:, None, None, :]


__all__ = ["PrecisionHead"]
