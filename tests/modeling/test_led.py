"""LED and Longformer: what is global, what must not change a score, both readings, loading, training, errors."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, LongformerModel
from transformers.models.led.modeling_led import LEDEncoder

from tests.modeling.conftest import long_backbone_config, randomize
from warrant_hf import AutoModelForEvidenceSelection, WarrantLEDConfig, WarrantLEDForEvidenceSelection
from warrant_hf.modeling.attention_windowed import _Windowed
from warrant_hf.modeling.modeling_led import global_tokens

READERS = [("led", "question"), ("led", "decoder"), ("longformer", "question")]
REFUSED = {"led", "decoder", "base"}
QUESTION = "who wrote emma?"
PASSAGES = [
    "jane austen wrote emma.",
    {"title": "stone", "text": "an actress"},
    "a much longer passage about something else",
    "d",
    "emma is a town",
    "the sixth",
]


def scores_of(result):
    return torch.tensor([item["score"] for item in sorted(result["evidence"], key=lambda item: item["index"])])


def by_index(result, name):
    return torch.tensor([item[name] for item in sorted(result["evidence"], key=lambda item: item["index"])])


def test_what_is_global():
    segments = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, -1, -1], [0, 0, 0, 4, 4, 4, 5, 5, 5, 5]])
    found = global_tokens(segments).int().tolist()
    assert found == [[1, 1, 0, 0, 1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("kind", "reading", "variant"),
    # "base" reads nothing, so that a decoder cannot read for it; see test_errors.
    [
        (*reader, variant)
        for reader in READERS
        for variant in ("base", "open", "pair")
        if {*reader, variant} != REFUSED
    ],
)
def test_forward_and_backward(long_selector, kind, reading, variant):
    model = long_selector(kind, reading, variant=variant).train()
    batch = model.processor([QUESTION, "b?"], [PASSAGES, ["one"]])
    output = model(**batch, labels=torch.tensor([[1, 0, 0, 0, 1, 0], [0, -100, -100, -100, -100, -100]]))
    assert output.logits.shape == (2, 6) and torch.isfinite(output.loss)
    assert torch.isinf(output.logits[1, 1:]).all() and torch.isfinite(output.logits[batch["candidate_mask"]]).all()
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name, gradient in gradients.items() if gradient is None} == set()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_padding_batching_and_poison_change_nothing(long_selector, kind, reading):
    model = long_selector(kind, reading, max_length=128)
    questions = [QUESTION, "b?", "third one here?", "who?"]
    lists = [PASSAGES, ["one"], ["word " * 60, "x"], ["one", "two two"]]
    alone = [scores_of(model.rank(question, listed)) for question, listed in zip(questions, lists)]
    together = model.rank_batch(questions, lists, batch_size=4)
    backwards = model.rank_batch(questions[::-1], lists[::-1], batch_size=3)[::-1]
    for one, two, three in zip(alone, together, backwards):
        torch.testing.assert_close(scores_of(two), one, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores_of(three), one, atol=1e-5, rtol=1e-5)
    for poison in (float("nan"), 1e4):
        with torch.no_grad():
            model.get_input_embeddings().weight[model.processor.tokenizer.pad_token_id] = poison
        assert model.rank_batch(questions, lists, batch_size=4) == together


@pytest.mark.parametrize("kind", ["led", "longformer"])
@pytest.mark.parametrize("windows", [16, [16, 8]])
def test_states_and_gradients_are_those_of_the_plain_model(long_selector, kind, windows):
    """Of transformers' own class, given a plain, padded batch with the same global tokens."""
    model = long_selector(kind, backbone={"attention_window": windows})
    plain_class = LEDEncoder if kind == "led" else LongformerModel
    plain = plain_class(model.config.backbone_config, **({} if kind == "led" else {"add_pooling_layer": False})).eval()
    plain.load_state_dict(model.backbone.state_dict())
    assert not any(isinstance(module, _Windowed) for module in plain.modules())
    assert sum(isinstance(module, _Windowed) for module in model.modules()) == 2
    batch = model.processor([QUESTION, "b?"], [PASSAGES, ["one"]])
    ids, segments = batch["input_ids"][:, 0], batch["segment_ids"][:, 0]
    real = segments >= 0
    expected = plain(
        input_ids=ids, attention_mask=real.long(), global_attention_mask=global_tokens(segments).long()
    ).last_hidden_state
    found = model.encode(ids, segments)
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    weight = torch.randn(expected[real].shape, generator=torch.Generator().manual_seed(0))
    (expected[real] * weight).sum().backward()
    (found[real] * weight).sum().backward()
    given = dict(plain.named_parameters())
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, given[name].grad, atol=2e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", ["led", "longformer"])
def test_attentions_can_be_shown(long_selector, kind):
    """Asked for weights, transformers' own code computes them, and the states are the same."""
    model = long_selector(kind)
    ids = torch.randint(4, 60, (1, 32), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "global_attention_mask": (ids < 10).long()}
    with torch.no_grad():
        shown, fused = model.backbone(**inputs, output_attentions=True), model.backbone(**inputs)
    assert shown.attentions[0].shape[:3] == (1, 2, 32)
    torch.testing.assert_close(shown.last_hidden_state, fused.last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["led", "longformer"])
