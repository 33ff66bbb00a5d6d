"""Re-expresses a BERT checkpoint as a RoBERTa, a Longformer, a LED, or an encoder-decoder.

    python training/convert_bert.py sentence-transformers/all-MiniLM-L6-v2 models/minilm-led --to led

Readers of long inputs and Fusion-in-Decoder so start from pretrained weights that are on this machine. SOURCE is a
folder or a Hub id of a BERT with any head, OUT a folder that is new or empty. The encoder computes what BERT computes
for text of token type 0: the largest difference of the last hidden states is measured on the written checkpoint and
printed, and a conversion that differs by more than its tolerance is not kept.

roberta          Every weight, token types too. Position p of BERT is row p + 1 + pad_token_id. Exact.
longformer       As RoBERTa. The projections of global attention are copies of the local ones, and positions past
                 BERT's are copies of BERT's, tile by tile. Equal up to rounding for a text that half an attention
                 window covers.
led              The same in the form of LED's encoder, which has no token types: type 0 is added to the positions. Its
                 LayerNorm has a fixed eps of 1e-5 where BERT's has 1e-12, which moves states by about 1e-3.
encoder-decoder  An `EncoderDecoderModel` whose encoder is BERT itself. Exact.

The decoder of the last two has the last N = --decoder-layers layers of BERT: self-attention, feed-forward and norms as
they are, and a cross-attention with the weights of the layer's self-attention, which fits states of that encoder. Word
and position embeddings are the encoder's. The LM head is tied to the words; its transform (encoder-decoder only) comes
from the masked-LM head of SOURCE, or is fresh where SOURCE has none. Such a decoder is a start for training and writes
nothing sensible before it. It begins with [CLS] and ends with [SEP].
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertLMHeadModel,
    BertModel,
    EncoderDecoderModel,
    GenerationConfig,
    LEDConfig,
    LEDForConditionalGeneration,
    LongformerConfig,
    LongformerModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)
from transformers.utils import logging

from warrant_hf.modeling.base_weights import find_backbone

# Target -> largest difference of a hidden state from BERT's that is rounding, or LED's eps.
TOLERANCES = {"roberta": 1e-5, "longformer": 1e-4, "led": 5e-3, "encoder-decoder": 1e-5}
LONGEST = {"longformer": 4096, "led": 16384}
_SENTENCES = (
    "Who wrote Emma?",
    "Emma is a novel by Jane Austen, published in December 1815.",
    "The river Avon rises near Naseby; it joins the Severn at Tewkesbury, 154 km from its source.",
    "x",
)


def convert(source, out, to, *, max_positions=None, attention_window=256, decoder_layers=2) -> float:
    """Writes the converted checkpoint with its tokenizer to `out`.

    Args:
        source (`str` or `Path`): folder or Hub id of a BERT checkpoint.
        out (`str` or `Path`): folder that is new or empty.
        to (`str`): `"roberta"`, `"longformer"`, `"led"` or `"encoder-decoder"`.
        max_positions (`int`, *optional*): tokens that a Longformer (4096) or LED (16384) encoder reaches.
        attention_window (`int`): of Longformer and LED, half of it to each side.
        decoder_layers (`int`): of LED and encoder-decoder.

    Returns:
        The largest difference between a hidden state of the written encoder and one of BERT.

    Raises:
        OSError: the source is not on this machine, or has no safetensors file.
        ValueError: it is no BERT, a setting cannot be used, or `out` holds files.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"OUT is {out}, which is not an empty folder; give a new one.")
    place = find_backbone(str(source))
    bert, tokenizer = _load(place, source)
    max_positions = _check(to, bert.config, max_positions, attention_window, decoder_layers)
    torch.manual_seed(0)
    if to == "roberta":
        model = _roberta(bert.bert, tokenizer)
    elif to == "longformer":
        model = _longformer(bert.bert, tokenizer, max_positions, attention_window)
    elif to == "led":
        model = _led(bert.bert, tokenizer, max_positions, attention_window, decoder_layers)
    else:
        model = _encoder_decoder(bert, tokenizer, decoder_layers)
    tokenizer.model_max_length = max_positions or bert.config.max_position_embeddings

    # Written beside `out` and moved, so that `out` never holds half a checkpoint.
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.absolute().name}.", dir=out.absolute().parent))
    try:
        model.eval().save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        length = attention_window // 2 if to in LONGEST else bert.config.max_position_embeddings
        difference = difference_from_bert(partial, place, length)
        if not difference <= TOLERANCES[to]:
            raise ValueError(
                f"The {to} differs from the BERT in {source} by {difference:.1e}, more than {TOLERANCES[to]:.0e}; its "
                "weights are of a kind that this conversion does not cover, take another checkpoint."
            )
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return difference


