"""`convert_bert.py` on a random BERT: exactness, special ids, decoders, and what the readers make of it."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, BertConfig, BertModel

from warrant_hf import AutoModelForEvidenceSelection

SCRIPT = Path(__file__).resolve().parents[2] / "training" / "convert_bert.py"
TARGETS = ["roberta", "longformer", "led", "encoder-decoder"]
LONG = {"max_positions": 1024, "attention_window": 16}
SETTINGS = {"roberta": {}, "longformer": LONG, "led": LONG | {"decoder_layers": 1}, "encoder-decoder": {}}
QUESTION, PASSAGES = "who wrote emma?", ["jane austen wrote emma.", {"title": "stone", "text": "an actress"}, "d"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("convert_bert", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Folder of a random 3-layer BERT with a masked-LM head; its tokenizer has a truncation of its own."""
    from tests.conftest import character_tokenizer
    from tests.modeling.conftest import randomize

    tokenizer = character_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    bert = AutoModelForMaskedLM.from_config(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, hidden_act="relu", **sizes)
    )
    folder = tmp_path_factory.mktemp("bert")
    randomize(bert).save_pretrained(folder)
    tokenizer.backend_tokenizer.enable_truncation(20)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def converted(script, source, tmp_path_factory):
    """Target -> (folder, difference)."""
    root = tmp_path_factory.mktemp("converted")
    return {to: (root / to, script.convert(source, root / to, to, **SETTINGS[to])) for to in TARGETS}


def bert_states(source, ids):
    with torch.no_grad():
        return BertModel.from_pretrained(source).eval()(ids).last_hidden_state


