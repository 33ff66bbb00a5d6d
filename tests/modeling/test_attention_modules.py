"""The stand-alone layers against `nn.MultiheadAttention`."""

import pytest
import torch
from torch import nn

from warrant_hf import MassAwareAttention, PrecisionAttention, WarrantAttention

B, Q, K, E, H = 3, 5, 7, 16, 4
NEUTRAL = [(WarrantAttention, {}), (MassAwareAttention, {"power": 1.0}), (PrecisionAttention, {})]


def close(found, expected, tolerance=2e-6):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def multihead(**settings):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(E, H, batch_first=True, **settings).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attention


def padding(is_float):
    mask = torch.zeros(B, K, dtype=torch.bool)
    mask[0, 4:] = mask[2, :2] = True
    return torch.zeros(B, K).masked_fill(mask, -torch.inf) + random(B, K) if is_float else mask


def pairs(is_float, rows=()):
    mask = random(*rows, Q, K, seed=1) > 0.8
    mask[..., 3] = False  # in every row something can be read
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf) + random(Q, K, seed=2) if is_float else mask


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": padding(False)},
    "float padding": {"key_padding_mask": padding(True)},
    "pairs": {"attn_mask": pairs(False)},
    "float pairs": {"attn_mask": pairs(True)},
    "pairs of each head": {"attn_mask": pairs(False, (B * H,))},
    "both": {"attn_mask": pairs(False), "key_padding_mask": padding(False)},
    "both as floats": {"attn_mask": pairs(True), "key_padding_mask": padding(True)},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(("kind", "settings"), NEUTRAL)
def test_neutral_layers_are_multihead_attention(kind, settings, masks):
    attention = multihead()
    layer = kind.from_multihead(attention, **settings)
    query, key, value = random(B, Q, E), random(B, K, E, seed=3), random(B, K, E, seed=4)
    for average in (True, False):
        options = {"need_weights": True, "average_attn_weights": average}
        expected = attention(query, key, value, **MASKS[masks], **options)
        found = layer(query, key, value, **MASKS[masks], **options)
        for mine, stock in zip(found, expected, strict=True):
            close(mine, stock)
    without = layer(query, key, value, **MASKS[masks])
    close(without[0], expected[0])
    assert without[1] is None


@pytest.mark.parametrize("settings", [{"bias": False}, {"kdim": 6, "vdim": 10}, {"kdim": 6, "bias": False}])
@pytest.mark.parametrize(("kind", "neutral"), NEUTRAL)
def test_other_sizes_and_state_dicts(kind, neutral, settings):
    attention = multihead(**settings)
    layer = kind(E, H, **settings, **neutral)
    missing, unexpected = layer.load_state_dict(attention.state_dict(), strict=False)
    assert unexpected == [] and all(name.startswith(("permission.", "precision.")) for name in missing)
    key, value = random(B, K, settings.get("kdim", E)), random(B, K, settings.get("vdim", E), seed=3)
    close(layer(random(B, Q, E), key, value)[0], attention(random(B, Q, E), key, value)[0])


