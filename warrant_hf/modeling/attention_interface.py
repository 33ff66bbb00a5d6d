"""The attention keys `"warrant"`, `"maa"` and `"pfa"` for any transformers model that uses `AttentionInterface`.

    >>> import warrant_hf
    >>> model = AutoModel.from_pretrained("roberta-base", attn_implementation="maa")

Importing this module registers them, each with its mask function: a key without one gets no mask at all.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attached_permission import Permit
from .attention_masking import with_causal
from .attention_ops import evidence_attention
from .code_copy import IS_COPY

#: Power of the key "maa" where the config has no `maa_power` (the value chosen on all four folds in MAA, section 5).
DEFAULT_POWER = 1.1
# Fields of a config that count layers; encoder and decoder may differ.
_DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers")
# What the forward pass of a model with a permission can be asked for, as `output_permissions` and `output_masses`.
RECORDS = ("permissions", "masses")
#: Field of a config that records what is attached, and under which key ("attention").
RECORD = "warrant_attention"
#: Arguments of the forward pass that only something attached reads -> what to do where nothing does.
ARGUMENTS = {
    "items": "no permission with granularity 'item' is attached to the model; call attach_permission(model, "
    "granularity='item')",
    "log_precision": "no precision is attached to the model; call attach_precision(model)",
    "key_permission": "no attention of the model takes one; use WarrantFiDForEvidenceSelection",
}
# What some models pass to their attention function, and softmax without it would be another model.
_UNSUPPORTED = ("softcap", "s_aux")


def warrant_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    *,
    power: float = 1.0,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """The attention function behind the keys "warrant" and "pfa": softmax, and whatever is attached to `module`.

    A module without attached permission and precision is handed to transformers' own "sdpa", unless attention
    weights are asked for. What other modules of the model carry does not matter here, so that the three attentions
    of an encoder-decoder are told apart.

    Args:
        module: the attention module that calls; `permission` and `precision` on it are used (see
            [`attach_permission`], [`attach_precision`]).
        query (`[B, H, Q, D]`), key (`[B, Hkv, K, D]`), value (`[B, Hkv, K, Dv]`).
        attention_mask: `None`, `[B, K]` or 4-D, bool or integer (nonzero = may be read), or 4-D floating (added).
        scaling: factor of the dot product; `None` means 1/sqrt(D).
        dropout: on the weights.
        is_causal: `None` takes `module.is_causal`. Used where no 4-D mask is given and Q > 1, as by "sdpa".
        position_bias: added to the logits, `[1 | B, H, Q, K]` (T5).
        power: p of MAA, equation (3).
        kwargs: of the model's forward pass; used are `output_attentions`, `items` (`[B, K]`, for gates per item),
            `log_precision` (`[B, K]`, instead of that of an attached precision), `key_permission` (`[B, K]`, for the
            cross-attention of Fusion-in-Decoder) and `permission_record` (see [`attend`]). The three in the middle are
            refused where nothing in the model reads them.

    Returns:
        The context `[B, Q, H, Dv]`, and the clean weights `[B, H, Q, K]` (before gate and dropout) or `None`.

    Raises:
        ValueError: an argument cannot be honoured, or what is attached lacks its input.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} passes {name} to its attention, which this attention has no place for; load "
                'the model with attn_implementation="eager".'
            )
    for name in RECORDS:
        if kwargs.get(f"output_{name}"):
            raise ValueError(
                f"output_{name} is set, but nothing records it; attach a permission first, and call the model and not "
                "its forward."
            )
    for name, remedy in ARGUMENTS.items():
        if kwargs.get(name) is not None and name not in getattr(module, "_attached_arguments", ()):
            raise ValueError(f"{name} is given, but {remedy}, or leave {name} out.")
    queries = query.shape[2]
    mask = attention_mask
    if mask is not None and mask.dim() == 2:  # as flash attention gets it, also when loaded as a kernel from the Hub
        if mask.is_floating_point():
            raise ValueError(
                "attention_mask is floating and 2-D, which may mean two things; give bool or integers (nonzero = may "
                "be read), or a 4-D mask that is added."
            )
        mask = mask.bool()[:, None, None, :]
    elif mask is not None:
        mask = mask if mask.is_floating_point() else mask.bool()
        is_causal = False  # a 4-D mask says everything
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and queries > 1
    if is_causal and mask is None and key.shape[2] > queries:
        # Only the first call on an empty static cache comes here: what lies behind the queries is not written yet.
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]

    permission, precision = getattr(module, "permission", None), getattr(module, "precision", None)
    need_weights = kwargs.get("output_attentions")
    if need_weights is None:
        need_weights = getattr(getattr(module, "config", None), "output_attentions", False)
    key_permission = kwargs.get("key_permission") if getattr(module, "_takes_key_permission", False) else None
    is_plain = permission is None and precision is None and key_permission is None and power == 1
    if is_plain and not need_weights:
        mask, is_causal = _one_mask(mask, position_bias, is_causal, query, key)
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal
        )
    context, weights = attend(
        query,
        key,
        value,
        mask=mask,
        position_bias=position_bias,
        is_causal=is_causal,
        scale=scaling,
        power=power,
        dropout=dropout,
        permission=permission,
        precision=precision,
        items=kwargs.get("items"),
        log_precision=kwargs.get("log_precision"),
        key_permission=key_permission,
        record=kwargs.get("permission_record"),
        need_weights=need_weights,
    )
    weights = None if weights is None else weights.to(query.dtype)
    return context.transpose(1, 2).contiguous(), weights


