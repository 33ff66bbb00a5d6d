"""Fusion-in-Decoder on encoder-decoders of three families: a permission acts inside the cross-attention."""

import re
from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, T5Config
from transformers.modeling_outputs import BaseModelOutput

from warrant_hf import (
    AutoModelForEvidenceSelection,
    EvidenceCollator,
    EvidenceProcessor,
    EvidenceWorld,
    WarrantFiDConfig,
    WarrantFiDForEvidenceSelection,
)
from warrant_hf.modeling import modeling_fid

KINDS = ["t5", "bart", "encoder-decoder"]
QUESTION = "who wrote emma?"
PASSAGES = ["jane austen wrote emma.", {"title": "stone", "text": "an actress"}, "a longer passage about nothing"]


def plain_generate(model, batch, **settings):
    """Fusion-in-Decoder as anyone would write it with transformers: no gates, no code of ours behind the encoder."""
    stock = AutoModelForSeq2SeqLM.from_config(
        deepcopy(model.config.backbone_config), attn_implementation="sdpa"
    ).eval()
    stock.load_state_dict(model.backbone.state_dict())
    ids, segments = batch["input_ids"][0], batch["segment_ids"][0]
    mask = (segments >= 0).long()
    encoder = getattr(model.config.backbone_config, "encoder", None)
    extra = {"token_type_ids": (segments > 0).long()} if getattr(encoder, "type_vocab_size", 0) > 1 else {}
    with torch.no_grad():
        states = stock.get_encoder()(input_ids=ids, attention_mask=mask, **extra).last_hidden_state
        return stock.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states.flatten(0, 1).unsqueeze(0)),
            attention_mask=mask.flatten().unsqueeze(0),
            **settings,
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_open_gates_are_plain_fusion_in_decoder(fid_selector, kind, settings):
    model = fid_selector(kind)
    batch = model.processor(QUESTION, PASSAGES)
    settings = settings | {"max_new_tokens": 8, "do_sample": False}
    ones = torch.ones(batch["candidate_mask"].shape)
    assert model.generate(**batch, permission_override=ones, **settings).tolist() == (
        plain_generate(model, batch, **settings).tolist()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_closed_passage_is_out_of_the_decoder(fid_selector, kind):
    """Whatever a closed passage says, the values that the decoder gets are the same."""
    model = fid_selector(kind)
    batch = model.processor(QUESTION, PASSAGES)
    closed = torch.tensor([[float("nan"), 0.0, float("nan")]])
    labels = model.processor.encode_answers(["an answer"])
    with torch.no_grad():
        states = model.encode(batch["input_ids"], batch["segment_ids"])
        gate = model.readout.permission(
            model._pool_windows(states, batch["segment_ids"], batch["item_candidates"]),
            batch["item_candidates"],
            batch["candidate_mask"],
            closed,
        )
        assert gate[0, 1] == 0
        losses = [
            model._answer_loss(states, batch["segment_ids"], g, labels).item()
            for g in (gate, torch.where(gate == 0, 0.5, gate))
        ]
    assert losses[0] != pytest.approx(losses[1], abs=1e-6)
    attentions = [module for module in model.backbone.modules() if getattr(module, "_takes_key_permission", False)]
    assert len(attentions) == 2  # the cross-attention of each decoder layer, and no other
    seen = []
    hooks = [module.register_forward_hook(lambda m, a, output: seen.append(output[0])) for module in attentions]
    shifted = states.clone()
    inside = batch["segment_ids"][0, 1] >= 0
    with torch.no_grad():
        model.backbone(decoder_input_ids=torch.tensor([[1]]), **model._fused(states, batch["segment_ids"], gate * 0))
        shifted[0, 1, inside] += 3.0
        model.backbone(decoder_input_ids=torch.tensor([[1]]), **model._fused(shifted, batch["segment_ids"], gate * 0))
    for hook in hooks:
        hook.remove()
    for first, second in zip(seen[:2], seen[2:]):
        torch.testing.assert_close(first, second)


FAMILIES = [*modeling_fid.KINDS, *(f"bert to {kind}" for kind in modeling_fid.DECODERS)]


@pytest.mark.parametrize("kind", FAMILIES)
def test_closed_gates_reach_the_decoder_of_every_family(fid_selector, kind):
    """With every gate closed the decoder says the same whatever the passages hold; with open gates it does not."""
    model = fid_selector(kind)
    start = torch.tensor([[model.config.backbone_config.decoder_start_token_id, 7, 8]])
    logits = {}
    for texts in (PASSAGES, [text if isinstance(text, str) else text["text"] for text in PASSAGES[::-1]]):
        batch = model.processor(QUESTION, texts)
        with torch.no_grad():
            states = model.encode(batch["input_ids"], batch["segment_ids"])
            for value in (0.0, 1.0):
                fused = model._fused(states, batch["segment_ids"], torch.full((1, 3), value))
                logits.setdefault(value, []).append(model.backbone(decoder_input_ids=start, **fused).logits)
    torch.testing.assert_close(*logits[0.0])
    assert not torch.allclose(*logits[1.0], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_of_the_stock_decoder(fid_selector, kind):
    model = fid_selector(kind)
    batch = model.processor(QUESTION, PASSAGES)
    stock = AutoModelForSeq2SeqLM.from_config(
        deepcopy(model.config.backbone_config), attn_implementation="eager"
    ).eval()
    stock.load_state_dict(model.backbone.state_dict())
    mask = (batch["segment_ids"] >= 0).long()
    with torch.no_grad():
        states = model.encode(batch["input_ids"], batch["segment_ids"])
        start = torch.tensor([[model.config.backbone_config.decoder_start_token_id]])
        decoded = stock(
            encoder_outputs=BaseModelOutput(last_hidden_state=states.flatten(1, 2)),
            attention_mask=mask.flatten(1),
            decoder_input_ids=start,
            output_attentions=True,
        )
        expected = decoded.cross_attentions[-1][0, :, 0].mean(0).view(3, -1).sum(-1)
        found = model(**batch).attention[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_answer_beside_evidence(fid_selector):
    model = fid_selector("t5")
    result = model.answer(QUESTION, PASSAGES, max_new_tokens=5)
    assert isinstance(result["answer"], str)
    assert {key: value for key, value in result.items() if key != "answer"} == model.rank(QUESTION, PASSAGES)
    assert model.answer(QUESTION, PASSAGES, return_tokens=True, max_new_tokens=1)["evidence"][0]["tokens"]
    several = model.answer_batch([QUESTION, "b?", "c?"], [PASSAGES, [], PASSAGES[:1]], max_new_tokens=5)
    assert several[0]["answer"] == result["answer"] and several[1]["answer"] == ""
    assert [len(one["evidence"]) for one in several] == [3, 0, 1]
    masked = model.answer(QUESTION, PASSAGES, revoke=[1], revoke_by="mask", max_new_tokens=5)
    assert masked["answer"] == model.answer(QUESTION, PASSAGES[::2], max_new_tokens=5)["answer"]


def test_states_can_be_used_again_for_the_same_question(fid_selector):
    model = fid_selector("bart")
    batch = model.processor(QUESTION, PASSAGES)
    with torch.no_grad():
        states = model.encode(batch["input_ids"], batch["segment_ids"])
        for override in (None, torch.tensor([[0.3, 1.0, 0.0]])):
            fresh = model(**batch, permission_override=override)
            again = model(**batch, permission_override=override, encoder_states=states)
            torch.testing.assert_close(again.logits, fresh.logits)


def test_passages_are_encoded_in_groups(fid_selector):
    model = fid_selector("t5", encode_batch_size=3)
    sizes = []
    hook = model._encoder().register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    many = [f"passage number {at}" for at in range(8)]
    result = model.rank(QUESTION, many)
    hook.remove()
    assert sizes == [3, 3, 2]
    whole = fid_selector("t5", encode_batch_size=100).rank(QUESTION, many)
    for one, other in zip(result["evidence"], whole["evidence"]):
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


def test_answers_in_a_batch(fid_selector):
    model = fid_selector("t5", answer_weight=0.5).train()
    row = {"question": QUESTION, "passages": PASSAGES, "labels": [1, 0, 0]}
    batch = EvidenceCollator(model.processor)([row | {"answer": "jane"}, row])
    assert batch["answer_labels"][1].tolist() == [-100] * batch["answer_labels"].shape[1]
    with_answer, without = model.eval()(**batch).loss, model(**(batch | {"answer_labels": None})).loss
    assert with_answer > without
    assert "answer_labels" not in EvidenceCollator(fid_selector("t5").processor)([row])
    with pytest.raises(ValueError, match="row 0 of the batch has the answer 5; give a text, or leave it out"):
        EvidenceCollator(model.processor)([row | {"answer": 5}])


def test_errors(fid_selector, selector):
    model = fid_selector("t5")
    packed = selector("roberta").processor(QUESTION, PASSAGES)
    with pytest.raises(ValueError, match="takes one item per window, in order; make the processor"):
        model(**packed)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="under which no permission acts; call model.set_attn_implementation"):
        model.rank(QUESTION, PASSAGES)
    with pytest.raises(ValueError, match="'bert', which WarrantFiDForEvidenceSelection does not read"):
        WarrantFiDForEvidenceSelection(WarrantFiDConfig(backbone_config={"model_type": "bert"}))
    for unread in ({"model_type": "longt5"}, {"model_type": "prophetnet"}):  # the gate would not reach their decoder
        with pytest.raises(ValueError, match="which WarrantFiDForEvidenceSelection does not read"):
            WarrantFiDForEvidenceSelection(WarrantFiDConfig(backbone_config=unread))
    shared = EvidenceProcessor(model.processor.tokenizer, 128, 30)
    model.set_attn_implementation("warrant")
    with pytest.raises(ValueError, match="takes one item per window, in order"):
        model(**shared([QUESTION, QUESTION], [["a b", "c d"], ["x" * 90, "y" * 90]]))
    with pytest.raises(ValueError, match="no decoder_start_token_id; set the token"):
        WarrantFiDForEvidenceSelection(WarrantFiDConfig(backbone_config=T5Config(decoder_start_token_id=None)))


def test_settings_of_generation_travel(fid_selector, tmp_path, tokenizers):
    plain = AutoModelForSeq2SeqLM.from_config(deepcopy(fid_selector("bart").config.backbone_config))
    plain.generation_config.num_beams, plain.generation_config.no_repeat_ngram_size = 3, 2
    plain.save_pretrained(tmp_path / "base")
    tokenizers["byte"]().save_pretrained(tmp_path / "base")
    model = AutoModelForEvidenceSelection.from_backbone(str(tmp_path / "base"))
    model.save_pretrained(tmp_path / "selector")
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path / "selector")
    for one in (model, loaded):
        settings = one.backbone.generation_config
        assert (settings.num_beams, settings.no_repeat_ngram_size) == (3, 2)
    assert not model.training


def test_one_answer_to_a_question(fid_selector):
    model = fid_selector("bart")
    for name, value in (("num_return_sequences", 2), ("return_dict_in_generate", True)):
        with pytest.raises(ValueError, match=f"{name} is {value}, but there is one answer to a question"):
            model.answer(QUESTION, PASSAGES, **{name: value})
    assert len(model.answer(QUESTION, PASSAGES, max_length=4)["answer"]) <= 4
    with pytest.raises(ValueError, match="max_new_tokens is 700, but the decoder has 512 positions; lower it"):
        model.answer(QUESTION, PASSAGES, max_new_tokens=700)
    model = fid_selector("bart", answer_weight=1.0)
    row = {"question": QUESTION, "passages": PASSAGES, "labels": [1, 0, 0], "answer": "x" * 600}
    with pytest.raises(ValueError, match="An answer has 601 tokens, but the decoder has 512 positions"):
        model(**EvidenceCollator(model.processor)([row]))


def test_layers_are_never_dropped_from_the_reading(fid_selector):
    config = fid_selector("bart").config.backbone_config
    config.decoder_layerdrop = 0.9
    model = WarrantFiDForEvidenceSelection(WarrantFiDConfig(backbone_config=config)).train()
    assert model.backbone.get_decoder().layerdrop == 0


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(fid_selector, kind):
    gradients = []
    for checkpointing in (False, True):
        model = fid_selector(kind, answer_weight=1.0, readout_dropout=0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            for name in ("dropout", "attention_dropout", "activation_dropout", "dropout_rate"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
        if checkpointing:
            model.activation_checkpointing_enable()
        model.train()
        row = {"question": QUESTION, "passages": PASSAGES, "labels": [1, 0, 0], "answer": "jane"}
        model(**EvidenceCollator(model.processor)([row])).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_maa_and_saved_attention(fid_selector, tmp_path):
    plain, model = fid_selector("t5"), fid_selector("t5", attention="maa", maa_power=1.3)
    assert model.backbone.config._attn_implementation == "maa"
    assert (
        model.rank(QUESTION, PASSAGES)["evidence"][0]["score"]
        != plain.rank(QUESTION, PASSAGES)["evidence"][0]["score"]
    )
    model.save_pretrained(tmp_path)
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert loaded.rank(QUESTION, PASSAGES) == model.rank(QUESTION, PASSAGES)


def year_rows(seed, count):
    """One-hop questions for one of 16 years; only the supporting passage names one."""
    rows = []
    for row in EvidenceWorld(seed, hops=(1,), candidates=6, hard=0, missing_rate=0.0).generate(20 * count):
        others = [c for c in row.candidates if not c.label and not re.search(r"\d", c.text)][:2]
        if re.fullmatch(r"\d{4}", str(row.answer)) and len(others) == 2:
            gold = next(c for c in row.candidates if c.label)
            year = str(1900 + int(row.answer) % 16)
            gold = gold.model_copy(update={"text": gold.text.replace(row.answer, year)})
            kept = [*others, gold] if len(rows) % 2 else [gold, *others]
            rows.append(row.with_candidates(kept).model_copy(update={"answer": year}))
    return rows[:count]


@pytest.mark.slow
def test_closing_the_only_support_takes_the_answer_away():
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    rows = year_rows(0, 400)
    texts = [text for row in rows for text in (row.question, *(f"{c.title}: {c.text}" for c in row.candidates))]
    split = pre_tokenizers.BertPreTokenizer()
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text)})
    tokenizer = Tokenizer(
        models.WordLevel({w: at for at, w in enumerate(["<pad>", "</s>", "<unk>", *words])}, "<unk>")
    )
    tokenizer.pre_tokenizer = split
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
    backbone = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    model = WarrantFiDForEvidenceSelection(
        WarrantFiDConfig(backbone_config=backbone, answer_weight=1.0, readout_size=32, readout_heads=2, gate_size=16)
    )
    model.processor = EvidenceProcessor(tokenizer, 64, 24, **model.processor_settings())
    collator = EvidenceCollator(model.processor)
    items = [
        {
            "question": row.question,
            "passages": [c.to_passage() for c in row.candidates],
            "labels": row.labels,
            "answer": row.answer,
        }
        for row in rows
    ]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(10):
        for batch in torch.randperm(len(items), generator=order).split(30):
            loss = model(**collator([items[at] for at in batch])).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    held_out = year_rows(1, 60)
    passages = [[c.to_passage() for c in row.candidates] for row in held_out]
    questions = [row.question for row in held_out]

    def accuracy(**settings):
        answers = model.answer_batch(questions, passages, batch_size=30, max_new_tokens=2, **settings)
        return sum(result["answer"] == row.answer for result, row in zip(answers, held_out)) / len(held_out)

    closed = [[row.labels.index(1)] for row in held_out]
    assert accuracy() >= 0.9
    assert accuracy(revoke=closed) <= 0.2  # chance among 16 years, and three standard errors
