"""The operator against its definition, the laws of the three papers, and its edges."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from warrant_hf.modeling import attention_ops

# Most laws here are about all outputs; the default leaves the support out.
evidence_attention = functools.partial(attention_ops.evidence_attention, return_support=True)

B, H, Q, K, D, DV = 2, 4, 5, 7, 8, 6
EXACT = {"rtol": 1e-10, "atol": 1e-12}
POWERS = [0.1, 0.5, 1.0, 1.0005, 1.02, 1.3, 3.0, 8.0, 64.0]


def make(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def make_qkv(heads=H, kv_heads=H, queries=Q, keys=K, width=D, value_width=DV, dtype=torch.float64):
    return (
        make(B, heads, queries, width, seed=1, dtype=dtype),
        make(B, kv_heads, keys, width, seed=2, dtype=dtype),
        make(B, kv_heads, keys, value_width, seed=3, dtype=dtype),
    )


def make_mask(*shape, share=0.3):
    """Random bool mask in which each row keeps its first key."""
    mask = make(*shape, seed=4).sigmoid() > share
    mask[..., 0] = True
    return mask


def definition(query, key, value, *, scale=None, mask=None, gate=None, log_precision=None, bound=None, power=1.0):
    """The four formulas as printed, with no care for overflow; every argument already has four axes and H heads."""
    logits = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if log_precision is not None:
        logits = logits + (log_precision if bound is None else log_precision.clamp(-bound, bound))
    unnormalised = logits.exp()
    if mask is not None:
        unnormalised = unnormalised * mask if mask.dtype == torch.bool else unnormalised * mask.exp()
    attention = unnormalised / unnormalised.sum(-1, keepdim=True)
    present = unnormalised > 0
    safe = unnormalised.where(present, 1.0)  # 0^p and log 0 have no gradient
    weights = unnormalised / (safe.pow(power) * present).sum(-1, keepdim=True).pow(1 / power)
    gate = torch.ones_like(weights) if gate is None else gate
    if power == 1:
        entropy = -(attention * attention.where(present, 1.0).log()).sum(-1)
    else:
        entropy = (attention.where(present, 1.0).pow(power) * present).sum(-1).log() / (1 - power)
    return (gate * weights) @ value, (gate * attention).sum(-1), entropy.exp(), weights


def gradients(output, inputs, seed=9):
    """Gradients of a random projection of the outputs, one per input."""
    outputs = [x for x in output if x is not None and x.requires_grad]
    loss = sum((x * make(*x.shape, seed=seed + i).to(x.dtype)).sum() for i, x in enumerate(outputs))
    return torch.autograd.grad(loss, inputs)


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, **tolerance)


# ---------------------------------------------------------------------------------------------- the definition


@pytest.mark.parametrize("power", [0.1, 0.5, 1.0, 1.02, 1.3, 3.0, 8.0])
@pytest.mark.parametrize("float_mask", [False, True])
@pytest.mark.parametrize(
    ("gate_shape", "precision_shape", "mask_shape"),
    [
        (None, None, None),
        ((B, 1, 1, K), None, (B, 1, 1, K)),
        ((B, H, Q, K), (B, 1, 1, K), (B, 1, Q, K)),
        ((B, 1, Q, K), (B, H, 1, K), (B, H, Q, K)),
        ((1, H, 1, K), (1, 1, Q, K), (1, H, 1, K)),
    ],
)
def test_equals_the_definition_with_gradients(power, float_mask, gate_shape, precision_shape, mask_shape):
    inputs = [x.requires_grad_() for x in make_qkv()]
    gate = None if gate_shape is None else make(*gate_shape, seed=5).sigmoid().requires_grad_()
    log_precision = None if precision_shape is None else make(*precision_shape, seed=6).mul(2).requires_grad_()
    mask = None if mask_shape is None else make_mask(*mask_shape)
    if mask is not None and float_mask:
        mask = make(*mask_shape, seed=7).masked_fill(~mask, -math.inf)
    inputs += [x for x in (gate, log_precision) if x is not None]

    output = evidence_attention(
        *inputs[:3],
        mask=mask,
        gate=gate,
        log_precision=log_precision,
        precision_bound=1.5,
        power=power,
        return_weights=True,
    )
    expected = definition(*inputs[:3], mask=mask, gate=gate, log_precision=log_precision, bound=1.5, power=power)
    assert_all_close(output, expected, rtol=1e-9, atol=1e-11)
    assert_all_close(gradients(output, inputs), gradients(expected, inputs), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("lengths", [*itertools.product([1, 63, 65], [1, 63, 64, 65])])
@pytest.mark.parametrize("return_support", [True, False])
def test_is_softmax_attention_when_everything_is_neutral(lengths, return_support):
    query, key, value = make_qkv(queries=lengths[0], keys=lengths[1])
    ones, zeros = torch.ones(B, lengths[1]), torch.zeros(B, lengths[1])
    mask = make_mask(B, 1, 1, lengths[1])
    output = evidence_attention(
        query, key, value, mask=mask, gate=ones, log_precision=zeros, return_support=return_support
    )
    torch.testing.assert_close(output.context, F.scaled_dot_product_attention(query, key, value, mask), **EXACT)
    torch.testing.assert_close(output.mass, torch.ones_like(output.mass), **EXACT)


def test_scale_replaces_the_default():
    query, key, value = make_qkv()
    output = evidence_attention(query, key, value, scale=0.7)
    assert_all_close(output[:3], definition(query, key, value, scale=0.7)[:3], **EXACT)


# ---------------------------------------------------------------------------------------------- laws of the papers


@pytest.mark.parametrize("power", [1.0, 1.3])
@pytest.mark.parametrize("constant", [0.0, 0.8, -2.5])
def test_a_common_factor_of_all_precisions_changes_nothing(power, constant):
    query, key, value = make_qkv()
    log_precision = make(B, K, seed=6).clamp(-0.4, 0.4)
    common = {"precision_bound": 4.0, "power": power, "return_weights": True}
    shifted = evidence_attention(query, key, value, log_precision=log_precision + constant, **common)
    plain = evidence_attention(query, key, value, log_precision=log_precision, **common)
    assert_all_close(shifted, plain, **EXACT)
    equal = evidence_attention(query, key, value, log_precision=torch.full((B, K), constant), **common)
    without = evidence_attention(query, key, value, power=power, return_weights=True)
    assert_all_close(equal, without, **EXACT)
    assert (plain.weights - without.weights).abs().max() > 1e-2  # unequal precision does change something


def test_swapping_two_precisions_swaps_their_reliability():
    query, key, value = make_qkv()
    key[:, :, 1] = key[:, :, 4]  # equal relevance, so reliability alone tells them apart
    log_precision = make(B, K, seed=6)
    swapped = log_precision.clone()
    swapped[:, [1, 4]] = log_precision[:, [4, 1]]
    before = evidence_attention(query, key, value, log_precision=log_precision, return_weights=True).weights
    after = evidence_attention(query, key, value, log_precision=swapped, return_weights=True).weights
    torch.testing.assert_close(after[..., [4, 1]], before[..., [1, 4]], **EXACT)
    torch.testing.assert_close(after[..., [0, 2, 3, 5, 6]], before[..., [0, 2, 3, 5, 6]], **EXACT)
    assert (after[..., 1] - before[..., 1]).abs().min() > 1e-4


def test_precision_beyond_the_bound_counts_as_the_bound():
    query, key, value = make_qkv()
    log_precision = make(B, K, seed=6) * 10
    bounded = evidence_attention(query, key, value, log_precision=log_precision, precision_bound=2.0)
    assert_all_close(
        bounded[:3], evidence_attention(query, key, value, log_precision=log_precision.clamp(-2, 2))[:3], **EXACT
    )
    assert (bounded.context - evidence_attention(query, key, value, log_precision=log_precision).context).any()


@pytest.mark.parametrize("power", [0.5, 1.0, 1.1, 3.0])
@pytest.mark.parametrize("repeats", [2, 5])
def test_repeated_evidence_scales_by_r_to_one_minus_one_over_p(power, repeats):
    query, key, value = make_qkv()
    once = evidence_attention(query, key, value, power=power)
    often = evidence_attention(query, key.repeat(1, 1, repeats, 1), value.repeat(1, 1, repeats, 1), power=power)
    torch.testing.assert_close(often.context, once.context * repeats ** (1 - 1 / power), **EXACT)
    torch.testing.assert_close(often.support, once.support * repeats, **EXACT)
    torch.testing.assert_close(often.mass, once.mass, **EXACT)


@pytest.mark.parametrize("power", POWERS)
def test_amplitude_is_a_power_of_the_support(power):
    query, key, value = make_qkv()
    output = evidence_attention(query, key, value, power=power, return_weights=True)
    attention = evidence_attention(query, key, value, return_weights=True)
    amplitude = output.support ** (1 - 1 / power)
    torch.testing.assert_close(output.weights, amplitude[..., None] * attention.weights, rtol=1e-8, atol=1e-14)
    torch.testing.assert_close(output.context, amplitude[..., None] * attention.context, rtol=1e-8, atol=1e-14)
    if power > 1:
        assert (amplitude > 1).all() and (amplitude <= K ** (1 - 1 / power)).all()


def test_support_counts_keys_that_are_read_equally():
    query, key, value = make_qkv()
    mask = torch.arange(K) < 3
    for power in POWERS:
        output = evidence_attention(query, torch.zeros_like(key), value, mask=mask.expand(B, K), power=power)
        torch.testing.assert_close(output.support, torch.full_like(output.support, 3), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_support_is_smooth_through_power_one(dtype):
    qkv64 = make_qkv()
    steps = [0.0, 1e-12, 1e-6, 1e-3, 2.999e-3, 3.001e-3, 1e-2]
    for power in [1 - s for s in steps] + [1 + s for s in steps]:
        tensor = torch.tensor(power, dtype=dtype, requires_grad=True)
        support = evidence_attention(*(x.to(dtype) for x in qkv64), power=tensor).support
        attention = evidence_attention(*qkv64, return_weights=True).weights
        nearby = power if abs(power - 1) > 1e-5 else 1 + 1e-5  # the oracle's own quotient needs digits
        expected = (attention.pow(nearby).sum(-1).log() / (1 - nearby)).exp()
        torch.testing.assert_close(support.double(), expected, rtol=2e-4 if dtype == torch.float32 else 2e-5, atol=0)
        assert torch.autograd.grad(support.sum(), tensor)[0] < 0  # Renyi entropy falls with its order
    assert evidence_attention(*qkv64, power=torch.tensor(1.0)).support.equal(
        evidence_attention(*qkv64, power=1.0).support
    )


def test_effective_attention_is_mass_times_gated_softmax():
    query, key, value = make_qkv()
    gate = make(B, H, Q, K, seed=5).sigmoid()
    output = evidence_attention(query, key, value, gate=gate, return_weights=True)
    logits = query @ key.transpose(-1, -2) * D**-0.5
    expected = output.mass[..., None] * torch.softmax(logits + gate.log(), dim=-1)
    torch.testing.assert_close(output.weights * gate, expected, **EXACT)
    assert (output.mass < 0.95).all()


@pytest.mark.parametrize("return_support", [True, False])
def test_gate_gradient_of_appendix_a1(return_support):
    """dL/dpsi_j = (1 - lambda) sigma'(psi_j) <grad_h L, alpha_j v_j>, summed over the rows that share the gate."""
    query, key, value = make_qkv()
    leak, psi = 0.05, make(B, K, seed=5).requires_grad_()
    gate = leak + (1 - leak) * psi.sigmoid()
    context = evidence_attention(query, key, value, gate=gate, return_support=return_support).context
    context.retain_grad()
    context.pow(2).sum().backward()
    attention = torch.softmax(query @ key.transpose(-1, -2) * D**-0.5, dim=-1)
    inner = torch.einsum("bhqd,bhqk,bhkd->bk", context.grad, attention, value)
    slope = psi.detach().sigmoid() * (1 - psi.detach().sigmoid())
    torch.testing.assert_close(psi.grad, (1 - leak) * slope * inner, **EXACT)