@torch.no_grad()
def difference_from_bert(folder, source, length) -> float:
    """Largest difference of the last hidden states, on sentences of at most `length` tokens, padded to each other."""
    bert = BertModel.from_pretrained(source, use_safetensors=True, dtype=torch.float32).eval()
    kind = EncoderDecoderModel if AutoConfig.from_pretrained(folder).model_type == "encoder-decoder" else AutoModel
    model = kind.from_pretrained(folder, use_safetensors=True, dtype=torch.float32).eval()
    expected_inputs, inputs = (
        AutoTokenizer.from_pretrained(place)(
            list(_SENTENCES), truncation=True, max_length=length, padding=True, return_tensors="pt"
        )
        for place in (source, folder)
    )
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    real = inputs["attention_mask"].bool()
    if not torch.equal(inputs["input_ids"], expected_inputs["input_ids"]):
        raise ValueError(f"The tokenizer of {source} reads text otherwise once it is saved; give one of BERT's kind.")
    expected = bert(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    if hasattr(model.config, "attention_window"):  # both attentions are held to it
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][:, ::3] = 1
    found = encoder(**inputs).last_hidden_state
    return float((found - expected)[real].abs().max())


def _load(place, source):
    """BERT with every head that SOURCE has, and its tokenizer as a plain fast one."""
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except OSError as error:
        raise OSError(
            f"SOURCE is {source}, which is neither a folder with a config.json nor in the Hub cache; check the name, "
            "or load it once with a network."
        ) from error
    if config.model_type != "bert":
        raise ValueError(f"SOURCE is {source}, a {config.model_type!r} model; give a BERT checkpoint.")
    bert, info = BertForPreTraining.from_pretrained(
        place, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    lacking = [name for name in info["missing_keys"] if name.startswith(("bert.embeddings", "bert.encoder"))]
    if lacking:
        raise ValueError(f"SOURCE is {source}, whose weights lack {min(lacking)}; give a complete BERT checkpoint.")
    config._name_or_path = str(source)  # and not the place of a packaged copy on this machine
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    tokenizer.backend_tokenizer.no_truncation()  # sentence-transformers saves its own, which is shorter than the model
    tokenizer.backend_tokenizer.no_padding()
    if len(tokenizer) < config.vocab_size // 2:  # made up, because its files are missing
        raise ValueError(
            f"SOURCE is {source}, whose tokenizer has {len(tokenizer)} tokens for a vocabulary of "
            f"{config.vocab_size}; add its tokenizer.json or vocab.txt."
        )
    # Without the name of a class that transformers would take for the tokenizer of the new model type.
    special = {name: getattr(tokenizer, f"{name}_token") for name in ("unk", "cls", "sep", "pad", "mask")}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in special.items()},
    )
    return bert, tokenizer


