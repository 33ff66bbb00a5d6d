"""The controls of the permission: what each may do, what it may not, and that they start from the same place."""

import pytest
import torch

from warrant_hf import WarrantEncoderConfig, WarrantFiDConfig, WarrantLEDConfig
from warrant_hf.modeling import PERMISSION_VARIANTS, EvidenceReadout
from warrant_hf.modeling.marker_readout import MarkerReadout

WIDTH = 24
ITEMS = torch.tensor([[0, 1, 1, 2, 3], [0, 1, 2, -1, -1]])
SEGMENTS = torch.stack(
    [
        torch.cat([torch.zeros(4), torch.arange(1, 6).repeat_interleave(5)]),
        torch.cat([torch.zeros(3), torch.arange(1, 4).repeat_interleave(6), torch.full((8,), -1)]),
    ]
).long()
MASK = torch.tensor([[True] * 4, [True, True, True, False]])
LABELS = torch.tensor([[1, 0, 1, 0], [0, 1, 0, -100]])
NAN = float("nan")
SETTINGS = {"readout_size": 16, "readout_heads": 2, "gate_size": 8, "readout_dropout": 0.0}
MARKER = [name for name, variant in PERMISSION_VARIANTS.items() if variant.acts == "tokens"]
SHARED = [name for name in PERMISSION_VARIANTS if name not in MARKER]


def readout(variant, stirred=True, **config):
    torch.manual_seed(0)
    kind = MarkerReadout if variant in MARKER else EvidenceReadout
    made = kind(WarrantEncoderConfig(variant=variant, **SETTINGS, **config), WIDTH)
    if stirred:
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    else:
        made.gate.reset_score()
    return made.eval()


@pytest.fixture
def states():
    return torch.randn(2, SEGMENTS.shape[1], WIDTH, generator=torch.Generator().manual_seed(1))


def call(made, states, **options):
    return made(states, SEGMENTS, ITEMS, MASK, **options)


def override(**places):
    given = torch.full((2, 4), NAN)
    for place, value in places.items():
        given[0, int(place[1:])] = value
    return given


@pytest.mark.parametrize("variant", SHARED)
def test_controls_have_the_parameters_of_pair_and_start_where_it_starts(variant, states):
    made, pair = readout(variant, stirred=False), readout("pair", stirred=False)
    assert {n: p.shape for n, p in made.named_parameters()} == {n: p.shape for n, p in pair.named_parameters()}
    for (name, one), (_, other) in zip(made.named_parameters(), pair.named_parameters()):
        torch.testing.assert_close(one, other, msg=name)
    gate = PERMISSION_VARIANTS[variant].gate
    if gate in ("pair", "query", "item", "shuffled"):
        permission = call(made, states).permission
        torch.testing.assert_close(permission[MASK], torch.full_like(permission[MASK], 0.95))


@pytest.mark.parametrize("variant", PERMISSION_VARIANTS)
@pytest.mark.parametrize("loss", ["bce", "listwise"])
def test_every_trainable_parameter_is_reached(variant, loss, states):
    supervision = 0.02 if variant == "attention_readout" else 0.0  # nothing else moves its gates
    made = readout(variant, evidence_loss=loss, permission_supervision=supervision).train()
    call(made, states, labels=LABELS).loss.backward()
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            # The softmax forgets what it adds to all logits alike; listwise losses forget a bias on top.
            expected = {"query.weight", "query.bias", "gate.score.bias", "beta", "bias", "mass_scale", "mass_bias"}
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0 or name in expected, name
        else:
            assert name.startswith(("gate.", "pair.")) and parameter.grad is None, name


@pytest.mark.parametrize("variant", PERMISSION_VARIANTS)
def test_padding_and_rows_do_not_touch_each_other(variant, states):
    made = readout(variant)
    together = call(made, states)
    alone = made(states[1:, :21], SEGMENTS[1:, :21], ITEMS[1:, :3], MASK[1:, :3])
    torch.testing.assert_close(together.logits[1, :3], alone.logits[0])
    torch.testing.assert_close(together.answerability_logits[1:], alone.answerability_logits)
    if variant != "base":
        torch.testing.assert_close(together.permission[1, :3], alone.permission[0])


def test_query_gates_are_one_per_question_and_item_gates_ignore_it(states):
    permission = call(readout("query"), states).permission
    torch.testing.assert_close(permission[0], permission[0, :1].expand(4))
    assert not torch.isclose(permission[0, 0], permission[1, 0])
    made = readout("item")
    pooled = made.pool(states, SEGMENTS, 5)
    pooled.query = pooled.query + torch.randn(pooled.query.shape)
    torch.testing.assert_close(made.permission(pooled, ITEMS, MASK), made.gate(pooled.query, pooled.key))
    torch.testing.assert_close(made.gate(pooled.query, pooled.key), made.gate(-pooled.query, pooled.key))


def test_shuffled_gates_are_those_of_the_item_before(states):
    made, pair = readout("shuffled"), readout("pair")
    pooled = pair.pool(states, SEGMENTS, 5)
    right, moved = pair.permission(pooled, ITEMS, MASK), made.permission(pooled, ITEMS, MASK)
    torch.testing.assert_close(moved[0], right[0].roll(1))
    torch.testing.assert_close(moved[1, :3], right[1, :3].roll(1))