@pytest.mark.parametrize("power", [1.0, 1.1, 3.0])
def test_backward_needs_only_the_output_and_one_normaliser(power):
    """dS = w * dP - w^p * D with D_i = dO_i . O_i: the identity on which fused backward passes rest."""
    query, key, value = (x.requires_grad_() for x in make_qkv())
    gate = make(B, H, Q, K, seed=5).sigmoid().requires_grad_()
    bias = make(B, H, Q, K, seed=6).requires_grad_()
    output = evidence_attention(query, key, value, gate=gate, log_precision=bias, power=power, return_weights=True)
    d_out, weights = make(B, H, Q, DV, seed=7), output.weights.detach()
    actual = torch.autograd.grad(output.context, (query, key, value, gate, bias), d_out)

    d_pairs = d_out @ value.transpose(-1, -2)
    delta = (d_out * output.context).sum(-1, keepdim=True)
    d_logits = weights * d_pairs * gate - weights**power * delta
    expected = (
        d_logits @ key * D**-0.5,
        d_logits.transpose(-1, -2) @ query * D**-0.5,
        (weights * gate).transpose(-1, -2) @ d_out,
        weights * d_pairs,
        d_logits,
    )
    assert_all_close(actual, expected, **EXACT)


@pytest.mark.parametrize("power", [0.7, 1.0005, 1.3, 3.0])
def test_gradcheck(power):
    inputs = (
        *make_qkv(heads=2, kv_heads=1, queries=2, keys=3, width=2, value_width=2),
        make(B, 2, 2, 3, seed=5).sigmoid(),
        make(B, 3, seed=6),
        torch.tensor(power, dtype=torch.float64),
    )
    inputs = tuple(x.requires_grad_() for x in inputs)
    mask = torch.tensor([[True, True, False], [False, False, False]])

    def call(query, key, value, gate, log_precision, power):
        return evidence_attention(
            query,
            key,
            value,
            mask=mask,
            gate=gate,
            log_precision=log_precision,
            precision_bound=1.0,
            power=power,
            return_weights=True,
        )

    # Around p = 1 the support is a series whose p-derivative is exact to first order only.
    outputs = slice(0, 2) if abs(power - 1) < 3e-3 else slice(0, 4)
    assert torch.autograd.gradcheck(lambda *x: call(*x)[outputs], inputs)


