"""Permission and precision attached to stock models: what they compute, and that they are trained, kept and found."""

import copy
import itertools
import json

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from tests.modeling.attention_models import FAMILIES, SEQ2SEQ, batch_of, build, states
from warrant_hf import (
    ATTENTION_CONTROLS,
    AttentionPermission,
    WarrantEncoderForEvidenceSelection,
    attach_from_config,
    attach_permission,
    attach_precision,
    detach,
    load_attached,
    set_maa_power,
)
from warrant_hf.modeling.attention_interface import attend

B, H, HKV, Q, K, D = 2, 4, 2, 5, 7, 6
ITEMS = torch.tensor([[-1, 0, 0, 1, 1, 2, -1], [0, 0, 0, 0, 1, -1, -1]])
WITH_ITEMS = ("pair", "open", "normalized", "item")


def close(found, expected, tolerance=2e-6):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def randomize(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return module


def qkv(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, Q, D), (B, HKV, K, D), (B, HKV, K, D))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def softmax_parts(query, key, value, keep):
    key, value = key.repeat_interleave(H // HKV, 1), value.repeat_interleave(H // HKV, 1)
    logits = query @ key.transpose(-1, -2) * D**-0.5
    return logits.masked_fill(~keep, -torch.inf).softmax(-1), key, value


KEEP = torch.ones(B, 1, 1, K, dtype=torch.bool)
KEEP[0, ..., 6:] = False
SETTINGS = [
    {"control": control, **extra}
    for control, extra in itertools.chain(
        ((c, {"per_head": p}) for c in ATTENTION_CONTROLS for p in (False, True)),
        ((c, {"granularity": "item"}) for c in WITH_ITEMS),
        ((c, {"gate": "low_rank"}) for c in ("pair", "normalized")),
        (("pair", {"gate": "low_rank", "granularity": "item", "per_head": True}), ("adapter", {"gate": "low_rank"})),
    )
]


def describe(settings):
    return "-".join(f"{value}" for value in settings.values())


# What a permission computes -----------------------------------------------------------------------------------------


def oracle(permission, query, key, value):
    """The papers' formulas, one (row, head, query, key) at a time."""
    p, alpha, _, values = permission, *softmax_parts(query, key, value, KEEP)
    leak, stretch = p.leak, p.stretch
    context, gates = torch.zeros(B, H, Q, D, dtype=query.dtype), torch.ones(B, H, Q, K, dtype=query.dtype)
    bias = torch.zeros_like(gates)

    def squash(psi):
        return (leak + (1 - leak) * torch.sigmoid(psi)) * stretch

    def states_of(x, b, h, i):
        return x[b, h, i] if p.per_head else x[b, :, i].reshape(-1)

    for b, h, i in itertools.product(range(B), range(H), range(Q)):
        group, readable = h // (H // HKV), KEEP[b, 0, 0]
        q = states_of(query, b, h, i)
        for j in range(K):
            k = states_of(key, b, group, j)
            if p.granularity == "item":
                same = ITEMS[b] == ITEMS[b, j]
                k = torch.stack([states_of(key, b, group, t) for t in range(K) if same[t]]).mean(0)
            if p.acts_on not in ("term", "logits") or (p.granularity == "item" and ITEMS[b, j] < 0):
                continue
            if p.gate == "low_rank":
                psi = p.of_query(q) @ p.of_key(k)
            else:
                hidden = p.of_key(k) if p.of_query is None else p.of_query(q) + p.of_key(k)
                psi = nn.functional.gelu(hidden) @ p.score
            if p.acts_on == "logits":
                bias[b, h, i, j] = psi
            else:
                gates[b, h, i, j] = squash(psi + p.offset[0])
        terms = alpha[b, h, i] * gates[b, h, i]
        if p.acts_on == "logits":
            terms = (alpha[b, h, i].log() + bias[b, h, i]).softmax(-1)
        v = values[b, h]
        if p.acts_on == "value":
            tokens = torch.stack([value[b, :, j].reshape(-1) for j in range(K)])
            v = v * squash(p.of_channel(tokens)).unflatten(-1, (HKV, D))[:, group]
        out = terms @ v
        if p.is_normalized:
            out = out / terms.sum()
        if p.acts_on == "query":
            out = out * squash(nn.functional.gelu(p.of_query(q)) @ p.score + p.offset[0])
        elif p.acts_on == "output":
            out = out * squash(p.of_channel(query[b, :, i].reshape(-1))).unflatten(-1, (H, D))[h]
        elif p.acts_on == "count":
            out = out * (1 + p.factor[h, 0] * readable.sum().log())
        elif p.acts_on == "sum":
            out = out + p.factor[h, 0] * v[readable].sum(0)
        context[b, h, i] = out
    return context


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_each_control_is_its_formula(settings):
    query, key, value = qkv()
    permission = randomize(AttentionPermission(H, HKV, D, hidden_size=5, **settings).double())
    options = {"mask": KEEP, "is_causal": False, "scale": None, "items": ITEMS}
    with torch.no_grad():
        context, _ = attend(query, key, value, permission=permission, **options)
        expected = oracle(permission, query, key, value)
    close(context, expected, 1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_autocast_leaves_gates_in_float32(settings):
    query, key, value = (states.bfloat16() for states in qkv())
    permission = randomize(AttentionPermission(H, HKV, D, hidden_size=5, **settings))
    options = {"mask": KEEP, "is_causal": False, "scale": None, "permission": permission, "items": ITEMS}
    record, exact = {"permissions": [], "masses": []}, {"permissions": []}
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            context, _ = attend(query, key, value, record=record, **options)
        expected, _ = attend(query.float(), key.float(), value.float(), record=exact, **options)
    assert context.dtype == torch.bfloat16
    close(context.float(), expected, 0.1)
    (gates,), (mass,), (clean,) = *record.values(), exact["permissions"]
    assert mass.dtype == torch.float32
    if permission.acts_on != "nothing":
        assert gates.dtype == torch.float32 and not torch.equal(gates, gates.bfloat16().float())
        close(gates, clean, 0.05)


@pytest.mark.parametrize("start", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_every_gate_starts_at_start_and_can_move(settings, start):
    query, key, value = qkv(torch.float32)
    permission = AttentionPermission(H, HKV, D, start=start, **settings)
    options = {"mask": KEEP, "is_causal": False, "scale": None, "items": ITEMS}
    record = {"permissions": [], "masses": []}
    context, weights = attend(query, key, value, permission=permission, record=record, need_weights=True, **options)
    (gates,), (mass,) = record.values()
    plain, _ = attend(query, key, value, **options)
    acts = permission.acts_on
    if start == 1 or acts in ("count", "sum", "nothing", "logits"):
        close(context, plain, 1e-6)
    elif permission.granularity == "token":
        close(context, plain if permission.is_normalized else start * plain, 1e-6)
    if acts == "term":
        where = KEEP.expand(gates.shape) & ((ITEMS >= 0)[:, None, None] | (permission.granularity == "token"))
        close(gates[where], torch.full_like(gates[where], start), 1e-6)
        assert (gates[~KEEP.expand(gates.shape)] == 0).all()
        close(mass, torch.ones(B, H, Q) if permission.is_normalized else (weights * gates).sum(-1), 1e-6)
    elif acts == "query":
        close(mass, torch.full((B, H, Q), start), 1e-6)
    if settings["control"] == "open":
        assert not any(parameter.requires_grad for parameter in permission.parameters())
        return
    optimizer = torch.optim.SGD(permission.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in permission.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        context, _ = attend(query, key, value, permission=permission, **options)
        (context * context.detach().sign().roll(1, 2)).mean().backward()
        optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(permission.parameters(), before, strict=True))


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_padding_reaches_no_output(settings):
    query, key, value = qkv()
    permission = randomize(AttentionPermission(H, HKV, D, hidden_size=5, **settings).double())
    options = {"mask": KEEP, "is_causal": False, "scale": None, "permission": permission, "items": ITEMS}
    with torch.no_grad():
        expected, _ = attend(query, key, value, **options)
        key[0, :, 6:], value[0, :, 6:] = torch.nan, torch.nan
        record = {"permissions": []}
        found, _ = attend(query, key, value, record=record, **options)
    close(found, expected, 1e-12)
    if permission.acts_on == "term":
        assert torch.isfinite(record["permissions"][0]).all()


def test_a_closed_item_gives_nothing():
    query, key, value = qkv()
    permission = AttentionPermission(H, HKV, D, granularity="item", leak=0.0).double()
    nn.init.constant_(permission.offset, -200.0)
    options = {"mask": None, "is_causal": False, "scale": None, "permission": permission}
    context, _ = attend(query, key, value, items=ITEMS, **options)
    without = value * (ITEMS < 0)[:, None, :, None]
    close(context, attend(query, key, without, mask=None, is_causal=False, scale=None)[0], 1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control": "full"}, "control is 'full'; choose one of 'pair', 'open'"),
        ({"gate": "mlp"}, "gate is 'mlp'; choose one of 'pairwise', 'low_rank'"),
        ({"granularity": "passage"}, "granularity is 'passage'; choose one of 'token', 'item'"),
        ({"gate": "low_rank", "control": "query"}, "control 'query' reads no pairs"),
        ({"granularity": "item", "control": "g1"}, "control 'g1' has no gate per key"),
        ({"start": 1.1}, "leak is 0.05 and start is 1.1"),
        ({"start": 0.05}, "they need 0 <= leak < start <= 1"),
        ({"start": "high"}, "start is 'high'; give a number"),
        ({"hidden_size": 0}, "hidden_size is 0; give a whole number"),
        ({"max_items": 2.5}, "max_items is 2.5"),
        ({"layers": [2]}, "layers has 2; give layer numbers from -2 to 1"),
        ({"layers": -1}, r"layers is -1; give a list of layer numbers"),
        ({"layers": []}, r"layers is \[\]"),
        ({"layers": [0, 1, -1]}, r"layers is \[0, 1, -1\], which names layer 1 twice; name each layer once"),
        ({"where": "cross"}, "where is 'cross', but BertModel has only attention of: encoder"),
        ({"where": "top"}, "where is 'top'; choose one of 'encoder', 'decoder', 'cross'"),
    ],
)
def test_bad_settings_leave_the_model_as_it_was(settings, message):
    model = build("bert", "sdpa")
    with pytest.raises(ValueError, match=message):
        attach_permission(model, **settings)
    assert not any("permission" in name for name, _ in model.named_parameters())
    assert not hasattr(model.config, "warrant_attention") and model.config._attn_implementation == "sdpa"


# In models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAMILIES)
def test_attached_at_start_changes_nothing(kind):
    batch, real = batch_of(kind, "left")
    expected = states(build(kind, "eager"), batch)[0]
    model = build(kind, "sdpa")
    names = attach_permission(model)
    assert attach_precision(model) == names and model.config._attn_implementation == "warrant"
    output = states(model, batch, output_permissions=True)
    close(output[0][real], expected[real])
    assert len(output.permissions) == len(names) == (6 if kind in SEQ2SEQ else 2)
    for gates in output.permissions:
        assert gates.dim() == 4 and gates.shape[:2] == (3, 1) and gates.max() <= 1 + 1e-6
    first = output.permissions[0]
    assert (first[0, ..., :4] == 0).all() and (first[1, ..., 0] > 0.99).all()


def test_the_three_attentions_of_t5_are_told_apart():
    batch, _ = batch_of("t5")
    model = build("t5", "sdpa")
    expected = states(model, batch)
    (name,) = attach_permission(model, layers=[-1], where="cross", granularity="item")
    assert name == "decoder.block.1.layer.1.EncDecAttention"
    randomize(model.get_submodule(name).permission)
    items = torch.arange(11).expand(3, -1) // 3
    output = states(model, batch, items=items, output_permissions=True)
    assert torch.equal(output.encoder_last_hidden_state, expected.encoder_last_hidden_state)
    assert not torch.allclose(output[0], expected[0])
    (gates,) = output.permissions
    assert gates.shape == (3, 1, 5, 11)  # one gate for all heads, though the position bias has one row per head
    assert torch.equal(gates[1, ..., 0:1].expand(-1, -1, 3), gates[1, ..., :3])
    assert (gates[0, ..., 7:] == 0).all()
    with pytest.raises(ValueError, match=r"items is torch.int64 \[3, 5\]; .* needs int64 \[B, K\] = \[3, 11\]"):
        states(model, batch, items=items[:, :5])
    with pytest.raises(ValueError, match="items is missing"):
        states(model, batch)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_items_are_refused_where_their_mean_would_show_the_future(kind):
    with pytest.raises(ValueError, match="granularity is 'item', but .* is causal"):
        attach_permission(build(kind, "sdpa"), granularity="item")
    permission = AttentionPermission(H, HKV, D, granularity="item")
    with pytest.raises(ValueError, match="granularity is 'item', but the attention is causal"):
        attend(*qkv(torch.float32), mask=None, is_causal=True, scale=None, permission=permission, items=ITEMS)


def test_max_items():
    batch, _ = batch_of("bert")
    items = torch.arange(11).expand(3, -1) // 3
    outputs = []
    for count in (None, 6):
        model = build("bert", "warrant")
        attach_permission(model, layers=[0], granularity="item", max_items=count)
        randomize(model.encoder.layer[0].attention.self.permission)
        outputs.append(states(model, batch, items=items)[0])
    close(*outputs)
    with pytest.raises(ValueError, match="items has item 9, but max_items is 6"):
        states(model, batch, items=torch.full((3, 11), 9))
    with pytest.raises(ValueError, match="items has -2; give 0 and up, and -1 for a key that belongs to no item"):
        states(model, batch, items=torch.full((3, 11), -2))


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_arguments_for_what_is_not_attached(kind):
    batch, _ = batch_of(kind)
    items, precisions = torch.zeros(3, 11, dtype=torch.long), torch.zeros(3, 11)
    model = build(kind, "pfa")
    for attached in (None, "token", "item"):
        if attached is not None:
            detach(model)
            attach_permission(model, layers=[0], where="cross" if kind == "t5" else None, granularity=attached)
        if attached == "item":
            assert len(states(model, batch, items=items, output_permissions=True).permissions) == 1
        else:
            with pytest.raises(ValueError, match="items is given, but no permission with granularity 'item'"):
                states(model, batch, items=items)
        with pytest.raises(ValueError, match="log_precision is given, but no precision is attached"):
            states(model, batch, log_precision=precisions)
    model.set_attn_implementation("sdpa")
    states(model, batch, items=items)  # the ungated control takes the same batches
    with pytest.raises(ValueError, match="output_masses is set, but the attention key is 'sdpa'"):
        states(model, batch, items=items, output_masses=True)
    model.set_attn_implementation("warrant")
    detach(model)
    attach_precision(model, layers=[0], where="cross" if kind == "t5" else None)
    states(model, batch, log_precision=precisions)
    with pytest.raises(ValueError, match="output_permissions is set, but no permission is attached to this"):
        states(model, batch, output_permissions=True)


@pytest.mark.parametrize("call", [attach_permission, attach_precision, attach_from_config, detach])
def test_what_is_no_transformers_model(call):
    with pytest.raises(ValueError, match="model is a Linear; give a transformers model, or use WarrantAttention"):
        call(nn.Linear(2, 2))


def test_recorded_permissions():
    batch, _ = batch_of("bert")
    model = build("bert", "sdpa", AutoModelForSequenceClassification)
    names = attach_permission(model, layers=[1], start=0.7)
    assert names == ["bert.encoder.layer.1.attention.self"]
    (gates,) = states(model, batch, output_permissions=True).permissions
    close(gates[1], torch.full((1, 11, 11), 0.7))
    assert "permissions" not in states(model, batch)
    both = states(model, batch, output_permissions=True, output_masses=True, output_attentions=True)
    close(both.masses[0], (both.attentions[1] * both.permissions[0]).sum(-1))
    assert states(model, batch, return_dict=False, output_permissions=True)[-1][0].shape == gates.shape
    (inner,) = states(model.bert, batch, output_permissions=True).permissions
    assert torch.equal(inner, gates)
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin.bert.encoder.layer[1].attention.self.permission.offset)
    (other,) = states(twin, batch, output_permissions=True).permissions
    assert not torch.allclose(other, gates)
    attach_precision(model, layers=[0])  # a second attachment does not record twice
    assert len(states(model, batch, output_permissions=True).permissions) == 1


def test_switching_off_and_detaching():
    batch, _ = batch_of("bert")
    model = build("bert", "sdpa")
    expected = states(model, batch)[0]
    attach_permission(model, layers=[0], start=0.5)
    assert not torch.allclose(states(model, batch)[0], expected)
    with pytest.raises(ValueError, match="encoder.layer.0.attention.self has a permission already"):
        attach_permission(model)
    model.set_attn_implementation("sdpa")
    assert torch.equal(states(model, batch)[0], expected)
    detach(model)
    model.set_attn_implementation("warrant")
    assert torch.equal(states(model, batch)[0], expected) and not hasattr(model.config, "warrant_attention")


# Kept and found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", ["5GB", "10KB"])
@pytest.mark.parametrize("kind", ["bert", "t5", "llama"])
def test_save_and_load(kind, shards, tmp_path):
    model = build(kind, "maa", power=1.2)
    attach_permission(model, layers=[-1], start=0.9, hidden_size=8)
    attach_precision(model, layers=[0], bound=2.0)
    randomize(model)
    batch, _ = batch_of(kind)
    expected = states(model, batch)[0]
    model.save_pretrained(tmp_path, max_shard_size=shards)
    record = json.loads((tmp_path / "config.json").read_text())["warrant_attention"]
    assert record["permission"][0]["layers"] == [1] and record["precision"][0]["bound"] == 2.0
    assert record["attention"] == "maa"
    loaded = load_attached(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(states(loaded, batch)[0], expected)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert torch.equal(states(load_attached(again), batch)[0], expected)


@pytest.mark.parametrize("order", ["key first", "attached first", "attached first, power unset"])
@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_the_attention_key_is_recorded(kind, order, tmp_path):
    model = build(kind, "maa" if order == "key first" else "sdpa")
    attach_permission(model)
    attach_precision(model)
    randomize(model)
    batch, _ = batch_of(kind)
    model.set_attn_implementation("maa")
    if order != "attached first, power unset":
        set_maa_power(model, [1.3, 1.2])
        model.save_pretrained(tmp_path)  # also without a forward pass
    expected = states(model, batch)[0]
    if order == "attached first, power unset":
        model.save_pretrained(tmp_path)
    loaded = load_attached(tmp_path)
    assert loaded.config._attn_implementation == "maa"
    assert torch.equal(states(loaded, batch)[0], expected)
    plain = load_attached(tmp_path, attn_implementation="warrant")
    assert not torch.allclose(states(plain, batch)[0], expected)
    model.set_attn_implementation("warrant")
    assert torch.equal(states(plain, batch)[0], states(model, batch)[0])
    ungated = load_attached(tmp_path, attn_implementation="sdpa")
    assert ungated.config._attn_implementation == "sdpa"
    close(states(ungated, batch)[0], states(AutoModel.from_pretrained(tmp_path), batch)[0])
    fresh = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path))
    attach_from_config(fresh)
    assert fresh.config._attn_implementation == "maa"


