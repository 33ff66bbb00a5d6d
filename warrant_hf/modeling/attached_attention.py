"""Permission and precision as real submodules of a model's attention modules: attached, recorded, saved and loaded.

    >>> model = AutoModelForSequenceClassification.from_pretrained("roberta-base")
    >>> attach_permission(model, layers=[-1])
    ['roberta.encoder.layer.11.attention.self']
    >>> model(**batch, output_permissions=True).permissions[0].shape  # [B, 1, Q, K]

They are ordinary parameters: in the state dict, trained by any optimizer, saved by PEFT with
`modules_to_save=["permission", "precision"]`. The config records what is attached, and under which attention key
(`config.warrant_attention`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.utils import cached_file, find_adapter_config_file, logging

from .attached_permission import AttentionPermission
from .attention_interface import (
    ARGUMENTS,
    ATTENTION_KEYS,
    RECORD,
    RECORDS,
    check_model,
    find_attentions,
    record_key,
    uses_interface,
)
from .checkpoint_loading import source_arguments
from .precision import PrecisionHead

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

    **What it returns.** From then on the model takes `output_permissions=True` and returns `permissions`, a tuple of
    the gates of each attached module, `[B, H | 1, Q, K]`, in the order of computation, which is that of the returned
    names (for factors per channel, the factor; for "adapter", what is added to the logits). The gate of a key that may
    not be read, such as padding, is 0: average over the others. `output_masses=True` gives `masses`, `[B, H, Q]` each,
    and does not store the gates. `output_attentions=True` gives the clean weights, before the gates. In `generate()`
    the gates act, but are not returned; call the model on the finished sequence for them.

    **Controls**, as in `ATTENTION_CONTROLS` (whose entries have a `summary`): "pair", a gate per (query, key), not
    renormalised; "open", the same parameters, frozen at gate 1; "query", a gate per query; "item", a gate per key;
    "normalized", "pair" with weights that sum to 1 again; "adapter", psi is added to the logits; "g1" and "g2", a
    sigmoid per channel of the output and of the value; "cpa_count", the output grows with the log of the number of
    readable keys; "cpa_sum", the sum of the readable values is added.

    **PEFT.** With `modules_to_save=["permission"]` an adapter holds what was attached, but PEFT leaves it out, without
    an error, where the base model has nothing attached. So attach with the same settings before loading,

        >>> attach_permission(base, layers=[-1])
        >>> model = PeftModel.from_pretrained(base, "adapter")

    or make it one model: `model.merge_and_unload().save_pretrained("folder")`, then `load_attached("folder", ...)`.

    Args:
        model: any transformers model that uses `AttentionInterface`.
        layers: which layers, negative from the last; `None` for all.
        where: `"encoder"`, `"decoder"` (self-attention each) or `"cross"`; `None` for all that the model has.
        control, gate, granularity, per_head, hidden_size, start, leak, max_items: see [`AttentionPermission`]. With
            `granularity="item"` the forward pass needs `items` (`[B, K]`).

    Returns:
        The names of the attention modules.

    Raises:
        ValueError: the model computes its attention itself (DeBERTa, XLNet, MPNet, LED, ...), a layer does not exist,
            is named twice or has a permission already, or a setting is wrong.
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
    return _attach_new(model, "permission", layers, where, settings)


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
    return _attach_new(model, "precision", layers, where, {"hidden_size": hidden_size, "bound": bound})


def attach_from_config(model: PreTrainedModel) -> list[str]:
    """Attaches what `model.config.warrant_attention` records, with fresh weights; nothing if it records nothing.

    The model is switched to the recorded attention key, unless it has one of ours.

    Raises:
        ValueError: the record does not fit the model or this version of the package.
    """
    return _attach_recorded(model)


def _attach_recorded(model, keep_key=False):
    check_model(model)
    names = []
    record = getattr(model.config, RECORD, None) or {}
    recorded_key = _recorded_key(record)
    for kind, entries in record.items():
        if kind == "attention":
            continue
        if kind not in _KINDS:
            raise ValueError(f"{RECORD} records {kind!r}, but only {' and '.join(_KINDS)} can be attached; remove it.")
        for entry in entries:
            settings = dict(entry)
            layers, where = settings.pop("layers", None), settings.pop("where", None)
            try:
                key = None if keep_key else recorded_key or _KINDS[kind][1]
                names += _attach(model, kind, layers, where, settings, key)[0]
            except TypeError as error:
                raise ValueError(f"{RECORD} has a {kind} of unknown settings ({error}); correct the config.") from None
    record_key(model.config)
    return names


def _recorded_key(record):
    key = record.get("attention")
    if key is not None and key not in ATTENTION_KEYS:
        raise ValueError(
            f"{RECORD} records the attention key {key!r}; choose one of {', '.join(map(repr, ATTENTION_KEYS))} in the "
            "config."
        )
    return key


def detach(model: PreTrainedModel) -> None:
    """Removes everything attached, and its record. The attention key stays as it is.

    Raises:
        ValueError: it is no transformers model.
    """
    check_model(model)
    for module in model.modules():
        if uses_interface(type(module)):
            module._attached_arguments = frozenset()
        for kind in _KINDS:
            if isinstance(getattr(module, kind, None), nn.Module):
                delattr(module, kind)
    if hasattr(model.config, RECORD):
        delattr(model.config, RECORD)


def load_attached(path, auto_class=AutoModel, *, config=None, **kwargs) -> PreTrainedModel:
    """A saved model with what was attached to it; `from_pretrained` of a stock class would leave that out.

        >>> model = load_attached("folder", AutoModelForSequenceClassification)

    The attention key is the one that the model was last under ("warrant", "maa" or "pfa"), `config.maa_power` that of
    the config. An `attn_implementation` among the arguments wins, also "sdpa", under which nothing attached acts.

    Args:
        path: folder or Hub id of a model that was saved with `save_pretrained`; for a PEFT adapter see
            [`attach_permission`].
        auto_class: `AutoModel...` or a model class.
        config, kwargs: as in `from_pretrained`; only safetensors are read.

    Raises:
        TypeError: `path` or `auto_class` is something else.
        ValueError: nothing is recorded in the config, or weights of what is attached are missing or of another shape.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r}; give a folder or Hub id first, and then a class such as AutoModel.")
    if not hasattr(auto_class, "from_pretrained"):
        raise TypeError(f"auto_class is {auto_class!r}; give a class such as AutoModelForSequenceClassification.")
    if kwargs.pop("output_loading_info", False):
        raise ValueError("output_loading_info is set, but load_attached returns the model only; leave it out.")
    source = source_arguments(kwargs)
    if config is None:
        config = _read_config(path, source)
    if not getattr(config, RECORD, None):
        raise ValueError(f"The config of {path} records nothing attached; load it with from_pretrained.")
    has_key = bool(kwargs.get("attn_implementation") or config._attn_implementation)
    if not has_key:
        kwargs["attn_implementation"] = _recorded_key(getattr(config, RECORD))
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the report would list the attached weights, which are loaded below
    try:
        model = auto_class.from_pretrained(path, config=config, use_safetensors=True, **kwargs)
    finally:
        logging.set_verbosity(verbosity)
    names = _attach_recorded(model, keep_key=has_key)
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
                    if tensor is None:
                        continue
                    saved = weights.get_tensor(key)
                    if saved.shape != tensor.shape:  # `copy_` would repeat a single number
                        raise ValueError(
                            f"{path} has {key} of shape {list(saved.shape)}, but its config makes it "
                            f"{list(tensor.shape)}; correct {RECORD} in the config."
                        )
                    tensor.copy_(saved)
    if wanted:
        raise ValueError(f"{path} lacks {len(wanted)} attached weights, such as {min(wanted)}; copy it again.")
    return model


