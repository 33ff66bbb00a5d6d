"""A pretrained cross-encoder as the start of a selector: with its head as the first score, or without."""

import logging

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from tests.conftest import character_tokenizer, tiny_backbone_config
from tests.modeling.conftest import TOKENIZERS, randomize, tiny_encoder_config
from warrant_hf import AutoModelForEvidenceSelection, EvidenceProcessor, WarrantEncoderForEvidenceSelection
from warrant_hf.export import export_onnx

READOUT = {"readout_size": 32, "readout_heads": 2, "gate_size": 16}


def roberta(vocabulary):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=vocabulary, max_position_embeddings=514, pad_token_id=0, num_labels=1, **sizes)
    return RobertaForSequenceClassification(config)


def bert(vocabulary):
    config = tiny_backbone_config(vocabulary)
    config.num_labels = 1
    return BertForSequenceClassification(config)


@pytest.fixture(scope="module", params=[bert, roberta])
def reranker(request, tmp_path_factory):
    """A random cross-encoder of one logit, and its folder."""
    tokenizer = character_tokenizer()
    torch.manual_seed(1)
    model, folder = request.param(len(tokenizer)).eval(), tmp_path_factory.mktemp(request.param.__name__)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, folder


def test_encoder_is_that_of_the_cross_encoder(reranker):
    trained, folder = reranker
    model = WarrantEncoderForEvidenceSelection.from_backbone(folder, variant="base", **READOUT)
    theirs = trained.base_model.state_dict()
    ours = model.backbone.state_dict()
    assert set(theirs) - set(ours) <= {name for name in theirs if name.startswith("pooler.")}
    assert all(torch.equal(values, theirs[name]) for name, values in ours.items())


def test_joint_window_of_one_candidate_is_the_pair_that_it_was_trained_on(reranker):
    """And so has the very states from which the head, which stays behind, made its logit."""
    trained, folder = reranker
    model = WarrantEncoderForEvidenceSelection.from_backbone(folder, packing="joint", **READOUT)
    batch = model.processor("who wrote emma?", ["austen did"])
    real = batch["segment_ids"][0] >= 0
    pair = {"input_ids": batch["input_ids"][0][real][None], "attention_mask": torch.ones(1, int(real.sum())).long()}
    if trained.config.type_vocab_size > 1:
        pair["token_type_ids"] = (batch["segment_ids"][0][real] > 0).long()[None]
    with torch.no_grad():
        expected = trained.base_model(**pair).last_hidden_state
        states = model.encode(batch["input_ids"], batch["segment_ids"])[0][real][None]
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=0)


def test_isolated_first_token_has_seen_no_candidate(reranker):
    """Why no readout can give the logit of the head there: its only input is the same for all candidates."""
    _, folder = reranker
    model = WarrantEncoderForEvidenceSelection.from_backbone(folder, **READOUT)
    firsts = []
    for passage in ("austen did", "another text"):
        batch = model.processor("who wrote emma?", [passage])
        with torch.no_grad():
            firsts.append(model.encode(batch["input_ids"], batch["segment_ids"])[0, 0, 0])
    torch.testing.assert_close(*firsts, atol=1e-5, rtol=0)


def test_it_ranks_at_once(reranker):
    _, folder = reranker
    model = WarrantEncoderForEvidenceSelection.from_backbone(folder, **READOUT)
    evidence = model.rank("who wrote emma?", ["austen did", "a novel"])["evidence"]
    assert sorted(item["index"] for item in evidence) == [0, 1]


# With its head.

QUESTION = "who wrote emma?"
PASSAGES = ["austen did", "emma is a novel", {"title": "scott", "text": "he wrote waverley"}]
LEARNED = ("pair", "query", "item", "shuffled")


def joined(tokenizer):
    """`tokenizer` with the template of its family for two texts: RoBERTa has two separators between them."""
    begin, end = tokenizer.cls_token, tokenizer.sep_token
    between = f"{end} {end}" if begin == "<s>" else end
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {between} $B:1 {end}:1",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in (begin, end)],
    )
    return tokenizer


