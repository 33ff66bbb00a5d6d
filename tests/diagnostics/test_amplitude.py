"""The amplitude's way through a model: masses by the formula, and norms that erase it."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from warrant_hf import MassAwareAttention, set_maa_power
from warrant_hf.diagnostics.amplitude import amplitude_trace

TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertModel._from_config(BertConfig(**TINY, max_position_embeddings=32), attn_implementation="maa")


@pytest.fixture
def inputs():
    ids = torch.randint(1, 40, (5, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) < torch.tensor([12, 10, 7, 5, 3])[:, None]
    return {"input_ids": ids, "attention_mask": mask.long(), "output_attentions": True}


def test_sites_come_in_order_and_layer_norms_erase(bert, inputs):
    trace = amplitude_trace(bert.train(), inputs)
    assert bert.training
    names = [site.name for site in trace]
    assert names[:3] == [
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.self",
        "encoder.layer.0.attention.output.LayerNorm",
    ]
    assert len(trace) == 7
    for site in trace:
        assert site.is_erased == (site.kind == "norm")
        if site.kind == "norm":
            assert site.norm == pytest.approx(4.0, abs=0.01) and site.spread < 1e-3  # sqrt(16)
        else:
            assert site.spread > 1e-3 and np.isnan(site.passed)


@pytest.mark.parametrize("power", [1.0, 1.3])
def test_the_mass_of_flat_attention_is_known(bert, inputs, power):
    """With queries of 0 all n readable keys get equal attention, and the amplitude is n^(1 - 1/p)."""
    set_maa_power(bert, power)
    for layer in bert.encoder.layer:
        nn.init.zeros_(layer.attention.self.query.weight)
        nn.init.zeros_(layer.attention.self.query.bias)
    masses = [site.mass for site in amplitude_trace(bert, inputs) if site.kind == "attention"]
    lengths = inputs["attention_mask"].sum(1).double()
    known = (lengths * lengths ** (1 - 1 / power)).sum() / lengths.sum()  # every readable row counts once
    assert masses == pytest.approx([known.item()] * 2, rel=1e-5)


def test_padding_does_not_count(bert, inputs):
    whole = amplitude_trace(bert, inputs)
    rows = [{name: value[i : i + 1, :n] if name != "output_attentions" else value for name, value in inputs.items()}
            for i, n in enumerate([12, 10, 7, 5, 3])]  # fmt: skip
    for a, b in zip(whole, amplitude_trace(bert, rows), strict=True):
        assert (a.norm, a.spread) == pytest.approx((b.norm, b.spread), rel=1e-4, abs=1e-6)


def test_a_pre_norm_model_is_followed_too():
    config = LlamaConfig(**TINY, num_key_value_heads=2)
    model = LlamaModel._from_config(config, attn_implementation="maa")
    trace = amplitude_trace(model, {"input_ids": torch.arange(1, 13).view(2, 6)})
    assert [site.kind for site in trace] == ["norm", "attention", "norm"] * 2 + ["norm"]
    # Its RMSNorm has an epsilon of 1e-6 beside states of variance 4e-4: almost nothing passes.
    assert all(site.is_erased for site in trace if site.kind == "norm")
    assert all(np.isnan(site.mass) for site in trace)


class Counter(nn.Module):
    """Attention over copies, with a norm behind it or nothing."""

    def __init__(self, power, has_norm):
        super().__init__()
        self.read = MassAwareAttention(8, 1, power=power)
        self.norm = nn.LayerNorm(8) if has_norm else nn.Identity()

    def forward(self, states, attention_mask):
        return self.norm(self.read(states, key_padding_mask=attention_mask == 0, need_weights=True)[0])


@pytest.mark.parametrize("power, has_norm", [(1.0, False), (1.5, False), (1.5, True)])
def test_a_planted_count_is_recovered_until_the_norm(power, has_norm):
    torch.manual_seed(0)
    counts = np.random.default_rng(0).integers(1, 9, 200)
    # Each row repeats a term of its own: without that, the epsilon of the norm would still tell the counts apart.
    states = (torch.randn(8) + 0.2 * torch.randn(200, 1, 8)).expand(200, 8, 8)
    mask = (torch.arange(8) < torch.tensor(counts)[:, None]).long()
    trace = amplitude_trace(
        Counter(power, has_norm),
        {"states": states, "attention_mask": mask},
        target=counts,
        held_out=np.arange(200) >= 100,
        resamples=0,
    )
    attention, *norms = trace
    assert attention.mass == pytest.approx((counts * counts ** (1 - 1 / power)).sum() / counts.sum(), rel=1e-5)
    assert attention.recovery.value > 0.8 if power > 1 else attention.recovery.value < 0.1
    assert [site.is_erased for site in norms] == [True] * has_norm
    assert all(site.recovery.value < 0.1 for site in norms)


def test_errors_say_what_is_wrong(bert, inputs):
    with pytest.raises(ValueError, match="target and held_out together"):
        amplitude_trace(bert, inputs, target=np.arange(5))
    with pytest.raises(ValueError, match="no attention and no norm"):
        amplitude_trace(nn.Linear(2, 2), {"input": torch.ones(1, 2)})