# ---------------------------------------------------------------------------------------------- masks and padding


@pytest.mark.parametrize("options", [{}, {"power": 1.3}, {"power": torch.tensor(1.3)}, {"return_support": False}])
@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest"])
def test_a_row_without_any_key_gives_zero(options, kind):
    inputs = [x.requires_grad_() for x in make_qkv()]
    gate, log_precision = (make(B, K, seed=s).sigmoid().requires_grad_() for s in (5, 6))
    keep = make_mask(B, 1, Q, K)
    keep[0, 0, 2] = False
    mask = keep if kind == "bool" else torch.zeros(keep.shape, dtype=torch.float64)
    if kind != "bool":
        mask = mask.masked_fill(~keep, -math.inf if kind == "-inf" else torch.finfo(torch.float64).min)
    output = evidence_attention(*inputs, mask=mask, gate=gate, log_precision=log_precision, **options)
    for x in output:
        if x is not None:
            assert x[0, :, 2].eq(0).all() and x[1].ne(0).all()
    grads = gradients(output, [*inputs, gate, log_precision])
    assert all(x.isfinite().all() for x in grads)
    assert grads[0][0, :, 2].eq(0).all()

    nothing = evidence_attention(*inputs, mask=torch.zeros_like(keep), gate=gate, **options)
    assert all(x.eq(0).all() for x in nothing if x is not None)
    assert all(x.eq(0).all() for x in gradients(nothing, [*inputs, gate]))


