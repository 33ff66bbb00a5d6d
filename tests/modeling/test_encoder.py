"""The encoder around the readout: every backbone, both packings, and what must not change a state."""

import pytest
import torch

from warrant_hf import WarrantEncoderConfig, WarrantEncoderForEvidenceSelection

KINDS = ["bert", "roberta", "xlm-roberta", "mpnet", "modernbert", "deberta-v2"]
ISOLATED = [kind for kind in KINDS if kind != "deberta-v2"]
QUESTION = "who wrote emma?"
PASSAGES = [
    "jane austen wrote emma.",
    {"title": "stone", "text": "an actress"},
    "a much longer passage about something else",
    "d",
    "emma is a town",
    "the sixth",
]


def states_of(model, passages, question=QUESTION):
    """States `[tokens, D]` of the question and of each item."""
    (encoded,) = model.processor.encode([question], [passages])
    segments = torch.from_numpy(encoded.segment_ids)
    with torch.no_grad():
        states = model.encode(torch.from_numpy(encoded.input_ids), segments)
    items = [states[segments == item + 1] for item in range(len(encoded.item_candidates))]
    return states[0][segments[0] == 0], items


def scores_of(result):
    return torch.tensor([item["score"] for item in sorted(result["evidence"], key=lambda item: item["index"])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["base", "open", "pair"])
def test_forward_and_backward(selector, kind, variant):
    model = selector(kind, variant=variant).train()
    batch = model.processor([QUESTION, "b?"], [PASSAGES, ["one"]])
    labels = torch.tensor([[1, 0, 0, 0, 1, 0], [0, -100, -100, -100, -100, -100]])
    output = model(**batch, labels=labels)
    assert output.logits.shape == (2, 6) and torch.isfinite(output.loss)
    assert torch.isinf(output.logits[1, 1:]).all() and torch.isfinite(output.logits[batch["candidate_mask"]]).all()
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    unused = {name for name, gradient in gradients.items() if gradient is None}
    assert unused == set()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values() if gradient is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(selector, kind, tmp_path):
    model = selector(kind)
    model.save_pretrained(tmp_path)
    loaded = WarrantEncoderForEvidenceSelection.from_pretrained(tmp_path)
    loaded.processor = model.processor
    assert loaded.rank(QUESTION, PASSAGES) == model.rank(QUESTION, PASSAGES)
    assert type(loaded.config.backbone_config) is type(model.config.backbone_config)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_windows_are_read_as_the_encoder_reads_text(selector, kind):
    """Positions, token types and mask are those that the encoder makes for a plain, padded batch."""
    model = selector(kind, packing="joint")
    batch = model.processor([QUESTION, "b?"], [PASSAGES[:3], ["one"]])
    ids, segments = batch["input_ids"][:, 0], batch["segment_ids"][:, 0]
    plain = {"input_ids": ids, "attention_mask": (segments >= 0).long()}
    if kind == "bert":
        plain["token_type_ids"] = (segments > 0).long()
    with torch.no_grad():
        expected = model.backbone(**plain).last_hidden_state
        found = model.encode(ids, segments)
    torch.testing.assert_close(found[segments >= 0], expected[segments >= 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ISOLATED)
def test_isolated_question_is_read_alone(selector, kind):
    model = selector(kind)
    question, _ = states_of(model, PASSAGES)
    (encoded,) = model.processor.encode([QUESTION], [["x"]])
    with torch.no_grad():
        ids = torch.from_numpy(encoded.input_ids[:1, : len(question)])
        expected = model.backbone(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(question, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ISOLATED)
def test_isolated_states_do_not_depend_on_neighbours_or_windows(selector, kind):
    model = selector(kind)
    alone = [states_of(model, [passage])[1][0] for passage in PASSAGES]
    for passages, limit in ((PASSAGES, 512), (PASSAGES, 64), (PASSAGES[::-1], 512), (PASSAGES[::-1], 70)):
        model.processor.max_length = limit
        _, items = states_of(model, passages)
        for item, expected in zip(items if passages is PASSAGES else items[::-1], alone):
            torch.testing.assert_close(item, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ISOLATED)
def test_isolated_scores_follow_a_permutation(selector, kind):
    model = selector(kind)
    scores = scores_of(model.rank(QUESTION, PASSAGES))
    order = [4, 0, 5, 2, 1, 3]
    moved = scores_of(model.rank(QUESTION, [PASSAGES[at] for at in order]))
    torch.testing.assert_close(moved, scores[order], atol=1e-5, rtol=0)
    model.processor.max_length = 64
    torch.testing.assert_close(scores_of(model.rank(QUESTION, PASSAGES)), scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_scores_have_a_position_effect(selector, kind):
    """Joint packing lets candidates read each other, so order matters; isolated packing is for those who mind."""
    model = selector(kind, packing="joint")
    scores = scores_of(model.rank(QUESTION, PASSAGES))
    moved = scores_of(model.rank(QUESTION, PASSAGES[::-1])).flip(0)
    assert torch.isfinite(moved).all() and (moved - scores).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packing", ["isolated", "joint"])
def test_padding_and_batching_change_nothing(selector, kind, packing):
    if kind == "deberta-v2" and packing == "isolated":
        pytest.skip("joint only")
    model = selector(kind, max_length=64, packing=packing)
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


def test_many_windows_are_encoded_in_groups(selector):
    model = selector("bert", max_length=64)
    passages = [f"passage {at}" for at in range(200)]
    windows = model.processor.encode([QUESTION], [passages])[0].input_ids.shape[0]
    assert windows > 32
    few = scores_of(model.rank(QUESTION, passages))
    model.processor.max_length = 512
    torch.testing.assert_close(scores_of(model.rank(QUESTION, passages)), few, atol=1e-5, rtol=1e-5)


def test_groups_on_a_cpu_have_few_tokens(selector, monkeypatch):
    model = selector("bert", max_length=64)
    shapes, encode = [], model._encode_windows
    monkeypatch.setattr(
        model, "_encode_windows", lambda ids, segments: (shapes.append(ids.shape), encode(ids, segments))[1]
    )
    passages = [f"passage {at}" for at in range(200)]
    few = scores_of(model.rank(QUESTION, passages))
    assert len(shapes) > 2 and max(len(shape) for shape in shapes) > 1
    assert all(shape.numel() <= 1024 for shape in shapes)
    monkeypatch.setattr("warrant_hf.modeling.modeling_evidence._CPU_TOKENS", 10)  # a window is never split
    shapes.clear()
    torch.testing.assert_close(scores_of(model.rank(QUESTION, passages)), few, atol=1e-5, rtol=1e-5)
    assert {shape[0] for shape in shapes} == {1}


def test_checkpointed_gradients_are_equal(selector):
    model = selector("roberta", readout_dropout=0.0)
    for dropout in (module for module in model.modules() if isinstance(module, torch.nn.Dropout)):
        dropout.p = 0.0
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


@pytest.mark.parametrize("packing", ["isolated", "joint"])
def test_bfloat16_autocast(selector, packing):
    model = selector("bert", packing=packing).train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**model.processor([QUESTION], [PASSAGES]), labels=torch.tensor([[1, 0, 0, 0, 0, 0]]))
    assert output.logits.dtype == torch.float32
    output.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_frozen_layers(selector):
    model = selector("bert", frozen_layers=1).train()
    model(**model.processor([QUESTION], [PASSAGES]), labels=torch.ones(1, 6, dtype=torch.long)).loss.backward()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if ".embeddings." in name or ".layer.0." in name}
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if name not in frozen)
    with pytest.raises(ValueError, match="frozen_layers is 3, but the encoder has 2 layers; lower it"):
        selector("bert", frozen_layers=3)


def test_fresh_gates_start_at_gate_init(selector):
    from tests.modeling.conftest import tiny_encoder_config  # the initial state, so not randomised

    backbone = tiny_encoder_config("bert", 300)
    for start in (0.95, 0.7):
        config = WarrantEncoderConfig(backbone_config=backbone, readout_size=32, readout_heads=2, gate_init=start)
        model = WarrantEncoderForEvidenceSelection(config).eval()
        model.processor = selector("bert").processor
        for item in model.rank(QUESTION, PASSAGES)["evidence"]:
            assert item["permission"] == pytest.approx(start, abs=1e-6)


def test_bad_shapes(tiny_model):
    batch = tiny_model.processor([QUESTION], [PASSAGES])
    with pytest.raises(ValueError, match="labels \\[1, 2\\]: there are \\[1, 6\\] candidates"):
        tiny_model(**batch, labels=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="both must be \\[rows, windows, tokens\\]"):
        tiny_model(**(batch | {"input_ids": batch["input_ids"][0]}))
    assert isinstance(tiny_model(**batch, return_dict=False), tuple)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_readout_is_an_error_that_names_the_remedy(selector, dtype):
    with pytest.raises(ValueError, match=f"The readout is in {dtype}, but .*; load the model with from_pretrained"):
        selector("bert").to(dtype).rank(QUESTION, PASSAGES)


# Config -------------------------------------------------------------------------------------------------------------


def test_config_round_trip(tmp_path):
    from transformers import AutoConfig

    from tests.modeling.conftest import tiny_encoder_config

    config = WarrantEncoderConfig(backbone_config=tiny_encoder_config("modernbert", 50), variant="open", gate_leak=0.1)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, WarrantEncoderConfig) and loaded.to_diff_dict() == config.to_diff_dict()
    again = WarrantEncoderConfig(**config.to_dict())
    assert again.to_dict() == config.to_dict() and again.backbone_config.model_type == "modernbert"