def test_load_under_another_head(tmp_path):
    model = build("bert", "warrant", AutoModelForSequenceClassification)
    attach_permission(model)
    randomize(model)
    model.save_pretrained(tmp_path)
    batch, _ = batch_of("bert")
    encoder = load_attached(tmp_path)
    assert encoder.config._attn_implementation == "warrant"
    assert torch.equal(states(encoder, batch)[0], states(model.bert, batch)[0])
    full = load_attached(tmp_path, AutoModelForSequenceClassification, dtype=torch.bfloat16)
    assert full.bert.encoder.layer[0].attention.self.permission.score.dtype == torch.bfloat16
    close(full(**batch).logits.float(), states(model, batch).logits, 0.2)


def test_loading_errors(tmp_path):
    model = build("bert", "warrant")
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="records nothing attached; load it with from_pretrained"):
        load_attached(tmp_path / "plain")
    attach_permission(model, layers=[0])
    model.save_pretrained(tmp_path / "attached")
    for change, message in (
        ({"permission": [{"layers": [0, 1]}]}, "lacks 5 attached weights, such as encoder.layer.1.attention.self"),
        ({"permission": [{"layers": [0], "colour": 1}]}, "a permission of unknown settings|with unknown settings"),
        ({"licence": []}, "records 'licence', but only permission and precision can be attached"),
        ({"attention": "soft"}, "records the attention key 'soft'; choose one of 'warrant', 'maa', 'pfa'"),
    ):
        config = copy.deepcopy(model.config)
        config.warrant_attention = change
        with pytest.raises(ValueError, match=message):
            load_attached(tmp_path / "attached", config=config)
    with pytest.raises(TypeError, match="path is <class .*; give a folder or Hub id first"):
        load_attached(AutoModel, tmp_path / "attached")
    with pytest.raises(TypeError, match="auto_class is 'bert'; give a class such as"):
        load_attached(tmp_path / "attached", "bert")
    with pytest.raises(ValueError, match="output_loading_info is set"):
        load_attached(tmp_path / "attached", output_loading_info=True)