@pytest.fixture(scope="module")
def with_head(tokenizers, tmp_path_factory):
    """`with_head(kind, labels)`: a random cross-encoder, its tokenizer and its folder."""
    made = {}

    def build(kind="bert", labels=1):
        if (kind, labels) not in made:
            tokenizer = joined(tokenizers[TOKENIZERS.get(kind, "byte")]())
            config = tiny_encoder_config(kind, len(tokenizer))
            config.num_labels = labels
            torch.manual_seed(3)
            model = randomize(AutoModelForSequenceClassification.from_config(config)).eval()
            folder = tmp_path_factory.mktemp(f"{kind}-{labels}")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[kind, labels] = model, tokenizer, folder
        return made[kind, labels]

    return build


def texts(passages=PASSAGES):
    return [p if isinstance(p, str) else f"{p['title']}: {p['text']}" for p in passages]


@torch.no_grad()
def head_logits(model, tokenizer, passages=PASSAGES):
    """What transformers' own cross-encoder says of each pair."""
    settings = {"padding": True, "return_token_type_ids": True, "return_tensors": "pt"}
    batch = tokenizer([QUESTION] * len(passages), texts(passages), **settings)
    if getattr(model.config, "type_vocab_size", 0) < 2:
        batch.pop("token_type_ids", None)
    logits = model(**batch).logits
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


@torch.no_grad()
def scores(model, passages=PASSAGES, **settings):
    return model(**model.processor(QUESTION, passages), **settings)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet", "modernbert", "deberta-v2"])
def test_attention_is_the_softmax_of_the_head(kind, with_head):
    trained, tokenizer, folder = with_head(kind)
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", **READOUT)
    expected = head_logits(trained, tokenizer)
    found = scores(model)
    torch.testing.assert_close(found.attention[0], expected.softmax(0), atol=1e-5, rtol=1e-4)
    assert found.logits[0].argsort().tolist() == expected.argsort().tolist()
    states = model.encode(*(model.processor(QUESTION, PASSAGES)[name] for name in ("input_ids", "segment_ids")))
    assert states.shape[-1] == trained.config.hidden_size


def test_two_classes_read_as_their_difference(with_head):
    trained, tokenizer, folder = with_head(labels=2)
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", **READOUT)
    torch.testing.assert_close(
        scores(model).attention[0], head_logits(trained, tokenizer).softmax(0), atol=1e-5, rtol=1e-4
    )


def test_content_head_starts_with_the_logits_of_the_head(with_head):
    trained, tokenizer, folder = with_head()
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", variant="base", **READOUT)
    apart = scores(model).logits[0] - head_logits(trained, tokenizer)
    torch.testing.assert_close(apart, apart[:1].expand(3), atol=1e-5, rtol=0)


def test_windows_are_the_pairs_of_the_tokenizer(with_head):
    _, tokenizer, folder = with_head("roberta")
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", **READOUT)
    assert model.processor.packing == "pair"
    batch = model.processor(QUESTION, PASSAGES)
    for row, text in enumerate(texts()):
        real = batch["segment_ids"][0, row] >= 0
        assert batch["input_ids"][0, row][real].tolist() == tokenizer(QUESTION, text)["input_ids"]