@pytest.mark.parametrize(("kind", "settings"), NEUTRAL)
def test_inside_a_transformer_layer(kind, settings):
    """In evaluation, nn.TransformerEncoderLayer reads the weights of a stock attention and leaves the module out."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(E, H, 32, batch_first=True).eval()
    states, mask = random(B, K, E), padding(False)
    expected = block(states, src_key_padding_mask=mask)
    block.self_attn = kind.from_multihead(block.self_attn, **settings)
    real = ~mask
    close(block(states, src_key_padding_mask=mask)[real], expected[real])
    changed = {
        WarrantAttention: lambda layer: nn.init.constant_(layer.permission.offset, -2.0),
        MassAwareAttention: lambda layer: setattr(layer, "power", 1.5),
        PrecisionAttention: lambda layer: nn.init.normal_(layer.precision.score, std=5.0),
    }[kind]
    changed(block.self_attn)
    with torch.no_grad():
        assert not torch.allclose(block(states, src_key_padding_mask=mask)[real], expected[real], atol=1e-3)


def test_self_attention_and_causality():
    attention = multihead()
    layer = MassAwareAttention.from_multihead(attention, power=1.0)
    states = random(B, K, E)
    close(layer(states)[0], attention(states, states, states)[0])
    future = torch.ones(K, K, dtype=torch.bool).triu(1)
    expected = attention(states, states, states, attn_mask=future)[0]
    close(layer(states, is_causal=True)[0], expected)
    close(layer(states, is_causal=True, attn_mask=future)[0], expected)
    additive = torch.zeros(K, K).masked_fill(future, -torch.inf)
    close(layer(states, is_causal=True, attn_mask=additive)[0], expected)
    close(layer(states, is_causal=True, key_padding_mask=torch.zeros(B, K))[0], expected)


def test_mass_aware_attention_is_its_formula():
    layer = MassAwareAttention(E, H, bias=False, power=1.3).double()
    states = random(B, K, E).double()
    query, key, value = (
        (states @ weight.T).unflatten(-1, (H, -1)).transpose(1, 2) for weight in layer.in_proj_weight.chunk(3)
    )
    mass = (query @ key.transpose(-1, -2) * (E // H) ** -0.5).exp()
    weights = mass / (mass**1.3).sum(-1, keepdim=True) ** (1 / 1.3)
    context = (weights @ value).transpose(1, 2).flatten(2)
    found = layer(states, need_weights=True)
    close(found[0], context @ layer.out_proj.weight.T, 1e-10)
    close(found[1], weights.mean(1), 1e-10)


def test_repeated_evidence_grows_the_output_of_maa_only():
    """MAA, equation (6): r copies grow the aggregate by r^(1 - 1/p)."""
    states, copies = random(1, 1, E), 4
    for power, growth in ((1.0, 1.0), (1.3, copies ** (1 - 1 / 1.3))):
        layer = MassAwareAttention(E, H, bias=False, power=power)
        close(layer(states, states.expand(1, copies, E))[0], growth * layer(states)[0], 1e-5)


def test_permissions_by_item_are_recorded():
    layer = WarrantAttention(E, H, granularity="item", leak=0.0, start=0.6)
    items, record = torch.tensor([[-1, 0, 0, 1, 1, 2, -1]]), {"permissions": [], "masses": []}
    _, weights = layer(
        random(1, Q, E),
        random(1, K, E),
        need_weights=True,
        average_attn_weights=False,
        items=items,
        permission_record=record,
    )
    (gates,), (mass,) = record.values()
    expected = torch.where(items < 0, 1.0, 0.6)
    close(gates, expected[:, None, None].expand(1, 1, Q, K))
    close(mass, (weights * gates).sum(-1))


@pytest.mark.parametrize(("kind", "settings"), NEUTRAL)
def test_batch_first_as_nn_multihead_attention_takes_it(kind, settings):
    states, attention = random(B, K, E), multihead()
    layer = kind(E, H, batch_first=True, **settings)
    layer.load_state_dict(attention.state_dict(), strict=False)
    close(layer(states)[0], attention(states, states, states)[0])
    with pytest.raises(ValueError, match=f"batch_first is False, but {kind.__name__} takes .batch, length, width"):
        kind(E, H, batch_first=False, **settings)
    with pytest.raises(TypeError, match=f"{kind.__name__}.* 'colour'"):
        kind(E, H, colour=1, **settings)


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize(("kind", "settings"), NEUTRAL)
def test_masks_of_integers_may_mean_either(kind, settings, dtype, name):
    mask = torch.ones(B, K, dtype=dtype) if name == "key_padding_mask" else torch.ones(K, K, dtype=dtype)
    message = f"{name} has dtype {dtype}; make it bool .True = not to be read., .* with attention_mask == 0"
    with pytest.raises(ValueError, match=message):
        kind(E, H, **settings)(random(B, K, E), **{name: mask})


def test_a_row_without_keys_reads_nothing():
    layer = WarrantAttention(E, H)
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[1:] = False
    states = random(B, K, E).requires_grad_()
    output, weights = layer(random(B, Q, E), states, key_padding_mask=mask, need_weights=True)
    close(output[0], layer.out_proj.bias.expand(Q, E))
    assert (weights[0] == 0).all()
    output.sum().backward()
    assert (states.grad[0] == 0).all() and torch.isfinite(states.grad).all()


def test_dropout_in_training_only():
    layer = MassAwareAttention(E, H, dropout=0.5)
    states = random(B, K, E)
    clean = layer.eval()(states)[0]
    assert torch.equal(layer(states)[0], clean)
    assert not torch.allclose(layer.train()(states)[0], clean)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WarrantAttention(10, 4), "num_heads is 4, but embed_dim is 10; give a number that divides it"),
        (lambda: WarrantAttention(E, H, 1.0), "dropout is 1.0; give a number from 0 to below 1"),
        (lambda: MassAwareAttention(E, H, power=0), "power is 0; give a number above 0"),
        (lambda: PrecisionAttention(E, H, bound=-1), "bound is -1"),
        (lambda: WarrantAttention(E, H)(random(Q, E)), r"query has shape \[5, 16\]; give \[batch, length, 16\]"),
        (lambda: WarrantAttention(E, H, kdim=6)(random(B, Q, E)), r"key has shape \[3, 5, 16\]; .* 6\]"),
        (
            lambda: WarrantAttention(E, H)(random(B, Q, E), attn_mask=pairs(False)),
            r"attn_mask has shape \[5, 7\]; give \[5, 5\] or \[12, 5, 5\]",
        ),
        (
            lambda: WarrantAttention(E, H)(random(B, Q, E), key_padding_mask=padding(False)),
            r"key_padding_mask has shape \[3, 7\]; give \[3, 5\]",
        ),
        (
            lambda: WarrantAttention.from_multihead(nn.MultiheadAttention(E, H)),
            "The attention has batch_first=False, which WarrantAttention has not; build it with batch_first=True",
        ),
        (
            lambda: WarrantAttention.from_multihead(nn.MultiheadAttention(E, H, batch_first=True, add_zero_attn=True)),
            "The attention has add_zero_attn=True",
        ),
        (
            lambda: WarrantAttention(E, H)(random(B, K, E), items=torch.zeros(B, K, dtype=torch.long)),
            "items is given, but this WarrantAttention does not read it; .*granularity='item'",
        ),
        (
            lambda: MassAwareAttention(E, H)(random(B, K, E), log_precision=torch.zeros(B, K)),
            "log_precision is given, but this MassAwareAttention does not read it; use PrecisionAttention",
        ),
        (
            lambda: PrecisionAttention(E, H)(random(B, K, E), permission_record={"masses": []}),
            "permission_record is given, but this PrecisionAttention does not read it",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
