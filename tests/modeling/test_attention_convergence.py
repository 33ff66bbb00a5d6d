"""A small model learns the same with every backend: kernels that drift show in a loss curve first."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from warrant_hf.modeling.attention_gates import ItemGate, PairwiseGate
from warrant_hf.modeling.attention_ops import evidence_attention

STEPS, TOKENS, SIZE, HEADS, ITEMS = 30, 24, 16, 2, 4
LENGTHS = (24, 20, 15, 9)
IN_TRITON = os.environ.get("TRITON_INTERPRET") == "1"


class Layer(nn.Module):
    """Self-attention with all three mechanisms, all of them trained: a gate, a log-precision and the power."""

    def __init__(self, gate, rank):
        super().__init__()
        self.gate_kind = gate
        self.norm, self.project = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3 * SIZE)
        self.out, self.feed = nn.Linear(SIZE, SIZE), nn.Sequential(nn.Linear(SIZE, 32), nn.GELU(), nn.Linear(32, SIZE))
        self.gate_query, self.gate_key = nn.Linear(SIZE, rank), nn.Linear(SIZE, rank, bias=False)
        self.item_gate, self.score, self.precision = nn.Linear(SIZE, ITEMS), nn.Linear(rank, 1), nn.Linear(SIZE, 1)
        self.power = nn.Parameter(torch.tensor(1.1))

    def forward(self, x, mask, backend):
        query, key, value = self.project(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.gate_kind == "mlp":
            gate_query, gate_key = self.gate_query(x).unsqueeze(1), self.gate_key(x).unsqueeze(1)
            gate = PairwiseGate(gate_query, gate_key, self.score.weight[0], self.score.bias[0], 0.05)
        else:
            items = (torch.arange(TOKENS) * ITEMS // TOKENS)[None]
            gate = ItemGate(self.item_gate(x).sigmoid().unsqueeze(1), items)
        read = evidence_attention(
            query, key, value, mask=mask, gate=gate, log_precision=self.precision(x).squeeze(-1), precision_bound=2.0,
            power=self.power, backend=backend,
        )  # fmt: skip
        x = x + self.out(read.context.transpose(1, 2).flatten(2))
        return x + self.feed(x)


def loss_curve(backend, gate, layers=2, sequences=4, rank=6):
    torch.manual_seed(0)
    embed, head = nn.Embedding(20, SIZE), nn.Linear(SIZE, 20)
    layers = nn.ModuleList([Layer(gate, rank) for _ in range(layers)])
    tokens = torch.randint(20, (sequences, TOKENS))
    mask = torch.arange(TOKENS) < torch.tensor(LENGTHS[-sequences:])[:, None]
    parts = nn.ModuleList([embed, head, layers])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        x = embed(tokens)
        for layer in layers:
            x = layer(x, mask, backend)
        # Copy the token before: attention has to move.
        loss = nn.functional.cross_entropy(head(x)[:, 1:][mask[:, 1:]], tokens[:, :-1][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.skipif(IN_TRITON, reason="the process for Triton")
@pytest.mark.parametrize("gate", ["item", "mlp"])
@pytest.mark.parametrize("backend", ["blockwise", "cpp"])
def test_loss_curve_is_that_of_the_reference(backend, gate):
    expected = loss_curve("reference", gate)
    assert expected[-1] < 0.8 * expected[0]
    try:
        actual = loss_curve(backend, gate)
    except ValueError as error:
        if "is not available" not in str(error):
            raise
        pytest.skip(str(error))  # no compiler, or no AVX-512
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(IN_TRITON, reason="the process for Triton")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_in_its_interpreter():
    """A process of its own, as test_attention_triton.py explains."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--durations=5", __file__]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900)
    print(done.stdout[-6000:])
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.skipif(not IN_TRITON, reason="the test before starts a process for this one")
@pytest.mark.parametrize("gate", ["item", "mlp"])
def test_loss_curve_of_triton(gate):
    """One layer and one sequence with padding, because the interpreter is slow."""
    size = {"layers": 1, "sequences": 1, "rank": 2}
    expected = loss_curve("reference", gate, **size)
    assert expected[-1] < 0.8 * expected[0]
    actual = loss_curve("triton", gate, **size)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