@pytest.mark.parametrize("to", TARGETS)
def test_files_and_difference(script, converted, source, to):
    folder, difference = converted[to]
    assert difference <= {"roberta": 1e-6, "encoder-decoder": 0}.get(to, script.TOLERANCES[to])
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    assert not list(folder.parent.glob("*.partial"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = AutoTokenizer.from_pretrained(source)
    for name in ("unk", "cls", "sep", "pad", "mask"):
        assert getattr(tokenizer, f"{name}_token_id") == getattr(given, f"{name}_token_id")
    long = "word " * 60
    assert len(tokenizer(long, verbose=False).input_ids) == 240, (
        "the source's truncation to 20 tokens is not taken over"
    )
    assert tokenizer.model_max_length == SETTINGS[to].get("max_positions", 128)


@pytest.mark.parametrize("to", ["roberta", "longformer", "led"])
def test_a_reader_starts_from_it(converted, source, to):
    """Bare states and padding ids are right, so a selector on it ranks; twins differ in the kind of backbone only."""
    folder, _ = converted[to]
    model = AutoModelForEvidenceSelection.from_backbone(folder, readout_size=32).eval()
    assert model.config.backbone_config.model_type == to
    assert model.longest_input() == SETTINGS[to].get("max_positions", 128)
    assert len(model.rank(QUESTION, PASSAGES)["evidence"]) == 3
    ids = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model.encode(ids, torch.zeros_like(ids))
    torch.testing.assert_close(found, bert_states(source, ids), atol=5e-3 if to == "led" else 1e-5, rtol=0)


def test_roberta_keeps_the_token_types(converted, source):
    bert = AutoModelForEvidenceSelection.from_backbone(source, readout_size=32).eval()
    roberta = AutoModelForEvidenceSelection.from_backbone(converted["roberta"][0], readout_size=32).eval()
    roberta.readout.load_state_dict(bert.readout.state_dict())
    pairs = zip(bert.rank(QUESTION, PASSAGES)["evidence"], roberta.rank(QUESTION, PASSAGES)["evidence"])
    for one, two in pairs:
        assert one["index"] == two["index"] and one["score"] == pytest.approx(two["score"], abs=1e-6)


@pytest.mark.parametrize("to", ["longformer", "led"])
def test_positions_are_tiled_and_global_projections_copied(converted, source, to):
    weights = load_file(converted[to][0] / "model.safetensors")
    table = next(value for name, value in weights.items() if "position" in name and "decoder" not in name)
    table = table[-1024:]  # Longformer has rows for padding before them
    assert torch.equal(table[:128], table[128:256]) and torch.equal(table[:128], table[896:])
    copied = [name for name in weights if "_global" in name]
    assert len(copied) == 3 * 3 * 2
    assert all(torch.equal(weights[name], weights[name.replace("_global", "")]) for name in copied)


def test_longformer_reads_past_the_positions_of_bert(converted):
    model = AutoModelForEvidenceSelection.from_backbone(converted["longformer"][0], readout_size=32).eval()
    (encoded,) = model.processor.encode([QUESTION], [["word " * 100, "x"]])
    assert encoded.input_ids.shape[0] == 1 and encoded.input_ids.shape[1] > 400
    assert len(model.rank(QUESTION, ["word " * 100, "x"])["evidence"]) == 2


@pytest.mark.parametrize("to", ["led", "encoder-decoder"])
def test_decoder(converted, source, to):
    folder, _ = converted[to]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    assert (model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id) == (
        cls,
        sep,
        pad,
    )
    settings = model.generation_config
    assert (settings.decoder_start_token_id, settings.eos_token_id, settings.pad_token_id) == (cls, sep, pad)
    written = model.generate(**tokenizer(QUESTION, return_tensors="pt"), max_new_tokens=3)
    assert written[0, 0] == cls
    bert = load_file(source / "model.safetensors")
    last = "bert.encoder.layer.2.attention.self.key.weight"
    if to == "led":
        layers, own, cross = model.led.decoder.layers, "self_attn.k_proj.weight", "encoder_attn.k_proj.weight"
        words = model.led.decoder.embed_tokens.weight
        assert len(layers) == 1
    else:
        layers, own = model.decoder.bert.encoder.layer, "attention.self.key.weight"
        cross, words = "crossattention.self.key.weight", model.decoder.bert.embeddings.word_embeddings.weight
        assert len(layers) == 2
        transform = "cls.predictions.transform.dense.weight"
        assert torch.equal(model.decoder.state_dict()[transform], bert[transform]), "the head of the source is kept"
    assert all(torch.equal(layers[-1].state_dict()[name], bert[last]) for name in (own, cross))
    assert torch.equal(words, bert["bert.embeddings.word_embeddings.weight"])
    assert model.get_output_embeddings().weight is words


def test_led_decoder_reads(converted):
    model = AutoModelForEvidenceSelection.from_backbone(converted["led"][0], reading="decoder", readout_size=32).eval()
    assert sum(item["attention"] for item in model.rank(QUESTION, PASSAGES)["evidence"]) == pytest.approx(1, abs=1e-5)


def test_out_must_be_empty(script, source, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="OUT is .*, which is not an empty folder; give a new one"):
        script.convert(source, tmp_path, "roberta")
    with pytest.raises(ValueError, match="not an empty folder"):
        script.convert(source, tmp_path / "notes.txt", "roberta")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    script.convert(source, tmp_path / "empty", "roberta")
    assert (tmp_path / "empty" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("to", "settings", "message"),
    [
        ("electra", {}, "to is 'electra'; choose one of 'roberta'"),
        ("roberta", {"max_positions": 600}, "max_positions is 600, but roberta keeps the positions of BERT; leave it"),
        ("led", {"max_positions": 100}, "max_positions is 100; it must be a multiple of attention_window .256."),
        ("led", {"attention_window": 15}, "attention_window is 15; it must be even and 2 or more"),
        ("led", {"decoder_layers": 4}, "decoder_layers is 4; give 1 to 3, the layers of the source"),
    ],
)
def test_bad_settings(script, source, tmp_path, to, settings, message):
    with pytest.raises(ValueError, match=message):
        script.convert(source, tmp_path / "out", to, **settings)
    assert not list(tmp_path.iterdir())


def test_bad_sources(script, converted, source, tmp_path):
    with pytest.raises(ValueError, match="a 'roberta' model; give a BERT checkpoint"):
        script.convert(converted["roberta"][0], tmp_path / "out", "led")
    with pytest.raises(OSError, match="SOURCE is someone/something, which is neither a folder .*; check the name"):
        script.convert("someone/something", tmp_path / "out", "led")
    shutil.copytree(source, tmp_path / "copy")
    weights = load_file(source / "model.safetensors")
    weights.pop("bert.encoder.layer.1.output.dense.weight")
    save_file(weights, tmp_path / "copy" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lack bert.encoder.layer.1.output.dense.weight; give a complete BERT"):
        script.convert(tmp_path / "copy", tmp_path / "out", "roberta")


def test_a_conversion_that_differs_is_not_kept(script, source, tmp_path, monkeypatch):
    monkeypatch.setitem(script.TOLERANCES, "led", 1e-9)
    with pytest.raises(ValueError, match="The led differs from the BERT in .* take another checkpoint"):
        script.convert(source, tmp_path / "out", "led", **SETTINGS["led"])
    assert not list(tmp_path.iterdir())


def test_command_line(script, source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["convert_bert.py", str(source), str(tmp_path / "out"), "--to", "roberta"])
    script.main()
    assert "roberta of" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="not an empty folder"):
        script.main()


def test_source_without_a_tokenizer(script, tmp_path):
    """transformers makes one of special tokens alone, to which every text is unknown."""
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=99
    )
    BertModel(config).save_pretrained(tmp_path / "bare")
    (tmp_path / "out.partial").mkdir()  # somebody's folder
    with pytest.raises((ValueError, OSError), match="tokenizer"):
        script.convert(tmp_path / "bare", tmp_path / "out", "roberta")
    assert {path.name for path in tmp_path.iterdir()} == {"bare", "out.partial"}