@pytest.mark.parametrize("options", [{}, {"power": 1.3}, {"return_weights": True}, {"return_support": False}])
@pytest.mark.parametrize("float_mask", [False, True])
@pytest.mark.parametrize("pairwise", [False, True])
def test_nan_where_nobody_may_read_reaches_nothing(options, float_mask, pairwise):
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 4:] = mask[1] = False
    if float_mask:
        mask = torch.zeros(B, K, dtype=torch.float64).masked_fill(~mask, -math.inf)
        hidden = mask == -math.inf
    else:
        hidden = ~mask
    shape = (B, H, Q, K) if pairwise else (B, 1, 1, K)

    def run(filler):
        query, key, value = make_qkv()
        gate, log_precision = make(*shape, seed=5).sigmoid(), make(*shape, seed=6)
        key[hidden[:, None].expand(B, H, K)] = filler
        value[hidden[:, None].expand(B, H, K)] = filler
        for x in (gate, log_precision):
            x[hidden[:, None, None].expand(shape)] = filler
        inputs = [x.requires_grad_() for x in (query, key, value, gate, log_precision)]
        output = evidence_attention(*inputs[:3], mask=mask, gate=gate, log_precision=log_precision, **options)
        return [x for x in output if x is not None], gradients(output, inputs)

    poisoned, clean = run(math.nan), run(0.0)
    assert_all_close(poisoned[0], clean[0], rtol=0, atol=0)
    assert_all_close(poisoned[1], clean[1], rtol=0, atol=0)
    assert all(x.isfinite().all() for x in poisoned[0] + list(poisoned[1]))


def test_nan_at_a_single_masked_pair_reaches_nothing():
    """Other queries still read the key and other keys are still read by the query: only this pair is off limits."""
    keep = make_mask(B, 1, Q, K)
    keep[0, 0, 1] = False

    def run(filler):
        query, key, value = make_qkv()
        query[0, :, 1] = filler  # the row without any key
        gate, log_precision = make(B, 1, Q, K, seed=5).sigmoid(), make(B, 1, Q, K, seed=6)
        gate[~keep] = log_precision[~keep] = filler
        inputs = [x.requires_grad_() for x in (query, key, value, gate, log_precision)]
        output = evidence_attention(*inputs[:3], mask=keep, gate=gate, log_precision=log_precision, power=1.3)
        return output[:3], gradients(output, inputs)

    for poisoned, clean in zip(run(math.nan), run(0.0), strict=True):
        assert_all_close(poisoned, clean, rtol=0, atol=0)