def test_attached_weights_of_another_shape(tmp_path):
    """A single number would be repeated over the whole tensor, and the wrong model would load without an error."""
    model = build("bert", "warrant")
    attach_permission(model, layers=[0], hidden_size=1)
    model.save_pretrained(tmp_path)
    config = copy.deepcopy(model.config)
    config.warrant_attention["permission"][0]["hidden_size"] = 8
    with pytest.raises(ValueError, match=r"of shape \[1.*, but its config makes it \[8.*; correct warrant_attention"):
        load_attached(tmp_path, config=config)


def test_attach_from_config_does_nothing_without_a_record():
    model = build("bert", "sdpa")
    assert attach_from_config(model) == [] and model.config._attn_implementation == "sdpa"


def test_a_selector_is_loaded_with_its_permissions(selector, tmp_path):
    model = selector("bert")
    attach_permission(model.backbone, layers=[1], start=0.9)
    attach_precision(model.backbone, layers=[0])
    randomize(model.backbone.encoder.layer[1].attention.self.permission)
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
        assert loaded.backbone.encoder.layer[0].attention.self.precision.clipped_share == 0
        if dtype == torch.float32:
            loaded.processor = model.processor
            passages = ["jane austen wrote emma.", "an actress", "d"]
            assert loaded.rank("who?", passages) == model.rank("who?", passages)
    fresh = WarrantEncoderForEvidenceSelection(model.config)
    batch = {"input_ids": torch.full((1, 5), 7)}
    (gates,) = states(fresh.backbone, batch, output_permissions=True).permissions
    close(gates, torch.full_like(gates, 0.9))  # the initialisation of the model around it left it alone


