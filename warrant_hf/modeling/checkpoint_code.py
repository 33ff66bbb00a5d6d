"""The classes that a checkpoint with code names in its `auto_map` and `custom_pipelines`.

All of them are named by this one file, because transformers copies the files behind each name into a folder of their
own: so model, processor and pipeline of a checkpoint share one copy of the code. Nothing is registered here. A
checkpoint that was trusted must not become the code of the next one.

These files are those of the folder warrant_hf/modeling of the package warrant-hf, under the Apache License 2.0.
"""

from __future__ import annotations

from .configuration_evidence import WarrantEncoderConfig, WarrantFiDConfig, WarrantLEDConfig
from .modeling_encoder import WarrantEncoderForEvidenceSelection
from .modeling_fid import WarrantFiDForEvidenceSelection
from .modeling_led import WarrantLEDForEvidenceSelection
from .pipeline_evidence import EvidenceSelectionPipeline
from .processing_evidence import EvidenceProcessor

__all__ = [
    "EvidenceProcessor",
    "EvidenceSelectionPipeline",
    "WarrantEncoderConfig",
    "WarrantEncoderForEvidenceSelection",
    "WarrantFiDConfig",
    "WarrantFiDForEvidenceSelection",
    "WarrantLEDConfig",
    "WarrantLEDForEvidenceSelection",
]
