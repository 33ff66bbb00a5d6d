"""A pretrained cross-encoder as the start of a selector: its encoder comes over whole, its head stays behind."""

import pytest
import torch
from transformers import BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

from tests.conftest import character_tokenizer, tiny_backbone_config
from warrant_hf import WarrantEncoderForEvidenceSelection

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