def test_peft_trains_saves_and_restores_them(tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file

    def base():
        model = build("bert", "sdpa", AutoModelForSequenceClassification)
        attach_permission(model, layers=[-1])
        attach_precision(model, layers=[-1])
        return model

    batch, _ = batch_of("bert")
    settings = LoraConfig(target_modules=["query", "value"], modules_to_save=["permission", "precision", "classifier"])
    model = get_peft_model(base(), settings)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch, labels=torch.tensor([0, 1, 0])).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(tmp_path)
    kept = load_file(tmp_path / "adapter_model.safetensors")
    for name in ("permission.score", "permission.of_query.weight", "precision.score", "precision.clipped_share"):
        assert any(key.endswith(f"attention.self.{name}") for key in kept), name
    assert not any("permission" in key and "lora" in key for key in kept)
    expected = states(model, batch).logits
    assert not torch.allclose(expected, states(base(), batch).logits)
    loaded = PeftModel.from_pretrained(base(), tmp_path).eval()
    close(states(loaded, batch).logits, expected, 1e-6)
    assert len(states(loaded, batch, output_permissions=True).permissions) == 1
    with pytest.raises(ValueError, match="is a PEFT adapter and no complete model; load its base model, attach"):
        load_attached(tmp_path, AutoModelForSequenceClassification)
    merged = loaded.merge_and_unload()
    close(states(merged, batch).logits, expected, 1e-5)
    merged.save_pretrained(tmp_path / "merged")
    whole = load_attached(tmp_path / "merged", AutoModelForSequenceClassification)
    close(states(whole, batch).logits, expected, 1e-5)


def test_automodel_ignores_what_it_does_not_know(tmp_path):
    """A stock load is the base model, so a checkpoint stays readable without this package."""
    model = build("bert", "sdpa")
    batch, _ = batch_of("bert")
    expected = states(model, batch)[0]
    attach_permission(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(states(AutoModel.from_pretrained(tmp_path), batch)[0], expected)
