"""The identities of the paper's appendix A against the operator and its derivatives."""

import pytest
import torch

from warrant_hf import evidence_attention
from warrant_hf.diagnostics import (
    gate_gradient,
    mass_jacobian,
    renormalised_jacobian,
    same_aggregate,
    signal_to_noise,
)

K, SIZE, LEAK = 5, 4, 0.05


@pytest.fixture
def items():
    generator = torch.Generator().manual_seed(1)
    draw = {"generator": generator, "dtype": torch.float64}
    query, key = torch.randn(1, 1, 1, SIZE, **draw), torch.randn(1, 1, K, SIZE, **draw)
    value, psi, target = torch.randn(1, 1, K, SIZE, **draw), torch.randn(K, **draw), torch.randn(SIZE, **draw)
    attention = evidence_attention(query, key, value, return_weights=True).weights.flatten()
    return {"query": query, "key": key, "value": value, "psi": psi, "target": target, "attention": attention}


def gate_of(psi):
    return LEAK + (1 - LEAK) * torch.sigmoid(psi)


def read(items, value=None, **settings):
    value = items["value"] if value is None else value
    return evidence_attention(items["query"], items["key"], value, **settings).context.flatten()


@pytest.mark.parametrize("gates", [(0.9, 0.3), (0.2, 1.0), (0.5, 0.5)])
def test_same_aggregate(gates):
    u = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    found, (a, b) = same_aggregate(u, gates, seed=2), gates
    assert found.none == found.post_attention == 0
    assert found.renormalised == pytest.approx(abs(a - b) / (a + b) * u.norm().item(), abs=1e-12)
    assert found.warrant == pytest.approx(abs(a - b) / 2 * u.norm().item(), abs=1e-12)
    assert (found.warrant > 0) == (a != b)


def test_same_aggregate_refuses():
    with pytest.raises(ValueError, match="gates holds 0; give two numbers above 0 and up to 1"):
        same_aggregate(torch.ones(3), (0, 0.5))
    with pytest.raises(ValueError, match=r"direction has the shape \[1, 3\]; give a vector"):
        same_aggregate(torch.ones(1, 3), (0.1, 0.5))


def test_gate_gradient(items):
    psi = items["psi"].clone().requires_grad_()
    context = read(items, gate=gate_of(psi).view(1, 1, 1, K))
    context.retain_grad()
    (context - items["target"]).square().sum().backward()
    found = gate_gradient(context.grad, items["attention"], items["value"][0, 0], items["psi"], LEAK)
    torch.testing.assert_close(found, psi.grad)


def test_masses_depend_on_their_own_gate_alone(items):
    identity = torch.eye(K, dtype=torch.float64).view(1, 1, K, K)  # the context is then the vector of masses

    def masses(psi):
        return read(items, identity, gate=gate_of(psi).view(1, 1, 1, K))

    exact = torch.autograd.functional.jacobian(masses, items["psi"])
    torch.testing.assert_close(mass_jacobian(items["attention"], items["psi"], LEAK), exact)
    assert (exact - exact.diag().diag()).abs().max() == 0 < exact.diag().min()


def test_renormalised_shares_depend_on_every_gate(items):
    identity = torch.eye(K, dtype=torch.float64).view(1, 1, K, K)
    gate = gate_of(items["psi"])

    def shares(log_gate):
        return read(items, identity, log_precision=log_gate.view(1, 1, 1, K))

    exact = torch.autograd.functional.jacobian(shares, gate.log())
    torch.testing.assert_close(renormalised_jacobian(items["attention"], gate), exact)
    assert (exact - exact.diag().diag())[~torch.eye(K, dtype=torch.bool)].max() < 0


def test_signal_to_noise_identity(items):
    signal = torch.tensor([1.5, 0.7, 0, 0, 0], dtype=torch.float64)
    noise = torch.tensor([0, 0, 0.4, 1.2, 0.8], dtype=torch.float64)
    gate = gate_of(items["psi"])
    found = signal_to_noise(items["attention"], gate, signal, noise)
    assert found.warranted / found.base == pytest.approx(found.signal_kept / found.noise_kept, rel=1e-12)
    closed = signal_to_noise(items["attention"], torch.tensor([0.9, 0.9, 0.3, 0.3, 0.3]), signal, noise)
    assert closed.warranted / closed.base == pytest.approx(3) and closed.noise_kept == pytest.approx(0.3)
    # The same ratio of values that are really drawn and read.
    draws = torch.randn(40_000, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = (signal + noise * draws).T.reshape(1, 1, K, -1)
    for expected, settings in ((found.base, {}), (found.warranted, {"gate": gate.view(1, 1, 1, K)})):
        context = read(items, value, **settings)
        assert (context.mean() / context.std()).item() == pytest.approx(expected, rel=0.02)


def test_signal_to_noise_refuses():
    some = torch.ones(2)
    for signal, noise, message in (
        ([1.0, 0.0], [1.0, 1.0], "both signal and noise"),
        ([0.0, 0.0], [1.0, 1.0], "undefined without signal"),
        ([1.0, 0.0, 0.0], [0.0, 1.0], "vectors of one length"),
    ):
        with pytest.raises(ValueError, match=message):
            signal_to_noise(some, some, torch.tensor(signal), torch.tensor(noise))