def _read_config(path, source):
    try:
        return AutoConfig.from_pretrained(path, **source)
    except (OSError, ValueError):
        try:
            is_adapter = find_adapter_config_file(path, **source) is not None
        except OSError:
            is_adapter = False
        if not is_adapter:
            raise
    raise ValueError(
        f"{path} is a PEFT adapter and no complete model; load its base model, attach to it with the same settings as "
        "before training, and call PeftModel.from_pretrained(model, path)."
    )


def _weight_files(path, source):
    index = cached_file(path, _INDEX, _raise_exceptions_for_missing_entries=False, **source)
    if index is None:
        return [cached_file(path, _WEIGHTS, **source)]
    shards = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    return [cached_file(path, shard, **source) for shard in shards]


def _attach_new(model, kind, layers, where, settings):
    names, layers = _attach(model, kind, layers, where, settings, _KINDS[kind][1])
    entries = getattr(model.config, RECORD, None) or {}
    entry = {"layers": layers, "where": where, **settings}
    key = model.get_submodule(names[0]).config._attn_implementation
    setattr(model.config, RECORD, {**entries, kind: [*entries.get(kind, []), entry], "attention": key})
    return names


def _attach(model, kind, layers, where, settings, key):
    """Makes and adds the parts; `key` is what the model is switched to if it has none of ours, `None` for nothing.

    Returns the names of the modules and the numbers of the layers.
    """
    check_model(model)
    make, _ = _KINDS[kind]
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
    if key is not None:
        _use_key(model, key, chosen.values())
    mark_arguments(model)
    _record_permissions(model)
    return list(chosen), layers