def maa_attention_forward(module, query, key, value, attention_mask, **kwargs) -> tuple[Tensor, Tensor | None]:
    """The attention function behind the key "maa": as [`warrant_attention_forward`] with p = `config.maa_power`."""
    return warrant_attention_forward(module, query, key, value, attention_mask, power=power_of(module), **kwargs)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    position_bias: Tensor | None = None,
    power: float = 1.0,
    dropout: float = 0.0,
    permission: nn.Module | None = None,
    precision: nn.Module | None = None,
    items: Tensor | None = None,
    log_precision: Tensor | None = None,
    key_permission: Tensor | None = None,
    record: dict[str, list] | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """[`evidence_attention`] with gates by an [`AttentionPermission`] and log-precisions by a [`PrecisionHead`].

    `key_permission` (`[B, K]`) are gates from elsewhere, the same for all queries, in the place of a permission's.

    Returns the context `[B, H, Q, Dv]` and, if `need_weights`, the clean weights `[B, H, Q, K]`. To the lists in
    `record` it appends, under "permissions", the gates as one tensor, and under "masses" what was allowed to count of
    each row's attention, `[B, H, Q]`: a LayerNorm behind the attention takes that out of the states.
    """
    keep = permit = None
    if permission is not None and key_permission is not None:
        raise ValueError("key_permission is given to an attention with a permission of its own; detach that one.")
    if key_permission is not None:
        permit = Permit(gate=key_permission[:, None, None, :])
    if permission is not None:
        if is_causal and permission.granularity == "item":
            raise ValueError("granularity is 'item', but the attention is causal; use granularity='token'.")
        if permission.reads_mask or (record is not None and "permissions" in record):
            keep = _kept(mask, is_causal, query, key)
        permit = permission(query, key, value, keep=keep, items=items)
    if precision is None:
        log_precision = None
    else:  # the last query of a causal attention reads every key that the mask leaves
        log_precision = precision(value, keep=_kept(mask, False, query, key), given=log_precision)
    if permit is not None and permit.bias is not None:
        position_bias = permit.bias if position_bias is None else position_bias + permit.bias
    mask, is_causal = _one_mask(mask, position_bias, is_causal, query, key)
    if permit is not None and permit.of_value is not None:
        value = (value * permit.of_value).to(value.dtype)
    output = evidence_attention(
        query,
        key,
        value,
        scale=scale,
        mask=mask,
        is_causal=is_causal,
        gate=None if permit is None else permit.gate,
        log_precision=log_precision,
        power=power,
        dropout=dropout,
        return_mass=permit is not None and (permit.is_normalized or (record is not None and "masses" in record)),
        return_weights=need_weights,
    )
    context = output.context
    if permit is not None:
        if permit.is_normalized:
            context = context / output.mass.unsqueeze(-1).clamp(min=torch.finfo(output.mass.dtype).tiny)
        elif permit.stretch != 1:
            context = context * permit.stretch
        if permit.of_output is not None:
            context = context * permit.of_output
        if permit.added is not None:
            context = context + permit.added
        context = context.to(query.dtype)
        if record is not None:
            for name, found in record.items():
                found.append(permit.dense(query, keep) if name == "permissions" else permit.mass(output.mass))
    return context, output.weights