def test_all_ways_to_write_a_mask_agree():
    query, key, value = make_qkv()
    two = make_mask(B, K)
    outputs = [
        evidence_attention(query, key, value, mask=mask, power=1.3, return_weights=True)
        for mask in (
            two,
            two[:, None, None],
            two[:, None, None].expand(B, H, Q, K),
            torch.zeros(B, K).masked_fill(~two, -math.inf),
            torch.zeros(B, 1, 1, K).masked_fill(~two[:, None, None], torch.finfo(torch.float32).min),
            torch.zeros(B, K, dtype=torch.bfloat16).masked_fill(~two, torch.finfo(torch.bfloat16).min),
        )
    ]
    for output in outputs[1:]:
        assert_all_close(output, outputs[0], rtol=0, atol=0)
    assert outputs[0].weights.eq(0).any()
    for b in range(B):  # and leaving the keys out is the same
        left_out = evidence_attention(
            query[b : b + 1], key[b : b + 1, :, two[b]], value[b : b + 1, :, two[b]], power=1.3
        )
        assert_all_close([x[b : b + 1] for x in outputs[0][:3]], left_out[:3], **EXACT)


def test_finite_float_mask_is_a_differentiable_bias():
    query, key, value = make_qkv()
    bias = make(1, H, Q, K, seed=6).requires_grad_()
    for options in ({}, {"return_support": False}):
        context = evidence_attention(query, key, value, mask=bias, **options).context
        expected = definition(query, key, value, mask=bias)[0]
        torch.testing.assert_close(context, expected, **EXACT)
        assert_all_close(gradients([context], [bias]), gradients([expected], [bias]), **EXACT)


# ---------------------------------------------------------------------------------------------- grouped heads


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("gate_heads", [1, "kv", 8])
@pytest.mark.parametrize("options", [{}, {"power": 1.3}, {"return_support": False}])
def test_grouped_heads_equal_heads_repeated_by_hand(kv_heads, queries, gate_heads, options):
    inputs = [x.requires_grad_() for x in make_qkv(heads=8, kv_heads=kv_heads, queries=queries)]
    gate_heads = kv_heads if gate_heads == "kv" else gate_heads
    gate = make(B, gate_heads, 1, K, seed=5).sigmoid().requires_grad_()
    mask = make_mask(B, gate_heads, 1, K)
    inputs.append(gate)

    def repeat(x):
        return (
            x
            if x.shape[1] in (1, 8) and x.dim() == 4 and x is not inputs[1] and x is not inputs[2]
            else (x[:, :, None].expand(-1, -1, 8 // x.shape[1], -1, -1).reshape(B, 8, *x.shape[2:]))
        )

    output = evidence_attention(*inputs[:3], gate=gate, mask=mask, **options)
    by_hand = evidence_attention(
        inputs[0], repeat(inputs[1]), repeat(inputs[2]), gate=repeat(gate), mask=repeat(mask), **options
    )
    assert_all_close(output[:2], by_hand[:2], **EXACT)
    assert_all_close(gradients(output, inputs), gradients(by_hand, inputs), **EXACT)
    if gate_heads == 1 and not options:
        torch.testing.assert_close(
            output.context,
            F.scaled_dot_product_attention(
                inputs[0], inputs[1], gate.transpose(-1, -2) * inputs[2], mask, enable_gqa=True
            ),
            **EXACT,
        )


# ---------------------------------------------------------------------------------------------- the SDPA shortcut


@pytest.fixture
def sdpa_calls(monkeypatch):
    calls = []
    original = F.scaled_dot_product_attention

    def spy(*args, **kwargs):
        calls.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize("gate_shape", [None, (B, K), (B, 1, 1, K), (B, H, 1, K), (1, H, 1, K)])
@pytest.mark.parametrize("mask_kind", [None, "keys", "pairs", "float"])
@pytest.mark.parametrize("with_precision", [False, True])
@pytest.mark.parametrize("value_width", [DV, D, 3 * D])
def test_shortcut_equals_reference_with_gradients(sdpa_calls, gate_shape, mask_kind, with_precision, value_width):
    inputs = [x.requires_grad_() for x in make_qkv(value_width=value_width)]
    gate = None if gate_shape is None else make(*gate_shape, seed=5).sigmoid().requires_grad_()
    log_precision = make(B, K, seed=6).requires_grad_() if with_precision else None
    inputs += [x for x in (gate, log_precision) if x is not None]
    mask = {
        None: None,
        "keys": make_mask(B, K),
        "pairs": make_mask(B, 1, Q, K),
        "float": make(1, H, Q, K, seed=7).masked_fill(~make_mask(1, H, Q, K), -math.inf),
    }[mask_kind]
    common = {"mask": mask, "gate": gate, "log_precision": log_precision, "return_support": False}
    fast = evidence_attention(*inputs[:3], **common)
    assert len(sdpa_calls) == 1
    slow = evidence_attention(*inputs[:3], **common, backend="reference")
    assert len(sdpa_calls) == 1
    assert fast.support is slow.support is fast.weights is slow.weights is None
    assert_all_close(fast[:2], slow[:2], **EXACT)
    assert_all_close(gradients(fast, inputs), gradients(slow, inputs), **EXACT)


@pytest.mark.parametrize("float_mask", [False, True])
def test_shortcut_never_hands_over_a_row_without_any_key(sdpa_calls, float_mask):
    """What a kernel makes of such a row, 0 or NaN, differs between devices and releases."""
    mask = make_mask(B, 1, Q, K)
    mask[0, 0, 2] = False
    if float_mask:
        mask = torch.zeros(B, 1, Q, K).masked_fill(~mask, -math.inf)
    log_precision = make(B, K, seed=6)
    for options in ({}, {"log_precision": log_precision}, {"gate": log_precision.sigmoid()}):
        evidence_attention(*make_qkv(), mask=mask, return_support=False, **options)
        given = sdpa_calls.pop()["attn_mask"]
        assert (given if given.dtype == torch.bool else given > -math.inf).any(-1).all()


@pytest.mark.parametrize(
    "options",
    [
        {"return_support": True},
        {"return_weights": True},
        {"power": 1.1},
        {"power": torch.tensor(1.0)},
        {"gate": torch.ones(B, 1, Q, K)},
        {"backend": "reference"},
    ],
)
def test_shortcut_is_not_taken_where_it_is_not_exact(sdpa_calls, options):
    output = evidence_attention(*make_qkv(), **{"return_support": False, **options})
    assert not sdpa_calls
    assert (output.support is None) != options.get("return_support", False)
    assert (output.weights is None) != options.get("return_weights", False)


# ---------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("power", [0.1, 1.0, 1.02, 1.3, 3.0, 8.0, 64.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_stay_finite(power, sign, dtype):
    query, key, value = make_qkv(dtype=dtype)
    key[:, :, 0] = sign * 1e4 * query[:, :, :1].mean(2) / query[:, :, :1].mean(2).square().sum(-1, keepdim=True)
    log_precision = torch.full((B, K), 1e4 * sign, dtype=dtype)
    log_precision[:, 3] = -1e4 * sign
    inputs = [x.requires_grad_() for x in (query, key, value, log_precision, torch.tensor(power, dtype=dtype))]
    output = evidence_attention(
        *inputs[:3], scale=1.0, log_precision=log_precision, power=inputs[4], return_weights=True
    )
    assert all(x.isfinite().all() for x in output)
    torch.testing.assert_close(output.mass, torch.ones_like(output.mass), rtol=1e-5, atol=0)
    assert (output.support >= 1 - 1e-5).all() and (output.support <= K * (1 + 1e-5)).all()
    assert all(x.isfinite().all() for x in gradients(output, inputs))
    # A common constant of 1e4 costs only the digits of the sum itself.
    moved = evidence_attention(*make_qkv(dtype=dtype), mask=torch.full((B, K), 1e4 * sign), power=power)
    still = evidence_attention(*make_qkv(dtype=dtype), power=power)
    assert_all_close(moved[:3], still[:3], rtol=2e-2 if dtype == torch.float32 else 1e-9, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"power": 1.3}, {"power": 3.0}, {"return_support": False}])