@pytest.mark.parametrize("limit", [8, 9, 12])
def test_parts_of_a_long_passage_fit_small_windows(limit, with_head):
    _, tokenizer, _ = with_head("roberta")
    processor = EvidenceProcessor(tokenizer, limit, max_question_tokens=4, packing="pair")
    row = processor.encode([QUESTION], [PASSAGES])[0]
    assert row.input_ids.shape[1] <= limit
    for at, text in enumerate(texts()):
        windows = [w for w, owner in enumerate(row.item_candidates) if owner == at]
        inside = sum(int((row.segment_ids[w] > 0).sum()) - 1 for w in windows)
        assert inside == len(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_tokenizer_without_a_template_keeps_one_separator(tokenizers):
    processor = EvidenceProcessor(tokenizers["character"](), packing="pair")
    single = EvidenceProcessor(tokenizers["character"](), packing="single")
    pair, other = (each(QUESTION, PASSAGES) for each in (processor, single))
    assert torch.equal(pair["input_ids"], other["input_ids"])


def test_everything_else_works_as_for_the_other_readings(with_head, tmp_path):
    """Closing a gate, saving and loading, one passage and none, a batch and its rows."""
    _, _, folder = with_head()
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", **READOUT)
    randomize(model.readout, seed=5)
    before = scores(model)
    override = torch.tensor([[0.0, float("nan"), float("nan")]])
    closed = scores(model, permission_override=override)
    assert closed.effective[0, 0] == 0 and torch.equal(closed.logits[0, 1:], before.logits[0, 1:])
    assert closed.logits[0, 0] == pytest.approx(model.readout.lowest_logit())
    model.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    again = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert again.config.reading == "head" and again.processor.packing == "pair"
    assert torch.equal(scores(again).logits, before.logits)
    assert model.rank(QUESTION, [])["evidence"] == []
    assert model.rank(QUESTION, PASSAGES[:1])["evidence"][0]["attention"] == pytest.approx(1)
    both = model.rank_batch([QUESTION, "what is emma?"], [PASSAGES, PASSAGES[:1]])
    alone = [item["score"] for item in model.rank(QUESTION, PASSAGES)["evidence"]]
    assert [item["score"] for item in both[0]["evidence"]] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("variant", ["base", "open", *LEARNED])
def test_the_loss_reaches_every_parameter_that_is_trained(variant, with_head):
    _, _, folder = with_head()
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", variant=variant, **READOUT)
    randomize(model.readout, seed=5)
    model.train()
    model(**model.processor(QUESTION, PASSAGES), labels=torch.tensor([[1, 0, 0]])).loss.backward()
    still = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not still
    assert model.backbone.classifier.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("variant", ["base", "pair"])
def test_a_head_that_is_not_finite_is_an_error(value, variant, with_head):
    _, _, folder = with_head()
    model = AutoModelForEvidenceSelection.from_backbone(folder, reading="head", variant=variant, **READOUT)
    with torch.no_grad():
        model.backbone.classifier.bias.fill_(value)
    with pytest.raises(ValueError, match="not finite in torch.float32"):
        model.rank(QUESTION, PASSAGES)


def test_a_head_left_behind_is_said(with_head, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("warrant_hf"), "propagate", True)
    _, _, folder = with_head()
    AutoModelForEvidenceSelection.from_backbone(folder, reading="head", **READOUT)
    assert "left behind" not in caplog.text
    AutoModelForEvidenceSelection.from_backbone(folder, **READOUT)
    assert "head of BertForSequenceClassification is left behind" in caplog.text


def test_what_cannot_be_read_by_a_head_is_refused(with_head, tiny_encoder_dir, tmp_path):
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 99, "num_labels": 1, "pad_token_id": 0}
    decoder = tmp_path / "decoder"
    GPT2ForSequenceClassification(GPT2Config(**sizes)).save_pretrained(decoder)
    with_head()[1].save_pretrained(decoder)
    _, _, folder = with_head(labels=3)
    start = AutoModelForEvidenceSelection.from_backbone
    for place, settings, message in [
        (folder, {}, "3 labels"),
        (tiny_encoder_dir, {"encoder": {"num_labels": 1}}, "lack classifier.*reading='question'"),
        (with_head()[2], {"packing": "isolated"}, "packing='joint'"),
        (with_head()[2], {"variant": "g1"}, "variant is 'g1'"),
        (decoder, {}, "'gpt2' is not a text encoder of a supported kind"),
        (with_head()[2], {"reading": "decoder"}, "reading is 'decoder'"),
    ]:
        with pytest.raises(ValueError, match=message):
            start(place, **({"reading": "head"} | READOUT | settings))
    model = start(with_head()[2], reading="head", **READOUT)
    shared = EvidenceProcessor(model.processor.tokenizer)(QUESTION, PASSAGES)
    with pytest.raises(ValueError, match="packing='pair'"):
        model(**shared)
    with pytest.raises(ValueError, match="reading is 'head'"):
        export_onnx(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
