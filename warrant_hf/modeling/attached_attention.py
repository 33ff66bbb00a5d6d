"""Permission and precision as real submodules of a model's attention modules: attached, recorded, saved and loaded.

    >>> model = AutoModelForSequenceClassification.from_pretrained("roberta-base")
    >>> attach_permission(model, layers=[-1])
    ['roberta.encoder.layer.11.attention.self']
    >>> model(**batch, output_permissions=True).permissions[0].shape  # [B, 1, Q, K]

They are ordinary parameters: in the state dict, trained by any optimizer, saved by PEFT with
`modules_to_save=["permission", "precision"]`. The config records what is attached (`config.warrant_attention`).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.utils import cached_file, logging

from .attached_permission import AttentionPermission
from .attention_interface import ATTENTION_KEYS, RECORDS, find_attentions
from .checkpoint_loading import source_arguments
from .precision import PrecisionHead

#: Field of a config that records what is attached.
RECORD = "warrant_attention"
PLACES = ("encoder", "decoder", "cross")
_CROSS = ("EncDecAttention", "encoder_attn", "crossattention")
# Where transformers' attention modules keep their sizes.
_HEAD_SIZE = ("attention_head_size", "key_value_proj_dim", "head_dim")
_HEADS = ("num_attention_heads", "n_heads", "num_heads")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def _make_permission(heads, kv_heads, size, **settings):
    return AttentionPermission(heads, kv_heads, size, **settings)


def _make_precision(heads, kv_heads, size, **settings):
    return PrecisionHead(kv_heads * size, **settings)


# Name of the submodule -> how it is made, and the key that a model is switched to if it has none of ours.
_KINDS = {"permission": (_make_permission, "warrant"), "precision": (_make_precision, "pfa")}


def attach_permission(
    model: PreTrainedModel,
    *,
    layers: list[int] | None = None,
    where: str | None = None,
    control: str = "pair",
    gate: str = "pairwise",
    granularity: str = "token",
    per_head: bool = False,
    hidden_size: int = 64,
    start: float = 1.0,
    leak: float = 0.05,
    max_items: int | None = None,
) -> list[str]:
    """Adds an [`AttentionPermission`] to attention modules of a model, as their submodule `permission`.

    The model is switched to the attention key "warrant", unless it has one of ours; under "sdpa" and "eager" what is
    attached does nothing, which is the ungated control on the same weights. Other layers keep transformers' "sdpa".
    From then on the model takes `output_permissions=True` and returns `permissions`, a tuple of the gates of each
    attached module in the order of computation, `[B, H | 1, Q, K]`, 0 where nothing may be read (for factors per
    channel, the factor); and `output_masses=True` for `masses`, `[B, H, Q]` each, which do not store the gates.

    Args:
        model: any transformers model that uses `AttentionInterface`.
        layers: which layers, negative from the last; `None` for all.
        where: `"encoder"`, `"decoder"` (self-attention each) or `"cross"`; `None` for all that the model has.
        control, gate, granularity, per_head, hidden_size, start, leak, max_items: see [`AttentionPermission`]. With
            `granularity="item"` the forward pass needs `items` (`[B, K]`).

    Returns:
        The names of the attention modules.

    Raises:
        ValueError: the model computes its attention itself, a layer does not exist or has a permission already, or a
            setting is wrong.
    """
    settings = {
        "control": control,
        "gate": gate,
        "granularity": granularity,
        "per_head": per_head,
        "hidden_size": hidden_size,
        "start": start,
        "leak": leak,
        "max_items": max_items,
    }
    return _attach(model, "permission", layers, where, settings)


def attach_precision(
    model: PreTrainedModel,
    *,
    layers: list[int] | None = None,
    where: str | None = None,
    hidden_size: int = 32,
    bound: float = 4.0,
) -> list[str]:
    """Adds a [`PrecisionHead`] to attention modules of a model, as their submodule `precision`.

    The model is switched to the attention key "pfa", unless it has one of ours. `log_precision` (`[B, K]`) in the
    forward pass replaces what the heads say.

    Args:
        model, layers, where: as in [`attach_permission`].
        hidden_size, bound: see [`PrecisionHead`].

    Returns:
        The names of the attention modules.

    Raises:
        ValueError: as in [`attach_permission`].
    """
    return _attach(model, "precision", layers, where, {"hidden_size": hidden_size, "bound": bound})


def attach_from_config(model: PreTrainedModel) -> list[str]:
    """Attaches what `model.config.warrant_attention` records, with fresh weights; nothing if it records nothing.

    Raises:
        ValueError: the record does not fit the model or this version of the package.
    """
    names = []
    for kind, entries in (getattr(model.config, RECORD, None) or {}).items():
        if kind not in _KINDS:
            raise ValueError(f"{RECORD} records {kind!r}, but only {' and '.join(_KINDS)} can be attached; remove it.")
        for entry in entries:
            settings = dict(entry)
            layers, where = settings.pop("layers", None), settings.pop("where", None)
            try:
                names += _attach(model, kind, layers, where, settings, record=False)
            except TypeError as error:
                raise ValueError(f"{RECORD} has a {kind} of unknown settings ({error}); correct the config.") from None
    return names


def detach(model: PreTrainedModel) -> None:
    """Removes everything attached, and its record. The attention key stays as it is."""
    for module in model.modules():
        for kind in _KINDS:
            if isinstance(getattr(module, kind, None), nn.Module):
                delattr(module, kind)
    if hasattr(model.config, RECORD):
        delattr(model.config, RECORD)


def load_attached(path, auto_class=AutoModel, *, config=None, **kwargs) -> PreTrainedModel:
    """A saved model with what was attached to it; `from_pretrained` of a stock class would leave that out.

    Args:
        path: folder or Hub id of a model that was saved with `save_pretrained`.
        auto_class: `AutoModel...` or a model class.
        config, kwargs: as in `from_pretrained`; only safetensors are read.

    Raises:
        ValueError: nothing is recorded in the config, or the weights of what is attached are missing.
    """
    source = source_arguments(kwargs)
    if config is None:
        config = AutoConfig.from_pretrained(path, **source)
    if not getattr(config, RECORD, None):
        raise ValueError(f"The config of {path} records nothing attached; load it with from_pretrained.")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the report would list the attached weights, which are loaded below
    try:
        model = auto_class.from_pretrained(path, config=config, use_safetensors=True, **kwargs)
    finally:
        logging.set_verbosity(verbosity)
    names = attach_from_config(model)
    prefix = f"{model.base_model_prefix}."
    wanted = {
        f"{name}.{kind}.{key}".removeprefix(prefix): tensor
        for name in dict.fromkeys(names)
        for kind in _KINDS
        for key, tensor in getattr(model.get_submodule(name), kind, nn.Module()).state_dict(keep_vars=True).items()
    }
    with torch.no_grad():
        for file in _weight_files(path, source):
            with safe_open(file, framework="pt") as weights:
                for key in weights.keys():
                    tensor = wanted.pop(key.removeprefix(prefix), None)
                    if tensor is not None:
                        tensor.copy_(weights.get_tensor(key))
    if wanted:
        raise ValueError(f"{path} lacks {len(wanted)} attached weights, such as {min(wanted)}; copy it again.")
    return model


def _weight_files(path, source):
    index = cached_file(path, _INDEX, _raise_exceptions_for_missing_entries=False, **source)
    if index is None:
        return [cached_file(path, _WEIGHTS, **source)]
    shards = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    return [cached_file(path, shard, **source) for shard in shards]


def _attach(model, kind, layers, where, settings, record=True):
    make, key = _KINDS[kind]
    chosen, layers = _choose(model, layers, where)
    for name, module in chosen.items():
        if getattr(module, kind, None) is not None:
            raise ValueError(f"{name} has a {kind} already; choose other layers, or call detach(model) first.")
    if settings.get("granularity") == "item":
        for name, module in chosen.items():
            if _place(name, module)[0] == "decoder":
                raise ValueError(
                    f"granularity is 'item', but {name} is causal, and the mean key of an item would show it later "
                    "tokens; use granularity='token', or another place by where=."
                )
    made = {name: make(*_sizes(name, module), **settings) for name, module in chosen.items()}
    for name, part in made.items():
        module = chosen[name]
        like = next((p for p in module.parameters() if p.is_floating_point()), model)  # quantised weights are not
        module.add_module(kind, part.to(device=like.device, dtype=like.dtype).train(module.training))
        for tensor in (*part.parameters(), *part.buffers()):
            # Or `post_init` of a model around this one would draw them anew.
            tensor._is_hf_initialized = tensor.device.type != "meta"
    if record:
        entries = getattr(model.config, RECORD, None) or {}
        entry = {"layers": layers, "where": where, **settings}
        setattr(model.config, RECORD, {**entries, kind: [*entries.get(kind, []), entry]})
    _use_key(model, key, chosen.values())
    _record_permissions(model)
    return list(chosen)


def _choose(model, layers, where):
    if where is not None and where not in PLACES:
        raise ValueError(f"where is {where!r}; choose one of {', '.join(map(repr, PLACES))}, or None for all.")
    places = {name: _place(name, module) for name, module in find_attentions(model).items()}
    found = {name: layer for name, (place, layer) in places.items() if where in (None, place)}
    if not found:
        there = ", ".join(sorted({place for place, _ in places.values()}))
        raise ValueError(f"where is {where!r}, but {type(model).__name__} has only attention of: {there}.")
    depth = max(found.values()) + 1
    if layers is None:
        layers = sorted(set(found.values()))
    elif not isinstance(layers, list | tuple | range) or not layers:
        raise ValueError(f"layers is {layers!r}; give a list of layer numbers, such as [-1], or None for all.")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            raise ValueError(f"layers has {layer!r}; give layer numbers from {-depth} to {depth - 1}.")
    layers = sorted({layer % depth for layer in layers})
    return {name: model.get_submodule(name) for name, layer in found.items() if layer in layers}, layers


def _place(name, module):
    parts = name.split(".")
    if any(part in _CROSS for part in parts):
        place = "cross"
    else:
        place = "decoder" if "decoder" in parts or getattr(module, "is_causal", False) else "encoder"
    layer = getattr(module, "layer_idx", None)
    return place, layer if isinstance(layer, int) else next((int(part) for part in parts if part.isdigit()), 0)


def _sizes(name, module):
    """H, Hkv and D of an attention module."""
    config = getattr(module, "config", None)
    size = next((getattr(module, field) for field in _HEAD_SIZE if hasattr(module, field)), None)
    heads = next((getattr(part, field) for part in (module, config) for field in _HEADS if hasattr(part, field)), None)
    if size is None or heads is None:
        raise ValueError(
            f"{name} ({type(module).__name__}) does not say how many heads it has, or how wide they are, so nothing "
            "can be attached to it."
        )
    return heads, heads // getattr(module, "num_key_value_groups", 1), size


def _use_key(model, key, modules):
    configs = [module.config for module in modules]
    if all(config._attn_implementation in ATTENTION_KEYS for config in configs):
        return
    model.set_attn_implementation(key)
    if not all(config._attn_implementation in ATTENTION_KEYS for config in configs):
        raise ValueError(
            f"{type(model).__name__} did not take the attention key {key!r}; load it with attn_implementation={key!r}."
        )


def _record_permissions(model):
    for part in model.modules():
        # Lists that travel with the arguments, and no state of the model or the thread: that can be compiled, and two
        # threads do not mix.
        if isinstance(part, PreTrainedModel) and not getattr(part, "_records_permissions", False):
            part.register_forward_pre_hook(_open_record, with_kwargs=True)
            part.register_forward_hook(_close_record, with_kwargs=True)
            part._records_permissions = True


def _open_record(model, args, kwargs):
    wanted = [name for name in RECORDS if kwargs.pop(f"output_{name}", False)]
    if wanted:
        kwargs["permission_record"] = {name: [] for name in wanted}
    return args, kwargs


def _close_record(model, args, kwargs, output):
    record = kwargs.get("permission_record")
    if record is None:
        return output
    if isinstance(output, tuple):
        return (*output, *(tuple(found) for found in record.values()))
    for name, found in record.items():
        output[name] = tuple(found)
    return output


__all__ = ["attach_from_config", "attach_permission", "attach_precision", "detach", "load_attached"]