def test_half_precision(dtype, options):
    """At most twice the error of eager attention in that dtype; the reference path: rounded once, at the end."""
    query, key, value = (x.to(dtype) for x in make_qkv(queries=63, keys=65, width=32, value_width=32))
    gate, log_precision = make(B, 65, seed=5).sigmoid(), make(B, 65, seed=6)
    power = options.get("power", 1.0)
    output = evidence_attention(query, key, value, gate=gate, log_precision=log_precision, **options)
    exact = definition(
        *(x.double() for x in (query, key, value)),
        gate=gate[:, None, None],
        log_precision=log_precision[:, None, None],
        power=power,
    )
    logits = query @ key.transpose(-1, -2) * 32**-0.5 + log_precision[:, None, None].to(dtype)
    amplitude = (torch.logsumexp(logits, -1) - torch.logsumexp(power * logits, -1) / power).exp()[..., None]
    effective = torch.softmax(logits, -1) * gate[:, None, None].to(dtype)
    eager = (amplitude * effective) @ value, effective.sum(-1)

    assert output.context.dtype == dtype and output.mass.dtype == torch.float32
    for ours, theirs, truth in zip(output[:2], eager, exact, strict=False):
        assert (ours.double() - truth).abs().max() <= 2 * (theirs.double() - truth).abs().max()
    if options.get("return_support", True):
        half_step = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(output.context.double(), exact[0], rtol=1.01 * half_step, atol=1e-5)
        torch.testing.assert_close(output.mass.double(), exact[1], rtol=1e-5, atol=0)
        torch.testing.assert_close(output.support.double(), exact[2], rtol=1e-4, atol=0)