def test_backbone_config_as_dict():
    config = WarrantEncoderConfig(backbone_config={"model_type": "roberta", "hidden_size": 48})
    assert config.backbone_config.hidden_size == 48
    with pytest.raises(ValueError, match="the dict has no 'model_type'"):
        WarrantEncoderConfig(backbone_config={"hidden_size": 48})
    with pytest.raises(ValueError, match="backbone_config is missing"):
        WarrantEncoderForEvidenceSelection(WarrantEncoderConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "best"}, "variant is 'best'; choose one of 'base', 'open', 'pair'"),
        ({"packing": "mixed"}, "packing is 'mixed'; choose one of 'isolated', 'joint'"),
        ({"evidence_loss": "mse"}, "evidence_loss is 'mse'; choose one of"),
        ({"gate_leak": 0.9, "gate_init": 0.8}, "gate_leak 0.9 and gate_init 0.8: need 0 <= gate_leak < gate_init < 1"),
        ({"gate_leak": -0.1}, "gate_leak is -0.1; it must be a number of 0 or more"),
        ({"gate_init": 1.0}, "gate_leak 0.05 and gate_init 1.0: need"),
        ({"gate_init": "high"}, "gate_init is 'high'; it must be a number"),
        ({"gate_init": float("nan")}, "gate_init is nan"),
        ({"readout_size": 30}, "readout_size 30 is not divisible by readout_heads 4; choose a multiple"),
        ({"readout_heads": 0}, "readout_heads is 0; it must be a whole number of 1 or more"),
        ({"readout_size": 32.5}, "readout_size is 32.5; it must be a whole number of 1 or more"),
        ({"frozen_layers": 1.5}, "frozen_layers is 1.5; it must be a whole number of 0 or more"),
        ({"answerability_weight": float("inf")}, "answerability_weight is inf; it must be a number"),
        ({"base_model": 5}, "base_model is 5; it must be a text or left out"),
        ({"backbone_config": 5}, "backbone_config is 5; give the config of a pretrained"),
        ({"backbone_config": {"model_type": "x"}}, "the model_type 'x' is unknown to this version of transformers"),
        ({"readout_dropout": 1.0}, "readout_dropout is 1.0; it must be less than 1"),
        ({"answerability_weight": -1.0}, "answerability_weight is -1.0; it must be a number of 0 or more"),
        ({"permission_supervision": -1.0}, "permission_supervision is -1.0"),
        ({"frozen_layers": -1}, "frozen_layers is -1"),
        ({"precision_features": ["age", "age"]}, "precision_features is .*; give names, each once"),
        ({"precision_features": ["label"]}, "precision_features names 'label' or 'kind', which hold the answer"),
        ({"precision_bound": 0}, "precision_bound is 0"),
        ({"reading_power": 0}, "reading_power is 0"),
    ],
)
def test_bad_config(settings, message):
    with pytest.raises(ValueError, match=message):
        WarrantEncoderConfig(**settings)


def test_isolated_packing_needs_a_token_mask(selector):
    with pytest.raises(ValueError, match="deberta-v2 takes no token-by-token mask; use packing='joint'"):
        selector("deberta-v2", packing="isolated")