def mark_arguments(model, read=()):
    """Tells every attention module which arguments something reads, be it another module: all of them get all."""
    attentions, read = find_attentions(model).values(), set(read)
    for module in attentions:
        if getattr(getattr(module, "permission", None), "granularity", None) == "item":
            read.add("items")
        if isinstance(getattr(module, "precision", None), nn.Module):
            read.add("log_precision")
    for module in attentions:
        module._attached_arguments = frozenset(read & ARGUMENTS.keys()) | getattr(module, "_attached_arguments", set())


def find_places(model, where) -> list:
    """The attention modules of one of `PLACES`."""
    return [module for name, module in find_attentions(model).items() if _place(name, module)[0] == where]


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
    given, layers = layers, sorted(layer % depth for layer in layers)
    for layer, following in zip(layers, layers[1:]):
        if layer == following:
            raise ValueError(f"layers is {given!r}, which names layer {layer} twice; name each layer once.")
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
    if not torch.compiler.is_compiling():
        record_key(model.config)
    wanted = [name for name in RECORDS if kwargs.pop(f"output_{name}", False)]
    if wanted:
        _check_recordable(model, wanted[0])
        kwargs["permission_record"] = {name: [] for name in wanted}
    return args, kwargs


def _check_recordable(model, name):
    holders = [module for module in model.modules() if isinstance(getattr(module, "permission", None), nn.Module)]
    if not holders:
        raise ValueError(
            f"output_{name} is set, but no permission is attached to this {type(model).__name__}; call "
            f"attach_permission(model) first, or leave output_{name} out."
        )
    keys = [holder.config._attn_implementation for holder in holders]
    if not any(key in ATTENTION_KEYS for key in keys):
        raise ValueError(
            f"output_{name} is set, but the attention key is {keys[0]!r}, under which nothing attached acts; call "
            f"model.set_attn_implementation('warrant') first, or leave output_{name} out."
        )


def _close_record(model, args, kwargs, output):
    record = kwargs.get("permission_record")
    if record is None:
        return output
    if isinstance(output, tuple):
        return (*output, *(tuple(found) for found in record.values()))
    for name, found in record.items():
        output[name] = tuple(found)
    return output


__all__ = [
    "attach_from_config",
    "attach_permission",
    "attach_precision",
    "detach",
    "find_places",
    "load_attached",
    "mark_arguments",
]