def test_float16_survives_a_float32_mask_of_minus_1e9():
    query, key, value = make_qkv(dtype=torch.float16)
    mask = torch.zeros(B, 1, Q, K)
    mask[0, 0, 2] = -1e9
    for options in ({}, {"return_support": False}):
        output = evidence_attention(query, key, value, mask=mask, gate=torch.ones(B, K), **options)
        assert output.context.isfinite().all()
        torch.testing.assert_close(output.mass, torch.ones(B, H, Q), rtol=0, atol=2e-3)


@pytest.mark.parametrize("return_support", [True, False])
def test_autocast_does_not_lower_the_precision(return_support):
    qkv = make_qkv(dtype=torch.float32)
    outside = evidence_attention(*qkv, gate=torch.ones(B, K), return_support=return_support)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = evidence_attention(*qkv, gate=torch.ones(B, K), return_support=return_support)
    assert inside.context.dtype == torch.float32
    assert_all_close(inside[:2], outside[:2], rtol=0, atol=0)


def test_gate_of_zero_and_one_are_exact():
    query, key, value = make_qkv(dtype=torch.float32)
    mixed = torch.ones(B, K)
    mixed[:, 2] = 0
    for options in ({}, {"power": 1.3}, {"return_support": False}):
        closed = evidence_attention(query, key, value, gate=torch.zeros(B, K), **options)
        assert closed.context.eq(0).all() and closed.mass.eq(0).all()
        without_term = value.clone()
        without_term[:, :, 2] = 0
        revoked = evidence_attention(query, key, value, gate=mixed, **options).context
        expected = evidence_attention(query, key, without_term, **options).context
        torch.testing.assert_close(revoked, expected, rtol=1e-6, atol=1e-7)


def test_slices_of_a_nan_buffer():
    def embed(x):
        buffer = torch.full([size + 2 for size in x.shape], math.nan, dtype=x.dtype)
        window = buffer[tuple(slice(1, size + 1) for size in x.shape)]
        window.copy_(x)
        return window

    tensors = [*make_qkv(), make(B, 1, Q, K, seed=5).sigmoid(), make(B, K, seed=6)]
    for options in ({"power": 1.3}, {"return_support": False}):
        plain = evidence_attention(*tensors[:3], gate=tensors[3], log_precision=tensors[4], **options)
        views = [embed(x) for x in tensors]
        strided = evidence_attention(*views[:3], gate=views[3], log_precision=views[4], **options)
        assert_all_close(strided[:2], plain[:2], **EXACT)


# ---------------------------------------------------------------------------------------------- compile and export


