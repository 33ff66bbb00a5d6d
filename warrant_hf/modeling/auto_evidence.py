"""`AutoModelForEvidenceSelection` and the registration of every class with transformers."""

from __future__ import annotations

from collections import OrderedDict

from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from .base_weights import find_backbone
from .checkpoint_loading import read_config, source_arguments
from .modeling_encoder import WarrantEncoderForEvidenceSelection
from .modeling_evidence import read_backbone_config
from .modeling_fid import WarrantFiDForEvidenceSelection
from .modeling_led import WarrantLEDForEvidenceSelection
from .processing_evidence import EvidenceProcessor

#: The readers: a config of theirs, or a backbone that they read, leads to them.
READERS = (
    WarrantLEDForEvidenceSelection,
    WarrantFiDForEvidenceSelection,
    WarrantEncoderForEvidenceSelection,
)


class AutoModelForEvidenceSelection(_BaseAutoModelClass):
    """Loads the evidence selector that a checkpoint's config names."""

    _model_mapping = _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """`from_pretrained` of the class that the checkpoint's config names.

        Raises:
            OSError: files are missing or damaged.
            ValueError: the checkpoint is not an evidence selector, or lacks weights of one.
        """
        name, known = str(pretrained_model_name_or_path), list(cls._model_mapping.keys())
        if config is None or type(config) not in known:
            config = read_config(name, known, **source_arguments(kwargs))
        return cls._model_mapping[type(config)].from_pretrained(name, *model_args, config=config, **kwargs)

    @classmethod
    def from_backbone(cls, name_or_path, *, revision=None, local_files_only=False, encoder=None, **config):
        """A selector on a pretrained model with a fresh readout, of the class that reads this kind of model.

        Encoders (RoBERTa, BERT, ...) are read by [`WarrantEncoderForEvidenceSelection`], LED and Longformer by
        [`WarrantLEDForEvidenceSelection`], encoder-decoders (T5, BART, ...) by
        [`WarrantFiDForEvidenceSelection`]. The arguments are those of their `from_backbone`.

        Raises:
            OSError: the backbone is not on this machine and cannot be fetched, or has no safetensors file.
            ValueError: no reader reads it, or an unknown or contradictory setting.
        """
        source = {"revision": revision, "local_files_only": local_files_only}
        backbone = read_backbone_config(find_backbone(name_or_path), **source)
        for reader in READERS:
            if reader.reads(backbone):
                return reader.from_backbone(name_or_path, encoder=encoder, **source, **config)
        raise ValueError(
            f"{name_or_path} is a {backbone.model_type!r} model, and no evidence selector reads such; take an encoder "
            "like 'roberta' or 'bert', an encoder-decoder like 't5' or 'bart', or a 'led'."
        )


for _reader in READERS:
    AutoConfig.register(_reader.config_class.model_type, _reader.config_class, exist_ok=True)
    AutoModel.register(_reader.config_class, _reader, exist_ok=True)
    AutoModelForEvidenceSelection.register(_reader.config_class, _reader, exist_ok=True)
    AutoProcessor.register(_reader.config_class, EvidenceProcessor, exist_ok=True)

__all__ = ["READERS", "AutoModelForEvidenceSelection"]
