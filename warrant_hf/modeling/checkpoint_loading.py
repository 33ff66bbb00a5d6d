"""Loading a selector: full checkpoints, adapter checkpoints, and errors that say what to do."""

from __future__ import annotations

import warnings
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedConfig

from .base_weights import find_base_weights
from .hub_errors import hub_sentence

# Arguments of `from_pretrained` that say where files come from.
_SOURCE_ARGUMENTS = ("revision", "cache_dir", "token", "local_files_only", "subfolder", "force_download")
ADAPTER_FOLDER = "adapter"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class EvidenceLoadingMixin:
    """`from_pretrained` for selectors."""

    #: Where the model was loaded from, for its processor.
    _source: dict = {}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """As `PreTrainedModel.from_pretrained`, with safetensors only and no `ignore_mismatched_sizes`.

        A checkpoint whose config names a `base_model` is completed with that encoder's weights and its adapter is
        merged, so that the result is an ordinary model.

        Raises:
            OSError: files are missing or damaged.
            ValueError: the checkpoint is not an evidence selector, or lacks weights of one.
        """
        name = str(pretrained_model_name_or_path)
        source = source_arguments(kwargs)
        if config is None:
            config = read_config(name, (cls.config_class,), **source)
        is_folder, commit = Path(name).is_dir(), _commit_of_config(name, **source)
        if commit is not None:  # weights, adapter and processor of one commit, also if the branch moves on meanwhile
            kwargs["revision"] = source["revision"] = commit
        wants_info = kwargs.pop("output_loading_info", False)
        for unused in ("trust_remote_code", "code_revision"):  # no code of a checkpoint is ever run
            kwargs.pop(unused, None)
        kwargs |= {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
        place = name
        try:
            if config.base_model is not None:
                place = None
                kwargs["state_dict"] = cls._merged_weights(name, config, source)
            model, info = super().from_pretrained(place, *model_args, config=config, **kwargs)
        except SafetensorError as error:
            again = "download or copy it again" if is_folder else "load it once with force_download=True"
            raise OSError(f"A weight file of {name} is damaged ({error}); {again}.") from None
        except OSError as error:
            if place is None:
                raise
            remedy = "copy the complete checkpoint" if is_folder else "load it again, or see what the repository has"
            sentence = hub_sentence(name, error) or f"{name} has no readable model.safetensors; {remedy}."
            raise OSError(sentence) from error
        model.config.base_model = model.config.base_sha256 = None
        model.config.name_or_path = model.name_or_path = name
        unfit = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
        if unfit:
            raise ValueError(
                f"{name} lacks {len(unfit)} weights of the selector that its config describes, such as {unfit[0]}; "
                "load a complete checkpoint."
            )
        model._source = source
        model._freeze()  # parameters that transformers has put weights into have forgotten it
        return (model, info) if wants_info else model

    @classmethod
    def _merged_weights(cls, name, config, source):
        try:  # only adapter checkpoints need PEFT
            from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
        except ImportError as error:
            raise ImportError(f"{name} is an adapter, which PEFT puts in; run: pip install peft") from error

        local_only = source.get("local_files_only", False)
        weights = find_base_weights(config.base_model, config.base_sha256, local_files_only=local_only)
        folder = _adapter_folder(name, **source)
        model = cls(config)
        backbone = cls._load_backbone(weights.parent, config)
        model.backbone.load_state_dict(backbone.state_dict())
        with warnings.catch_warnings():  # PEFT asks for an attribute that transformers has renamed
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            adapted = get_peft_model(model, PeftConfig.from_pretrained(str(folder)))
        weights = load_file(folder / _ADAPTER_FILES[1])
        sizes = {key: value.shape for key, value in weights.items()}
        unfit = sorted(k for k, v in get_peft_model_state_dict(adapted).items() if sizes.get(k) != v.shape)
        if unfit:  # PEFT would leave some of them at their initial values
            raise ValueError(
                f"{name} lacks {len(unfit)} weights of its adapter, such as {unfit[0]}; copy the complete checkpoint."
            )
        set_peft_model_state_dict(adapted, weights)
        return merged(adapted).state_dict()


def merged(adapted):
    """The ordinary model that a `PeftModel` of a selector computes; the adapter is merged into its weights.

    PEFT's own `merge_and_unload` after the modules that were trained in full are out of their wrappers: with IA3, PEFT
    asks each of them for a `weight`, which readout and gate have not.
    """
    model = adapted.get_base_model()
    for name, module in list(model.named_modules()):
        if isinstance(getattr(module, "modules_to_save", None), nn.ModuleDict):
            model.set_submodule(name, module.modules_to_save[module.active_adapter])
    return adapted.merge_and_unload()


def read_config(name, config_classes, **source):
    """The config of a selector's checkpoint.

    Args:
        name (`str`): folder or Hub id.
        config_classes: the config classes that will do.
        source: where files come from; see `source_arguments`.

    Raises:
        OSError: no readable config.json.
        ValueError: it belongs to another kind of model, or has a setting that cannot be used.
    """
    if not name.strip():
        raise ValueError("The name of the checkpoint is empty; give a folder or a Hub id.")
    cause = None
    try:
        values, _ = PreTrainedConfig.get_config_dict(name, **source)
    except (OSError, TypeError) as error:  # TypeError: JSON, but no object
        values, cause = {}, error
    if "model_type" not in values:
        raise OSError(
            hub_sentence(name, cause)
            or f"{name} is neither a folder with a readable config.json nor in the Hub cache; check the name, or load "
            "it once with a network."
        ) from cause
    for config_class in config_classes:
        if values.get("model_type") == config_class.model_type:
            try:
                return config_class.from_dict(values)
            except (TypeError, AttributeError, StrictDataclassError) as error:  # from transformers' own fields
                reason = " ".join(str(error).split())
                raise ValueError(f"{name} has a config.json that cannot be used ({reason}); copy it again.") from None
    raise ValueError(
        f"{name} is a {values['model_type']!r} checkpoint, not an evidence selector; to train one on it, use "
        f"AutoModelForEvidenceSelection.from_backbone({name!r})."
    )


def _commit_of_config(name, subfolder="", **source):
    """Commit of the config.json of a Hub id in the cache, or `None`, also for a folder."""
    if Path(name).is_dir():
        return None
    place = {key: source[key] for key in ("cache_dir", "revision") if key in source}
    found = try_to_load_from_cache(name, f"{subfolder}/config.json" if subfolder else "config.json", **place)
    if not isinstance(found, str):
        return None
    parts = Path(found).parts
    return parts[len(parts) - 1 - parts[::-1].index("snapshots") + 1]


def source_arguments(kwargs) -> dict:
    """Those arguments of `from_pretrained` that say where files come from."""
    return {key: kwargs[key] for key in _SOURCE_ARGUMENTS if kwargs.get(key) is not None}


def _adapter_folder(name, subfolder="", **source):
    """Local folder of the adapter; it is fetched first if `name` is a Hub id."""
    inside = f"{subfolder}/{ADAPTER_FOLDER}" if subfolder else ADAPTER_FOLDER
    root = Path(name)
    if not root.is_dir():
        try:
            wanted = [f"{inside}/{file}" for file in _ADAPTER_FILES]
            root = Path(snapshot_download(name, allow_patterns=wanted, **source))
        except (HfHubHTTPError, LocalEntryNotFoundError) as error:
            sentence = f"The adapter of {name} cannot be fetched; load it once with a network."
            raise OSError(hub_sentence(name, error) or sentence) from error
    for file in _ADAPTER_FILES:
        if not (root / inside / file).is_file():  # PEFT would look for a pickle next
            raise OSError(f"{name} has no {inside}/{file}; copy the complete checkpoint.")
    return root / inside


__all__ = ["ADAPTER_FOLDER", "EvidenceLoadingMixin", "merged", "read_config", "source_arguments"]