def _check(to, config, max_positions, attention_window, decoder_layers):
    """Positions of the new encoder, or `None` for BERT's own."""
    if to not in TOLERANCES:
        raise ValueError(f"to is {to!r}; choose one of {', '.join(map(repr, TOLERANCES))}.")
    if not 1 <= decoder_layers <= config.num_hidden_layers:
        raise ValueError(
            f"decoder_layers is {decoder_layers}; give 1 to {config.num_hidden_layers}, the layers of the source."
        )
    if to not in LONGEST:
        if max_positions is not None:
            raise ValueError(f"max_positions is {max_positions}, but {to} keeps the positions of BERT; leave it out.")
        return None
    if attention_window < 2 or attention_window % 2:
        raise ValueError(f"attention_window is {attention_window}; it must be even and 2 or more.")
    max_positions = LONGEST[to] if max_positions is None else max_positions
    if max_positions < attention_window or max_positions % attention_window:
        raise ValueError(
            f"max_positions is {max_positions}; it must be a multiple of attention_window ({attention_window})."
        )
    return max_positions


def _special_ids(tokenizer):
    ids = {"pad_token_id": tokenizer.pad_token_id}
    return ids | {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}


def _shared_fields(config):
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "type_vocab_size",
        "initializer_range",
        "layer_norm_eps",
    )
    return {name: getattr(config, name) for name in names}


