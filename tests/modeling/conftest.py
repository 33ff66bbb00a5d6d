"""Tiny random selectors on every encoder family that we support, with tokenizers built in code."""

import pytest


def byte_tokenizer():
    """A byte-level BPE without merges: RoBERTa's special tokens, one token per UTF-8 byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True),
    )


def piece_tokenizer():
    """A Unigram model as in XLM-R: its special tokens are pieces of the vocabulary, and the likeliest ones."""
    import string

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    letters = [(letter, -4.0) for letter in "▁" + string.ascii_letters + string.digits + string.punctuation]
    tokenizer = Tokenizer(models.Unigram([*specials, *letters, ("<mask>", 0.0)], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def tiny_encoder_config(kind, vocabulary):
    """Two layers, 32 wide, 512 positions for text, of model type `kind`."""
    from transformers import AutoConfig

    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 514 if kind in ("roberta", "xlm-roberta", "mpnet") else 512,
    }
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    kinds = {
        "bert": {"pad_token_id": 0},
        "roberta": {"type_vocab_size": 1},
        "xlm-roberta": {"type_vocab_size": 1},
        "mpnet": {},
        "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2},
        "deberta-v2": {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 16,
            "position_biased_input": False,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "type_vocab_size": 0,
        },
    }
    return AutoConfig.for_model(kind, **(sizes | ids | kinds[kind]))


def randomize(model, seed=0):
    """Moves every weight far from the initial state, where all gates are equal and all states are alike."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


TOKENIZERS = {"bert": "character", "xlm-roberta": "piece", "deberta-v2": "piece"}


@pytest.fixture(scope="session")
def tokenizers():
    """Tokenizers by name: `character` (WordPiece), `byte` (BPE) and `piece` (Unigram)."""
    from tests.conftest import character_tokenizer

    return {"character": character_tokenizer, "byte": byte_tokenizer, "piece": piece_tokenizer}


@pytest.fixture(scope="session")
def selector(tokenizers):
    """`selector(kind, max_length=..., attention_heads=..., **config)`: a random selector in evaluation mode, with its
    processor."""
    import torch

    from warrant_hf import EvidenceProcessor, WarrantEncoderConfig, WarrantEncoderForEvidenceSelection

    def build(kind="bert", max_length=512, max_question_tokens=30, attention_heads=2, **config):
        torch.manual_seed(0)
        tokenizer = tokenizers[TOKENIZERS.get(kind, "byte")]()
        backbone = tiny_encoder_config(kind, len(tokenizer))
        backbone.num_attention_heads = attention_heads
        packing = "joint" if kind == "deberta-v2" else "isolated"
        settings = {"packing": packing, "readout_size": 32, "readout_heads": 2, "gate_size": 16} | config
        model = WarrantEncoderForEvidenceSelection(WarrantEncoderConfig(backbone_config=backbone, **settings))
        model.processor = EvidenceProcessor(tokenizer, max_length, max_question_tokens)
        return randomize(model).eval()

    return build


def long_backbone_config(kind, vocabulary, **changes):
    """A LED (encoder and decoder) or Longformer of two layers, 32 wide, 512 positions, windows of 16 tokens."""
    from transformers import LEDConfig, LongformerConfig

    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    if kind == "longformer":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        more = {"max_position_embeddings": 514, "attention_window": 16, "type_vocab_size": 1}
        return LongformerConfig(**({"vocab_size": vocabulary} | sizes | ids | more | changes))
    sizes = {"d_model": 32, "max_encoder_position_embeddings": 512, "max_decoder_position_embeddings": 64}
    for half in ("encoder", "decoder"):
        sizes |= {f"{half}_layers": 2, f"{half}_attention_heads": 2, f"{half}_ffn_dim": 64}
    return LEDConfig(**({"vocab_size": vocabulary, "attention_window": 16} | sizes | ids | changes))


@pytest.fixture(scope="session")
def long_selector(tokenizers):
    """`long_selector(kind, reading, max_length=..., backbone={}, **config)`: a random LED or Longformer selector."""
    import torch

    from warrant_hf import EvidenceProcessor, WarrantLEDConfig, WarrantLEDForEvidenceSelection

    def build(kind="led", reading="question", max_length=512, backbone=None, **config):
        torch.manual_seed(0)
        tokenizer = tokenizers["byte"]()
        settings = {"readout_size": 32, "readout_heads": 2, "gate_size": 16, "reading": reading} | config
        chosen = long_backbone_config(kind, len(tokenizer), **(backbone or {}))
        model = WarrantLEDForEvidenceSelection(WarrantLEDConfig(backbone_config=chosen, **settings))
        model.processor = EvidenceProcessor(tokenizer, max_length, max_question_tokens=30)
        return randomize(model).eval()

    return build


IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


def seq2seq_config(kind, vocabulary):
    """An encoder-decoder of two layers each, 32 wide: of the T5 or BART family, or of two encoders (`a to b`)."""
    from transformers import AutoConfig, EncoderDecoderConfig

    if kind in ("t5", "mt5", "umt5"):
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1}
        return AutoConfig.for_model(kind, vocab_size=vocabulary, **(sizes | IDS))
    if kind != "encoder-decoder" and " to " not in kind:
        sizes = {"d_model": 32, "max_position_embeddings": 512, "decoder_start_token_id": 2}
        for half in ("encoder", "decoder"):
            sizes |= {f"{half}_layers": 2, f"{half}_attention_heads": 4, f"{half}_ffn_dim": 48}
        return AutoConfig.for_model(kind, vocab_size=vocabulary, **(sizes | IDS))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 514, "vocab_size": vocabulary}
    names = kind.split(" to ") if " to " in kind else ("roberta", "roberta")
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        *(AutoConfig.for_model(name, **(sizes | IDS)) for name in names)
    )
    for name, value in (IDS | {"decoder_start_token_id": 0}).items():
        setattr(config, name, value)
    return config


@pytest.fixture(scope="session")
def fid_selector(tokenizers):
    """`fid_selector(kind, max_length=..., **config)`: a random Fusion-in-Decoder selector, with its processor."""
    import torch

    from warrant_hf import EvidenceProcessor, WarrantFiDConfig, WarrantFiDForEvidenceSelection

    def build(kind="t5", max_length=128, **config):
        torch.manual_seed(0)
        tokenizer = tokenizers["byte"]()
        settings = {"readout_size": 32, "readout_heads": 2, "gate_size": 16} | config
        backbone = seq2seq_config(kind, len(tokenizer))
        model = WarrantFiDForEvidenceSelection(WarrantFiDConfig(backbone_config=backbone, **settings))
        model.processor = EvidenceProcessor(tokenizer, max_length, 30, **model.processor_settings())
        return randomize(model).eval()

    return build


@pytest.fixture(scope="session")
def reader(selector, fid_selector, long_selector):
    """`reader(name, **config)`: a random selector of one of the three readers."""
    build = {"encoder": selector, "fid": fid_selector, "led": long_selector}
    return lambda name, **config: build[name](**config)