def _kept(mask, is_causal, query, key):
    """What may be read as bool, or `None` for everything."""
    if mask is not None and mask.is_floating_point():
        mask = mask > torch.finfo(mask.dtype).min
    return with_causal(mask, query, key) if is_causal else mask


def _one_mask(mask, position_bias, is_causal, query, key):
    """Mask, position bias and causality as one mask, unless causality is all there is."""
    if mask is None and position_bias is None:
        return None, is_causal
    if position_bias is None:
        is_both = is_causal and mask.dtype == torch.bool
        return (with_causal(mask, query, key), False) if is_both else (mask, is_causal)
    keep = _kept(mask, is_causal, query, key)
    if mask is not None and mask.is_floating_point():
        position_bias = position_bias + mask
    # Not -inf: a row that may read nothing must stay finite in "sdpa".
    floor = torch.finfo(position_bias.dtype).min
    return (position_bias if keep is None else torch.where(keep, position_bias, floor)), False


def evidence_mask(*args, config=None, **kwargs) -> Tensor | None:
    """The mask function of the three keys: bool `[B, 1, Q, K]` as made for "sdpa", or `None` where all is readable.

    Raises:
        ValueError: the model of this config computes its attention itself, so that the key would change nothing.
    """
    if config is not None and not torch.compiler.is_compiling():
        check_interface(config)
    return sdpa_mask(*args, config=config, **kwargs)


def power_of(module: nn.Module) -> float:
    """p of an attention module: `config.maa_power`, its entry for the module's layer if it is a list, or 1.1.

    Raises:
        ValueError: it is no positive number, or a list that does not fit the layers.
    """
    config = getattr(module, "config", None)
    power = getattr(config, "maa_power", DEFAULT_POWER)
    if not isinstance(power, list | tuple):
        return check_power_field(power)
    check_power_list(power, config)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ValueError(
            f"maa_power is a list, but {type(module).__name__} does not know which layer it is in; give one number "
            "for all layers."
        )
    return check_power_field(power[layer])


def check_power_list(power, config) -> None:
    depth = max((n for n in (getattr(config, name, None) for name in _DEPTHS) if isinstance(n, int)), default=None)
    if depth is not None and len(power) != depth:
        raise ValueError(
            f"maa_power has {len(power)} entries, but the model has {depth} layers; give one number each, or one for "
            "all."
        )


def check_power_field(power, name="maa_power") -> float:
    if isinstance(power, bool) or not isinstance(power, int | float) or not 0 < power < math.inf:
        per_layer = ", or a list of one per layer" if name == "maa_power" else ""
        raise ValueError(f"{name} is {power!r}; give a number above 0, such as 1.1{per_layer}.")
    return power