def _tiled(table, rows):
    """`[P, D]` -> `[rows, D]`: the table again and again."""
    return table.repeat(-(-rows // len(table)), 1)[:rows]


def _with_offset(table, padding):
    """Rows of position 0, 1, ... behind those up to the one of padding, which RoBERTa and Longformer do not read."""
    return torch.cat([torch.zeros(padding + 1, table.shape[1]), table])


def _roberta(bert, tokenizer):
    ids, weights = _special_ids(tokenizer), bert.state_dict()
    table = _with_offset(weights["embeddings.position_embeddings.weight"], ids["pad_token_id"])
    model = RobertaModel(RobertaConfig(**_shared_fields(bert.config), **ids, max_position_embeddings=len(table)))
    return _filled(model, weights | {"embeddings.position_embeddings.weight": table})


def _longformer(bert, tokenizer, max_positions, attention_window):
    ids, weights = _special_ids(tokenizer), bert.state_dict()
    positions = _tiled(weights["embeddings.position_embeddings.weight"], max_positions)
    table = _with_offset(positions, ids["pad_token_id"])
    config = LongformerConfig(
        **_shared_fields(bert.config),
        **ids,
        sep_token_id=tokenizer.sep_token_id,
        max_position_embeddings=len(table),
        attention_window=attention_window,
    )
    weights["embeddings.position_embeddings.weight"] = table
    for name, value in list(weights.items()):
        part = name.rsplit(".", 2)[-2]
        if ".attention.self." in name:
            weights[name.replace(f".{part}.", f".{part}_global.")] = value
    return _filled(LongformerModel(config), weights)


def _filled(model, weights):
    """The model with all its weights from `weights`; buffers of BERT that it lacks are left out."""
    model.load_state_dict({name: value for name, value in weights.items() if name in model.state_dict()})
    return model


def _led(bert, tokenizer, max_positions, attention_window, decoder_layers):
    source = bert.config
    config = LEDConfig(
        vocab_size=source.vocab_size,
        d_model=source.hidden_size,
        encoder_layers=source.num_hidden_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=source.num_attention_heads,
        decoder_attention_heads=source.num_attention_heads,
        encoder_ffn_dim=source.intermediate_size,
        decoder_ffn_dim=source.intermediate_size,
        activation_function=source.hidden_act,
        dropout=source.hidden_dropout_prob,
        attention_dropout=source.attention_probs_dropout_prob,
        init_std=source.initializer_range,
        max_encoder_position_embeddings=max_positions,
        max_decoder_position_embeddings=source.max_position_embeddings,
        attention_window=attention_window,
        decoder_start_token_id=tokenizer.cls_token_id,
        **_special_ids(tokenizer),
    )
    model = LEDForConditionalGeneration(config)
    positions = bert.embeddings.position_embeddings.weight + bert.embeddings.token_type_embeddings.weight[:1]
    with torch.no_grad():
        model.led.shared.weight.copy_(bert.embeddings.word_embeddings.weight)
        for half in (model.led.encoder, model.led.decoder):
            half.embed_positions.weight.copy_(_tiled(positions, len(half.embed_positions.weight)))
            _copy(half.layernorm_embedding, bert.embeddings.LayerNorm)
    for layer, of in zip(model.led.encoder.layers, bert.encoder.layer):
        attention = layer.self_attn.longformer_self_attn
        for name in ("query", "key", "value"):
            for target in (name, f"{name}_global"):
                _copy(getattr(attention, target), getattr(of.attention.self, name))
        _copy(layer.self_attn.output, of.attention.output.dense)
        _copy_rest(layer, of)
    for layer, of in zip(model.led.decoder.layers, bert.encoder.layer[-decoder_layers:]):
        for attention, norm in (
            (layer.self_attn, layer.self_attn_layer_norm),
            (layer.encoder_attn, layer.encoder_attn_layer_norm),
        ):
            for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
                _copy(getattr(attention, f"{letter}_proj"), getattr(of.attention.self, name))
            _copy(attention.out_proj, of.attention.output.dense)
            _copy(norm, of.attention.output.LayerNorm)
        _copy_rest(layer, of)
    _starts_with_cls(model, tokenizer)
    return model


def _copy_rest(layer, of):
    """What follows the self-attention in a layer of LED, from a layer of BERT."""
    _copy(layer.self_attn_layer_norm, of.attention.output.LayerNorm)
    _copy(layer.fc1, of.intermediate.dense)
    _copy(layer.fc2, of.output.dense)
    _copy(layer.final_layer_norm, of.output.LayerNorm)


def _copy(module: nn.Module, source: nn.Module):
    module.load_state_dict(source.state_dict())


def _encoder_decoder(bert, tokenizer, decoder_layers):
    config = BertConfig(**_shared_fields(bert.config), **_special_ids(tokenizer))
    config.max_position_embeddings = bert.config.max_position_embeddings
    config.num_hidden_layers, config.is_decoder, config.add_cross_attention = decoder_layers, True, True
    decoder = BertLMHeadModel(config)
    _copy(decoder.bert.embeddings, bert.bert.embeddings)
    for layer, of in zip(decoder.bert.encoder.layer, bert.bert.encoder.layer[-decoder_layers:]):
        layer.load_state_dict(of.state_dict(), strict=False)
        _copy(layer.crossattention, of.attention)
    _copy(decoder.cls.predictions, bert.cls.predictions)
    model = EncoderDecoderModel(encoder=bert.bert, decoder=decoder)
    model.config.decoder_start_token_id = tokenizer.cls_token_id
    model.config.pad_token_id, model.config.eos_token_id = tokenizer.pad_token_id, tokenizer.sep_token_id
    model.config.vocab_size = bert.config.vocab_size
    _starts_with_cls(model, tokenizer)
    return model


def _starts_with_cls(model, tokenizer):
    ids = _special_ids(tokenizer) | {"decoder_start_token_id": tokenizer.cls_token_id}
    model.generation_config = GenerationConfig(**ids, max_new_tokens=32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--to", choices=list(TOLERANCES), required=True)
    parser.add_argument("--max-positions", type=int, help="longformer (default 4096) and led (default 16384)")
    parser.add_argument("--attention-window", type=int, default=256, help="longformer and led (default 256)")
    parser.add_argument("--decoder-layers", type=int, default=2, help="led and encoder-decoder (default 2)")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        difference = convert(**vars(arguments))
    except (OSError, ValueError, SafetensorError) as error:
        sys.exit(str(error))
    print(
        f"{arguments.out}: {arguments.to} of {arguments.source}; hidden states differ from BERT's by at most "
        f"{difference:.1e} (tolerance {TOLERANCES[arguments.to]:.0e})"
    )


if __name__ == "__main__":
    main()