def test_normalized_mass_sums_to_one_and_keeps_the_ratios(states):
    made, pair = call(readout("normalized"), states), call(readout("pair"), states)
    torch.testing.assert_close(made.mass, torch.ones(2))
    torch.testing.assert_close(made.effective, pair.effective / pair.mass.unsqueeze(-1))
    torch.testing.assert_close(made.permission, pair.permission)


def test_adapter_is_attention_with_psi_in_its_logits(states):
    made, opened = readout("attention_adapter"), readout("open")
    pooled = opened.pool(states, SEGMENTS, 5)
    psi = opened.gate.logit(pooled.query, pooled.key)
    query, key = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (pooled.query, pooled.key))
    logits = (query * key).sum(-1) / 8**0.5 + psi.unsqueeze(1)
    weights = logits.masked_fill(ITEMS[:, None] < 0, float("-inf")).softmax(-1).mean(1)
    expected = torch.zeros(2, 4).scatter_add_(1, ITEMS.clamp(min=0), weights)
    output = call(made, states)
    torch.testing.assert_close(output.attention, expected)
    torch.testing.assert_close(output.mass, torch.ones(2))


def test_attention_readout_reports_gates_that_do_not_act(states):
    made, opened = call(readout("attention_readout"), states), call(readout("open"), states)
    torch.testing.assert_close(made.logits, opened.logits)
    torch.testing.assert_close(made.permission, call(readout("pair"), states).permission)
    closed = call(readout("attention_readout"), states, permission_override=override(p1=0.0))
    assert closed.effective[0, 1] == 0 and closed.effective[0, 2] == made.effective[0, 2]


@pytest.mark.parametrize("variant", ["param_mlp", "post_attention_glu", "g1", "g2"])
def test_controls_without_a_gate_change_the_items(variant, states):
    made, opened = call(readout(variant), states), call(readout("open"), states)
    torch.testing.assert_close(made.permission[MASK], torch.ones(7))
    torch.testing.assert_close(made.mass, torch.ones(2))
    assert (made.attention - opened.attention).abs().max() > 1e-4
    key = readout("open").pool(states, SEGMENTS, 5).key
    changed = readout(variant).pool(states, SEGMENTS, 5).key
    assert ((changed - key).abs().amax(-1) > 1e-4)[ITEMS >= 0].all()


def test_g2_gates_each_value_by_its_own_token(states):
    """By the definition: the first half of the key projection is the value of a token."""
    made, opened = readout("g2"), readout("open")
    share = opened.pool(states, SEGMENTS, 5).token_share
    value = states @ made.key.weight[:, :WIDTH].T
    seen = torch.nn.functional.gelu(made.gate.query(value)) @ made.gate.key.weight
    value = value * torch.sigmoid(seen + made.gate.score.bias)
    item = SEGMENTS[0] == 2
    pooled = (share[0, item, None] * value[0, item]).sum(0)
    last = states[0, item][-1]
    expected = pooled + made.key.weight[:, WIDTH:] @ last + made.key.bias
    torch.testing.assert_close(made.pool(states, SEGMENTS, 5).key[0, 1], expected)


def test_marker_reads_its_own_gated_tokens(states):
    """By the definition, token by token."""
    made = readout("marker_path")
    output = call(made, states)
    own, question = SEGMENTS[0] == 4, SEGMENTS[0] == 0
    x, marker, first = states[0], states[0, own][-1], states[0, 0]
    u = made.pair(torch.cat([first, marker, first * marker]))
    gate = made.gate(u, x[own])
    seen = own | question
    logits = (made.query(marker).view(2, 1, 8) * made.key(x[seen]).view(-1, 2, 8).transpose(0, 1)).sum(-1) / 8**0.5
    alpha = logits.softmax(-1)
    g = torch.ones(len(x)).masked_scatter(own, gate)[seen]
    context = torch.einsum("ht,t,thd->hd", alpha, g, made.value(x[seen]).view(-1, 2, 8)).flatten()
    m = made.marker(marker)
    expected = made.beta * made.score(m + made.fuse(torch.cat([m, context, m * context]))) + made.bias
    torch.testing.assert_close(output.logits[0, 2], expected[0])
    inside = alpha[:, own[seen]].mean(0)
    torch.testing.assert_close(output.attention[0, 2], inside.sum())
    torch.testing.assert_close(output.effective[0, 2], (inside * gate).sum())


def test_marker_open_is_marker_path_with_open_gates(states):
    opened = call(readout("marker_path"), states, permission_override=torch.ones(2, 4))
    torch.testing.assert_close(call(readout("marker_open"), states).logits, opened.logits)


def test_closing_a_marker_does_not_close_its_score(states):
    made = readout("marker_path")
    closed = call(made, states, permission_override=override(p1=0.0))
    assert closed.effective[0, 1] == 0 and closed.permission[0, 1] == 0
    assert closed.logits[0, 1] > made.lowest_logit() + 10


@pytest.mark.parametrize(
    "config, variants, expected",
    [
        (WarrantFiDConfig, ["normalized", "g1", "marker_path", "attention_adapter"], "choose one of"),
        (WarrantLEDConfig, ["marker_path", "marker_open"], "choose one of"),
    ],
)
def test_readers_refuse_what_would_make_no_difference(config, variants, expected):
    for variant in variants:
        with pytest.raises(ValueError, match=f"variant is '{variant}'; {expected}"):
            config(variant=variant)


def test_a_marker_has_no_place_for_a_precision():
    with pytest.raises(ValueError, match="'marker_path' has no place"):
        WarrantEncoderConfig(variant="marker_path", precision_features=["age"])