def set_maa_power(model: nn.Module, power: float | list[float]) -> None:
    """Sets `maa_power` in the config of the model and of every part of it; encoder and decoder may have copies.

    The model has to be under the key "maa", which works for models that get their attention function from
    transformers' `AttentionInterface` (BERT, RoBERTa, XLM-R, ModernBERT, T5, BART, Llama, Qwen2 and most others).
    Models that compute attention themselves (DeBERTa, DeBERTa-v2, XLNet, MPNet, LED, Longformer, BigBird, Funnel, ...)
    accept the key when they are loaded and would go on as before. Those that ask transformers for their mask (MPNet,
    LED) raise in the first forward pass, the others (DeBERTa, XLNet) only here and in [`attach_permission`].

    Args:
        model: a transformers model.
        power: p > 0, or a list with one for each layer (of the deeper side, if encoder and decoder differ).

    Raises:
        ValueError: it is no positive number and no list of one per layer; the model computes its attention itself, or
            is not under the key "maa".
    """
    check_model(model)
    is_list = isinstance(power, list | tuple)
    for number in power if is_list else [power]:
        check_power_field(number)
    configs = [getattr(module, "config", None) for module in find_attentions(model).values()]
    keys = sorted({str(getattr(config, "_attn_implementation", None)) for config in configs})
    configs = [config for config in configs if getattr(config, "_attn_implementation", None) == "maa"]
    if not configs:
        raise ValueError(
            f"maa_power does nothing under the attention key {keys[0]!r} of this {type(model).__name__}; call "
            "model.set_attn_implementation('maa') first, or load it with attn_implementation='maa'."
        )
    if is_list:
        for config in configs:
            check_power_list(power, config)
    for module in model.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            module.config.maa_power = list(power) if is_list else power
            record_key(module.config)


def record_key(config) -> None:
    """Writes the attention key beside what is attached, because transformers saves none."""
    record, key = getattr(config, RECORD, None), getattr(config, "_attn_implementation", None)
    if record and key in ATTENTION_KEYS and record.get("attention") != key:
        setattr(config, RECORD, {**record, "attention": key})


def check_model(model) -> None:
    """Raises a `ValueError` unless it is a transformers model, or one in the wrapper of an adapter."""
    is_model = isinstance(model, nn.Module) and hasattr(model, "set_attn_implementation")
    if not is_model or not isinstance(getattr(model, "config", None), PreTrainedConfig):
        raise ValueError(f"model is a {type(model).__name__}; give a transformers model, or use WarrantAttention.")


def uses_interface(kind: type) -> bool:
    """Whether a module class gets its attention function from transformers' `AttentionInterface`."""
    code = getattr(inspect.unwrap(getattr(kind, "forward", None) or kind), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def find_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The attention modules of a model that a key can reach, by name.

    Raises:
        ValueError: there is none.
    """
    found = {name: module for name, module in model.named_modules() if uses_interface(type(module))}
    if not found:
        raise ValueError(_no_interface(type(model).__name__))
    return found


def check_interface(config) -> None:
    """Raises a `ValueError` if models of this config compute their attention themselves (MPNet, LED, DeBERTa, ...)."""
    name = _model_without_interface(type(config))
    if name is not None:
        raise ValueError(_no_interface(name, 'load it with attn_implementation="eager", or '))


@functools.cache
def _model_without_interface(config_class):
    try:
        kind = AutoModel._model_mapping[config_class]
    except KeyError:  # a class that is not transformers' own; it may do as it likes
        return None
    kind = kind[0] if isinstance(kind, tuple) else kind
    parts = [part for part in vars(sys.modules[kind.__module__]).values() if isinstance(part, type)]
    is_reached = any(issubclass(part, nn.Module) and uses_interface(part) for part in parts)
    return None if is_reached else kind.__name__


def _no_interface(name, remedy=""):
    return (
        f"{name} computes its attention itself and not through transformers' AttentionInterface, so nothing can be "
        f"put in its place; {remedy}take a model such as BERT, T5 or Llama."
    )


#: Attention keys. What is attached to a module acts under each of them; "maa" changes the power too.
ATTENTION_KEYS = {
    "warrant": warrant_attention_forward,
    "maa": maa_attention_forward,
    "pfa": warrant_attention_forward,
}

for _key, _function in ATTENTION_KEYS.items():
    if not IS_COPY or _key not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(_key, _function)
        AttentionMaskInterface.register(_key, evidence_mask)

__all__ = [
    "ARGUMENTS",
    "ATTENTION_KEYS",
    "DEFAULT_POWER",
    "RECORD",
    "RECORDS",
    "attend",
    "check_interface",
    "check_model",
    "evidence_mask",
    "find_attentions",
    "maa_attention_forward",
    "power_of",
    "record_key",
    "set_maa_power",
    "uses_interface",
    "warrant_attention_forward",
]
