"""`AutoModelForEvidenceSelection` and the registration of every class with transformers."""

from __future__ import annotations

from collections import OrderedDict

from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from .checkpoint_loading import read_config, source_arguments
from .configuration_evidence import WarrantEncoderConfig
from .modeling_encoder import WarrantEncoderForEvidenceSelection
from .processing_evidence import EvidenceProcessor


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


AutoConfig.register(WarrantEncoderConfig.model_type, WarrantEncoderConfig, exist_ok=True)
AutoModel.register(WarrantEncoderConfig, WarrantEncoderForEvidenceSelection, exist_ok=True)
AutoModelForEvidenceSelection.register(WarrantEncoderConfig, WarrantEncoderForEvidenceSelection, exist_ok=True)
AutoProcessor.register(WarrantEncoderConfig, EvidenceProcessor, exist_ok=True)

__all__ = ["AutoModelForEvidenceSelection"]
