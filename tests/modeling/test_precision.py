"""The precision head: neutral at first, bounded, and open about what it clipped."""

import pytest
import torch
from torch import nn

from tests.modeling.attention_models import batch_of, build, states
from warrant_hf import PrecisionHead, attach_precision
from warrant_hf.modeling.attention_interface import attend

KEEP = torch.tensor([[True, True, True, False], [True, True, True, True]])[:, None, None]


def value_states():
    return torch.randn(2, 2, 4, 6, generator=torch.Generator().manual_seed(0))


def test_neutral_at_first_and_trainable():
    head, value = PrecisionHead(12), value_states()
    assert torch.equal(head(value), torch.zeros(2, 1, 1, 4))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in head.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        (head(value) * torch.arange(4.0)).sum().backward()
        optimizer.step()
    assert all(not torch.equal(new, old) for new, old in zip(head.parameters(), before, strict=True))


def test_equal_precisions_are_softmax_and_a_swap_swaps_influence():
    """The invariants of the paper's laboratory."""
    query, key = torch.zeros(1, 1, 1, 6), torch.zeros(1, 1, 2, 6)  # two equally relevant keys
    value = torch.eye(2)[None, None].repeat(1, 1, 1, 3)
    head = PrecisionHead(6, bound=4.0)

    def influence(first, second):
        given = torch.tensor([[first, second]])
        options = {"mask": None, "is_causal": False, "scale": None, "precision": head, "log_precision": given}
        return attend(query, key, value, **options)[0][0, 0, 0, :2]

    torch.testing.assert_close(influence(1.1, 1.1), torch.tensor([0.5, 0.5]))
    assert influence(3.2, 0.0)[0] > 0.95
    torch.testing.assert_close(influence(3.2, 0.0), influence(0.0, 3.2).flip(0))
    torch.testing.assert_close(influence(90.0, 0.0), influence(4.0, 0.0))


def test_clipping_is_bounded_and_recorded():
    head, value = PrecisionHead(12, bound=0.5), value_states()
    given = torch.tensor([[0.4, -0.6, 9.0, 9.0], [0.0, 0.5, -0.5, 0.1]])
    expected = torch.tensor([[0.4, -0.5, 0.5, 0.5], [0.0, 0.5, -0.5, 0.1]])
    assert torch.equal(head(value, given=given)[:, 0, 0], expected)
    assert head.clipped_share == pytest.approx(3 / 8)
    head(value, given=given, keep=KEEP)
    assert head.clipped_share == pytest.approx(2 / 7)  # padding does not count
    assert "clipped_share" in head.state_dict()
    nn.init.constant_(head.offset, -3.0)
    assert torch.equal(head(value).unique(), torch.tensor([-0.5])) and head.clipped_share == 1


def test_autocast_leaves_it_in_float32():
    head, value = PrecisionHead(12), value_states()
    nn.init.normal_(head.score, generator=torch.Generator().manual_seed(0))
    expected = head(value)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(value)
    assert found.dtype == torch.float32 and not torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(found, expected, atol=0.03, rtol=0)


def test_it_does_not_read_what_decides_relevance():
    batch, real = batch_of("bert")
    model = build("bert", "sdpa")
    (name,) = attach_precision(model, layers=[0], bound=1.0)
    attention = model.get_submodule(name)
    nn.init.normal_(attention.precision.score, generator=torch.Generator().manual_seed(0))
    seen = []
    attention.precision.register_forward_hook(lambda module, args, output: seen.append(output))
    before = states(model, batch)[0]
    with torch.no_grad():
        attention.query.weight.mul_(2), attention.key.weight.mul_(2)
    after = states(model, batch)[0]
    assert torch.equal(*seen) and not torch.allclose(before, after)
    assert seen[0].shape == (3, 1, 1, 11) and seen[0].abs().max() <= 1 and seen[0].std() > 0


def test_log_precision_as_an_argument():
    batch, real = batch_of("bert", "none")
    model = build("bert", "pfa")
    attach_precision(model, layers=[1], bound=100.0)
    shut = torch.zeros(3, 11)
    shut[:, 4] = -100.0  # as good as masked in layer 1
    mask = torch.ones(3, 1, 11, 11, dtype=torch.bool)
    mask[..., 4] = False
    expected = states(model, batch)[0]
    found = states(model, batch, log_precision=shut)[0]
    assert not torch.allclose(found, expected, atol=1e-3)
    layer = model.encoder.layer[1]
    hidden = states(model, batch, output_hidden_states=True).hidden_states[1]
    with torch.no_grad():
        torch.testing.assert_close(found, layer(hidden, mask), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"log_precision has shape \[3, 5\]; .* \[B, K\] = \[3, 11\]"):
        states(model, batch, log_precision=shut[:, :5])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": 0}, "bound is 0; give a number above 0"),
        ({"bound": float("inf")}, "bound is inf"),
        ({"bound": "wide"}, "bound is 'wide'"),
        ({"hidden_size": 0}, "hidden_size is 0; give a whole number of 1 or more"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        PrecisionHead(12, **settings)
