"""Every loss of the table finds the variance of normal residuals, and has the gradient it should."""

import math

import pytest
import torch

from warrant_hf.precision import PRECISION_LOSSES

NORMAL = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", PRECISION_LOSSES)
@pytest.mark.parametrize("deviation", [0.1, 3.0])
def test_the_gradient_vanishes_at_the_variance(name, deviation):
    # A Laplace distribution with the mean size of a normal error has 4/pi of its variance.
    excess = math.log(4 / math.pi) if name == "laplace" else 0.0
    at = -2 * math.log(deviation) - excess

    def slope(level):
        level = torch.tensor(level, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(PRECISION_LOSSES[name](level.expand_as(NORMAL), deviation * NORMAL), level)[0]

    assert slope(at - 0.03) < 0 < slope(at + 0.03)


@pytest.mark.parametrize("name", PRECISION_LOSSES)
def test_zero_residuals_and_gradients(name):
    level = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    residual = torch.tensor([0.0, 1e-9, 1.0, 50.0], dtype=torch.float64)
    loss = PRECISION_LOSSES[name](level, residual)
    assert loss.dim() == 0 and loss.isfinite()
    (gradient,) = torch.autograd.grad(loss, level)
    assert gradient.isfinite().all() and gradient[0] < 0 < gradient[3]  # a small error raises precision


def test_beta_gives_noisy_sources_their_say():
    level = torch.tensor([4.0, -4.0], requires_grad=True)
    residual = torch.tensor([0.0, 0.0])
    plain = torch.autograd.grad(PRECISION_LOSSES["gaussian"](level, residual), level)[0]
    beta = torch.autograd.grad(PRECISION_LOSSES["beta"](level, residual), level)[0]
    assert torch.allclose(beta / plain, torch.tensor([math.exp(-2.0), math.exp(2.0)]))
