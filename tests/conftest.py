"""Set-up that all tests share: no network, and one small random selector built in code."""

import os

# Before transformers is imported anywhere: a test that needs the Hub fails at once instead of timing out.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
if "PYTEST_XDIST_WORKER" in os.environ:  # processes share the cores, not threads within each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import string

import pytest


def character_tokenizer():
    """A WordPiece tokenizer that knows single ASCII characters: every ASCII text has many pieces and exact offsets."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted(set(string.ascii_lowercase + string.digits + string.punctuation))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters)]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def tiny_backbone_config(vocabulary):
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
    )


@pytest.fixture(scope="session")
def tiny_encoder_dir(tmp_path_factory):
    """Folder of a saved random 2-layer BERT with its tokenizer: what training starts from."""
    import torch
    from transformers import BertModel

    tokenizer = character_tokenizer()
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny_encoder")
    BertModel(tiny_backbone_config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory):
    """Folder of a saved `pair` selector on a random 2-layer BERT, with its processor."""
    import torch

    from warrant_hf import EvidenceProcessor, WarrantEncoderConfig, WarrantEncoderForEvidenceSelection

    tokenizer = character_tokenizer()
    backbone = tiny_backbone_config(len(tokenizer))
    config = WarrantEncoderConfig(backbone_config=backbone, readout_size=32, readout_heads=2, gate_size=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some weights would order some lists the wrong way
        model = WarrantEncoderForEvidenceSelection(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # far from the initial state, where all gates are equal and all states are alike
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    folder = tmp_path_factory.mktemp("tiny_model")
    model.save_pretrained(folder)
    EvidenceProcessor(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_model_dir):
    """The selector of `tiny_model_dir`; do not change it."""
    from warrant_hf import AutoModelForEvidenceSelection

    return AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir).eval()
