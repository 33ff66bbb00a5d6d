"""Tiny random models of every family that the attention keys are tested on, with a padded batch for each."""

import torch
from transformers import AutoConfig, AutoModel

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | IDS
ENCODER = SIZES | {"intermediate_size": 48, "max_position_embeddings": 40}
DECODER = ENCODER | {"num_key_value_heads": 2}
T5 = IDS | {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = IDS | {"vocab_size": 60, "d_model": 32, "max_position_embeddings": 40, "decoder_start_token_id": 1}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 48}

#: Model type -> fields of its config.
FAMILIES = {
    "bert": ENCODER,
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "modernbert": ENCODER | {"local_attention": 6, "global_attn_every_n_layers": 2},
    "t5": T5 | {"decoder_start_token_id": 0},
    "bart": BART,
    "llama": DECODER,
    "qwen2": DECODER,
}
SEQ2SEQ, DECODERS = ("t5", "bart"), ("llama", "qwen2")


def config_of(kind, **changes):
    return AutoConfig.for_model(kind, **(FAMILIES[kind] | changes))


def build(kind, key, auto_class=AutoModel, power=None, **changes):
    """A random model in evaluation mode, the same for every attention key."""
    config = config_of(kind, **changes)
    if power is not None:
        config.maa_power = power
    torch.manual_seed(0)
    model = auto_class.from_config(config, attn_implementation=key).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # sharper attention than that of fresh weights
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def batch_of(kind, padding="right"):
    """Three rows, one of them padded, and which positions of the output are real."""
    ids = torch.randint(3, 60, (3, 11), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[0, 7:] = 0
    elif padding == "left":
        mask[0, :4] = 0
    batch = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    if kind not in SEQ2SEQ:
        return batch, mask.bool()
    batch["decoder_input_ids"] = ids[:, :5]
    return batch, torch.ones(3, 5, dtype=torch.bool)


def states(model, batch, **kwargs):
    with torch.no_grad():
        return model(**batch, **kwargs)
