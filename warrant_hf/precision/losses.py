"""Losses that make a log-precision from residuals (PFA, "the precision-factorisation contract").

A residual r is an error whose mean is 0: of repeated readings, of a reading beside a reference, of known corruption.
Each loss says in its own way that r has variance exp(-l). None says that a cause was found: the six tests do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_BETA = 0.5
_SHARE_WITHIN_ONE_DEVIATION = 0.6826894921370859
_SMALLEST_RESIDUAL = 1e-6


def gaussian_nll(log_precision: Tensor, residual: Tensor) -> Tensor:
    """(exp(l) r^2 - l) / 2."""
    return 0.5 * (log_precision.exp() * residual.square() - log_precision).mean()


def beta_nll(log_precision: Tensor, residual: Tensor) -> Tensor:
    """The Gaussian loss of each residual, times its predicted variance to the power 0.5, held constant.

    From Seitzer et al., 2022. Noisy sources, whose gradient the plain loss shrinks, keep their say.
    """
    weight = (-_BETA * log_precision).detach().exp()
    return 0.5 * (weight * (log_precision.exp() * residual.square() - log_precision)).mean()


def laplace_nll(log_precision: Tensor, residual: Tensor) -> Tensor:
    """log(2s) + |r| / s, with the scale s of the Laplace distribution whose variance is exp(-l) = 2 s^2."""
    log_scale = -0.5 * (log_precision + math.log(2))
    return (log_scale + math.log(2) + residual.abs() * (-log_scale).exp()).mean()


def quantile_loss(log_precision: Tensor, residual: Tensor) -> Tensor:
    """Pinball loss: log|r| has its 68.27 % quantile at -l / 2, where a normal error has its standard deviation."""
    excess = residual.abs().clamp(min=_SMALLEST_RESIDUAL).log() + 0.5 * log_precision
    return torch.maximum(_SHARE_WITHIN_ONE_DEVIATION * excess, (_SHARE_WITHIN_ONE_DEVIATION - 1) * excess).mean()


#: Name -> loss of (log-precision, residual), two tensors of one shape; the result is their mean, 0-dim.
PRECISION_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gaussian": gaussian_nll,
    "beta": beta_nll,
    "laplace": laplace_nll,
    "quantile": quantile_loss,
}

__all__ = ["PRECISION_LOSSES", "beta_nll", "gaussian_nll", "laplace_nll", "quantile_loss"]