def test_no_global_tokens(long_selector, kind):
    model = long_selector(kind)
    ids = torch.randint(4, 60, (2, 48), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with torch.no_grad():
        shown = model.backbone(input_ids=ids, attention_mask=mask, output_attentions=True).last_hidden_state
        fused = model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(shown[mask.bool()], fused[mask.bool()], atol=1e-5, rtol=1e-5)
    assert torch.isfinite(fused).all()


@pytest.mark.parametrize("kind", ["led", "longformer"])
def test_question_and_candidates_meet_over_any_distance(long_selector, kind):
    model = long_selector(kind)
    states = []
    for last in ("x", "y"):
        batch = model.processor([QUESTION], [["one two three four five six seven " * 8, last]])
        with torch.no_grad():
            states.append(model.encode(batch["input_ids"][0], batch["segment_ids"][0])[0])
    moved = (states[0] - states[1]).abs().amax(-1) > 1e-6
    segments = batch["segment_ids"][0, 0]
    assert (segments == 1).sum() > 200 and moved[segments == 0].all()


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_several_windows(long_selector, kind, reading):
    model = long_selector(kind, reading, max_length=64)
    (encoded,) = model.processor.encode([QUESTION], [PASSAGES])
    assert encoded.input_ids.shape[0] > 2
    few = model.rank(QUESTION, PASSAGES)
    assert by_index(few, "attention").sum() == pytest.approx(1, abs=1e-5)
    model.config.encode_batch_size = 1
    torch.testing.assert_close(scores_of(model.rank(QUESTION, PASSAGES)), scores_of(few), atol=1e-5, rtol=1e-5)


def test_no_more_tokens_at_a_time_than_the_longest_window_has(long_selector, monkeypatch):
    model = long_selector("led", max_length=200)
    shapes, encode = [], model._encode_windows
    monkeypatch.setattr(
        model, "_encode_windows", lambda ids, segments: (shapes.append(ids.shape), encode(ids, segments))[1]
    )
    model.rank(QUESTION, ["word " * 30] * 6)
    assert len(shapes) > 1 and all(shape.numel() <= 512 for shape in shapes)


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_revoked_candidates(long_selector, kind, reading):
    model = long_selector(kind, reading)
    before = model.rank(QUESTION, PASSAGES)
    closed = model.rank(QUESTION, PASSAGES, revoke=[0])
    effective, others = by_index(closed, "effective"), torch.arange(6) > 0
    assert effective[0] == 0 and by_index(closed, "permission")[0] == 0
    torch.testing.assert_close(by_index(closed, "attention"), by_index(before, "attention"))
    torch.testing.assert_close(effective[others], by_index(before, "effective")[others], atol=1e-6, rtol=1e-5)
    assert closed["mass"] < before["mass"]
    left_out = model.rank(QUESTION, PASSAGES[1:])
    masked = model.rank(QUESTION, PASSAGES, revoke=[0], revoke_by="mask")
    assert torch.equal(scores_of(masked)[1:], scores_of(left_out)) and masked["mass"] == left_out["mass"]


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_permission_override(long_selector, kind, reading):
    model = long_selector(kind, reading)
    batch = model.processor([QUESTION], [PASSAGES])
    with torch.no_grad():
        learned = model(**batch)
        override = torch.full((1, 6), float("nan"))
        override[0, 2] = 0.5 * float(learned.permission[0, 2])
        halved = model(**batch, permission_override=override)
    torch.testing.assert_close(halved.effective[0, 2], 0.5 * learned.effective[0, 2])
    drop = model.readout.beta * torch.log(torch.tensor(2.0))
    torch.testing.assert_close(learned.logits[0, 2] - halved.logits[0, 2], drop, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(halved.logits[0, 3:], learned.logits[0, 3:])


def test_tokens_of_a_ranking(long_selector):
    for kind, reading in READERS:
        result = long_selector(kind, reading).rank(QUESTION, PASSAGES, return_tokens=True)
        assert all(item["tokens"] for item in result["evidence"])


# The decoder as the reader -------------------------------------------------------------------------------------------


def test_decoder_reading_is_the_last_cross_attention(long_selector):
    model = long_selector("led", "decoder")
    batch = model.processor([QUESTION], [PASSAGES])
    segments = batch["segment_ids"][0]
    with torch.no_grad():
        output = model(**batch)
        plain = model.backbone(
            input_ids=batch["input_ids"][0],
            attention_mask=(segments >= 0).long(),
            global_attention_mask=global_tokens(segments).long(),
            decoder_input_ids=torch.tensor([[model.config.backbone_config.decoder_start_token_id]]),
            output_attentions=True,
        )
    weights = plain.cross_attentions[-1][0, :, 0]  # [H, T]
    per_item = torch.stack([weights[:, segments[0] == item + 1].sum(-1) for item in range(6)], -1)
    expected = (per_item / per_item.sum(-1, keepdim=True)).mean(0)
    torch.testing.assert_close(output.attention[0], expected, atol=1e-6, rtol=1e-5)
    assert expected.max() > 1.2 * expected.min()


def test_decoder_reading_does_not_move_the_permission(long_selector):
    """The gate is asked with the readout's own question and keys, whoever reads."""
    decoder, question = long_selector("led", "decoder"), long_selector("led", "question")
    question.backbone.load_state_dict(decoder.backbone.encoder.state_dict())
    question.readout.load_state_dict(decoder.readout.state_dict())
    one, two = (model.rank(QUESTION, PASSAGES) for model in (decoder, question))
    torch.testing.assert_close(by_index(one, "permission"), by_index(two, "permission"), atol=1e-5, rtol=1e-5)
    assert (by_index(one, "attention") - by_index(two, "attention")).abs().max() > 1e-3


# Loading and saving --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_save_and_load(long_selector, kind, reading, tmp_path):
    model = long_selector(kind, reading)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert type(loaded) is WarrantLEDForEvidenceSelection and loaded.config.reading == reading
    assert loaded.rank(QUESTION, PASSAGES) == model.rank(QUESTION, PASSAGES)
    has_decoder = any("decoder" in name for name in load_file(tmp_path / "model.safetensors"))
    assert has_decoder == (reading == "decoder")


@pytest.mark.parametrize("reading", ["question", "decoder"])
@pytest.mark.parametrize("head", [AutoModel, AutoModelForSeq2SeqLM])
def test_backbone_of_any_led(tokenizers, reading, head, tmp_path):
    torch.manual_seed(0)
    tokenizer = tokenizers["byte"]()
    whole = randomize(head.from_config(long_backbone_config("led", len(tokenizer))))
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = AutoModelForEvidenceSelection.from_backbone(tmp_path, reading=reading, readout_size=32).eval()
    led = whole if head is AutoModel else whole.led
    source, found = (led if reading == "decoder" else led.encoder).state_dict(), model.backbone.state_dict()
    assert isinstance(model.backbone, LEDEncoder) == (reading == "question") and found.keys() == source.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, source[name], atol=0, rtol=0)
    assert model.processor.max_length == model.longest_input() == 512 and model.processor.packing == "shared"
    assert len(model.rank(QUESTION, PASSAGES)["evidence"]) == 6
    with pytest.raises(ValueError, match="LEDModel computes its attention itself"):
        AutoModelForEvidenceSelection.from_backbone(tmp_path, reading=reading, attention="warrant")


@pytest.mark.parametrize("head", [AutoModel, AutoModelForMaskedLM])
def test_backbone_of_any_longformer(tokenizers, head, tmp_path):
    tokenizer = tokenizers["byte"]()
    whole = randomize(head.from_config(long_backbone_config("longformer", len(tokenizer), type_vocab_size=2)))
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = AutoModelForEvidenceSelection.from_backbone(tmp_path, readout_size=32).eval()
    source = (whole if head is AutoModel else whole.longformer).state_dict()
    assert not any("pooler" in name for name in model.backbone.state_dict())
    for name, weight in model.backbone.state_dict().items():
        torch.testing.assert_close(weight, source[name], atol=0, rtol=0)
    assert model.processor.max_length == model.longest_input() == 512
    assert len(model.rank(QUESTION, PASSAGES)["evidence"]) == 6


def test_the_whole_window_is_used(long_selector):
    """Every position, also the last; one more is refused."""
    for kind in ("led", "longformer"):
        model = long_selector(kind)
        segments = torch.tensor([0] * 4 + [1] * 508).view(1, 1, -1)
        inputs = {"item_candidates": torch.tensor([[0]]), "candidate_mask": torch.tensor([[True]])}
        assert torch.isfinite(model(torch.full((1, 1, 512), 5), segments, **inputs).logits).all()
        segments = torch.nn.functional.pad(segments, (0, 1), value=1)
        with pytest.raises(ValueError, match="A window needs 513 positions, .* 512; make the processor with max_len"):
            model(torch.full((1, 1, 513), 5), segments, **inputs)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_training_lowers_the_loss(long_selector, kind, reading):
    model = long_selector(kind, reading, readout_dropout=0.0).train()
    batch = model.processor([QUESTION, "b?"], [PASSAGES, PASSAGES[::-1]])
    labels = torch.tensor([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    losses = []
    for _ in range(12):
        losses.append(model(**batch, labels=labels).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_checkpointed_gradients_are_equal(long_selector, kind, reading):
    dropouts = {"led": {"dropout": 0.0}, "longformer": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}}
    model = long_selector(kind, reading, readout_dropout=0.0, backbone=dropouts[kind])
    batch = model.processor([QUESTION], [PASSAGES]) | {"labels": torch.tensor([[1, 0, 0, 0, 1, 0]])}
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model.train()(**batch).loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, msg=name)


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_bfloat16(long_selector, kind, reading, tmp_path):
    model = long_selector(kind, reading).train()
    batch = model.processor([QUESTION], [PASSAGES])
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch, labels=torch.tensor([[1, 0, 0, 0, 0, 0]]))
    assert output.logits.dtype == torch.float32
    output.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.backbone.dtype == torch.bfloat16 and torch.isfinite(scores_of(loaded.rank(QUESTION, PASSAGES))).all()


@pytest.mark.parametrize(("kind", "reading"), READERS)
def test_frozen_layers(long_selector, kind, reading):
    model = long_selector(kind, reading, frozen_layers=1).train()
    model(**model.processor([QUESTION], [PASSAGES]), labels=torch.ones(1, 6, dtype=torch.long)).loss.backward()
    prefix = "backbone.encoder." if reading == "decoder" or kind == "longformer" else "backbone."
    still = {"led": ("layers.0.", "embed_positions.", "layernorm_embedding."), "longformer": ("layer.0.",)}[kind]
    for name, parameter in model.named_parameters():
        lowest = name.removeprefix(prefix).startswith(still) and name.startswith(prefix)
        words = any(part in name for part in ("shared", "embed_tokens", "backbone.embeddings"))
        if lowest or words:
            assert not parameter.requires_grad, name
        else:
            assert parameter.grad is not None or not parameter.requires_grad, name
            assert parameter.requires_grad or "decoder.layers.1." in name, name
    with pytest.raises(ValueError, match="frozen_layers is 3, but the encoder has 2 layers; lower it"):
        long_selector(kind, reading, frozen_layers=3)


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "longformer", "reading": "decoder"}, "reading is 'decoder', but a Longformer has none; use"),
        (
            {"reading": "decoder", "variant": "base"},
            "variant is 'base'; choose one of 'open', 'pair'",
        ),
        ({"reading": "decoder", "backbone": {"decoder_layers": 0}}, "has no decoder layers.*; start from an LED with"),
        ({"reading": "mean"}, "reading is 'mean'; choose one of 'question', 'decoder'"),
        ({"packing": "isolated"}, "packing is 'isolated'; choose one of 'joint'"),
        ({"attention": "maa"}, "computes its attention itself"),
        ({"backbone": {"attention_window": 1024}}, "attention_window 1024 is longer than the positions .*; lower it"),
    ],
)
def test_errors(long_selector, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        long_selector(**settings)
    assert "\n" not in str(caught.value)


def test_a_selector_without_decoder_cannot_be_read_by_one(long_selector, tmp_path):
    long_selector("led").save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text().replace('"reading": "question"', '"reading": "decoder"')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match="has no decoder layers, as in a selector made with reading='question'"):
        AutoModelForEvidenceSelection.from_pretrained(tmp_path)


def test_windows_that_do_not_fit_each_other(long_selector):
    for windows in ([12, 8], [7, 14]):
        with pytest.raises(
            ValueError, match="attention_window is .*; windows must be even, and each divide the largest"
        ):
            long_selector("led", backbone={"attention_window": windows})


def test_the_callers_config_stays_as_it_is(long_selector):
    config = long_selector("led", reading="decoder").config.backbone_config
    kept = config.decoder_layers
    WarrantLEDForEvidenceSelection(WarrantLEDConfig(backbone_config=config))
    assert kept and config.decoder_layers == kept