@pytest.mark.parametrize(
    ("options", "dynamic"),
    [
        ({}, False),
        pytest.param({}, True, marks=pytest.mark.slow),
        ({"power": 1.3, "return_weights": True}, False),
        ({"power": torch.tensor(1.1)}, False),
        ({"return_support": False}, True),
        ({"log_precision": make(B, K, seed=6, dtype=torch.float32), "precision_bound": 1.0}, False),
    ],
)
def test_compiles_without_graph_breaks(options, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(evidence_attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    inputs = [x.requires_grad_() for x in make_qkv(kv_heads=2, dtype=torch.float32)]
    common = {"mask": make_mask(B, K), "gate": make(B, K, seed=5, dtype=torch.float32).sigmoid(), **options}
    ours, eager = compiled(*inputs, **common), evidence_attention(*inputs, **common)
    assert_all_close([x for x in ours if x is not None], [x for x in eager if x is not None], rtol=1e-5, atol=1e-6)
    assert_all_close(gradients(ours, inputs), gradients(eager, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"power": 1.3}, {"return_support": False}])
def test_exports(options):
    class Module(torch.nn.Module):
        def forward(self, query, key, value, mask, gate):
            return evidence_attention(query, key, value, mask=mask, gate=gate, **options)

    args = (*make_qkv(dtype=torch.float32), make_mask(B, K), torch.rand(B, K))
    program = torch.export.export(Module(), args)
    assert_all_close(program.module()(*args)[:2], Module()(*args)[:2], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- messages


def change(**changes):
    names = dict(zip(("query", "key", "value"), make_qkv(dtype=torch.float32), strict=True))
    return {**names, **changes}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (change(query=[1.0]), TypeError, "query is a list; pass a torch.Tensor."),
        (change(key=torch.rand(B, K, D)), ValueError, "key has shape [2, 7, 8]; give it four axes"),
        (change(query=torch.ones(B, H, Q, D, dtype=torch.long)), TypeError, "query has dtype torch.int64; cast it"),
        (
            change(value=torch.rand(B, H, K, DV).half()),
            TypeError,
            "value has dtype torch.float16 but query has torch.float32",
        ),
        (change(key=torch.rand(B, H, K, D, device="meta")), ValueError, "key is on meta but query is on cpu; move"),
        (
            change(value=torch.rand(3, H, K, DV)),
            ValueError,
            "value has batch size 3 but query has 2; make them equal.",
        ),
        (change(value=torch.rand(B, H, 9, DV)), ValueError, "key has shape [2, 4, 7, 8] but value has [2, 4, 9, 6]"),
        (change(value=torch.rand(B, 2, K, DV)), ValueError, "key has shape [2, 4, 7, 8] but value has [2, 2, 7, 6]"),
        (change(query=torch.rand(B, H, Q, 9)), ValueError, "key has width 8 but query has 9; project"),
        (change(key=torch.rand(B, H, 0, D), value=torch.rand(B, H, 0, DV)), ValueError, "pass at least one key"),
        (
            change(query=torch.rand(B, 6, Q, D)),
            ValueError,
            "query has 6 heads and key has 4; key heads must divide query heads.",
        ),
        (change(scale="1"), TypeError, "scale is a str; pass a number."),
        (change(scale=math.nan), ValueError, "scale is nan; pass a finite number."),
        (change(mask=[True]), TypeError, "mask is a list; pass a torch.Tensor or None."),
        (
            change(mask=torch.ones(B, K, dtype=torch.long)),
            TypeError,
            "mask has dtype torch.int64; make it bool (True =",
        ),
        (change(mask=torch.ones(B, 1, 1, K, device="meta")), ValueError, "mask is on meta but query is on cpu; move"),
        (
            change(mask=torch.ones(Q, K)),
            ValueError,
            "mask has shape [5, 7]; expected [B, K] = [2, 7] or [B, heads, Q, K] = [2, 1 | 4, 1 | 5, 7]; "
            "write a [Q, K] mask as mask[None, None].",
        ),
        (change(mask=torch.ones(B, Q, K)), ValueError, "mask has shape [2, 5, 7]; expected [B, K] = [2, 7] or"),
        (change(gate=torch.ones(B, K, dtype=torch.bool)), TypeError, "gate has dtype torch.bool; make it floating"),
        (change(gate=torch.ones(B, 3, Q, K)), ValueError, "gate has shape [2, 3, 5, 7]; expected"),
        (change(gate=torch.ones(B, H, 4, K)), ValueError, "gate has shape [2, 4, 4, 7]; expected"),
        (change(gate=torch.ones(B, H, Q, 1)), ValueError, "gate has shape [2, 4, 5, 1]; expected"),
        (change(gate=torch.ones(3, H, Q, K)), ValueError, "gate has shape [3, 4, 5, 7]; expected"),
        (
            change(
                query=torch.rand(B, 8, Q, D),
                key=torch.rand(B, 2, K, D),
                value=torch.rand(B, 2, K, D),
                gate=torch.ones(B, 4, 1, K),
            ),
            ValueError,
            "gate has shape [2, 4, 1, 7]; expected [B, K] = [2, 7] or [B, heads, Q, K] = [2, 1 | 2 | 8, 1 | 5, 7].",
        ),
        (change(log_precision=torch.ones(B, 6)), ValueError, "log_precision has shape [2, 6]; expected"),
        (
            change(log_precision=torch.ones(B, K).int()),
            TypeError,
            "log_precision has dtype torch.int32; make it floating",
        ),
        (change(precision_bound=0), ValueError, "precision_bound is 0; pass a finite number above 0."),
        (change(precision_bound=math.inf), ValueError, "precision_bound is inf; pass a finite number above 0."),
        (change(precision_bound=True), TypeError, "precision_bound is a bool; pass a number."),
        (change(power=0.0), ValueError, "power is 0.0; pass a finite number above 0."),
        (change(power=-1), ValueError, "power is -1; pass a finite number above 0."),
        (change(power=math.nan), ValueError, "power is nan; pass a finite number above 0."),
        (change(power=torch.ones(H)), ValueError, "power has shape [4]; pass a number or a 0-dim tensor."),
        (change(power=torch.tensor(2)), TypeError, "power has dtype torch.int64; cast it to a floating dtype."),
        (change(power=torch.tensor(2.0, device="meta")), ValueError, "power is on meta but query is on cpu; move"),
        (
            change(backend="cuda"),
            ValueError,
            "backend is 'cuda'; choose one of 'auto', 'reference', 'blockwise', 'cpp', 'triton'.",
        ),
    ],
)
def test_messages_name_argument_value_and_remedy(arguments, error, message):
    with pytest.raises(error) as info:
        evidence_attention(**arguments)
    assert message in str(info.value)
    assert str(info.value).endswith(".")
