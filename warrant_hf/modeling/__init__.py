"""Everything a checkpoint needs. Importing this package registers the classes with transformers."""

from pathlib import Path

from transformers.pipelines import PIPELINE_REGISTRY

from .attached_attention import attach_from_config, attach_permission, attach_precision, detach, load_attached
from .attached_permission import ATTENTION_CONTROLS, AttentionPermission
from .attention_gates import ItemGate, LowRankGate, PairwiseGate
from .attention_interface import ATTENTION_KEYS, set_maa_power
from .attention_modules import MassAwareAttention, PrecisionAttention, WarrantAttention
from .attention_ops import EvidenceAttentionOutput, evidence_attention
from .auto_evidence import AutoModelForEvidenceSelection
from .configuration_evidence import WarrantEncoderConfig, WarrantFiDConfig, WarrantLEDConfig
from .evidence_readout import EvidenceReadout
from .modeling_encoder import WarrantEncoderForEvidenceSelection
from .modeling_fid import WarrantFiDForEvidenceSelection
from .modeling_led import WarrantLEDForEvidenceSelection
from .outputs import EvidenceOutput
from .permission import PERMISSION_VARIANTS, PermissionGate
from .pipeline_evidence import EvidenceSelectionPipeline
from .precision import PrecisionHead
from .processing_evidence import EvidenceProcessor

#: The selector that is used when none is named; it ships with the package.
DEFAULT_CHECKPOINT = str(Path(__file__).resolve().parents[1] / "checkpoints" / "minilm-pair")

PIPELINE_REGISTRY.register_pipeline(
    "evidence-selection",
    pipeline_class=EvidenceSelectionPipeline,
    pt_model=AutoModelForEvidenceSelection,
    default={"model": (DEFAULT_CHECKPOINT, "main")},
    type="text",
)

__all__ = [
    "ATTENTION_CONTROLS",
    "ATTENTION_KEYS",
    "DEFAULT_CHECKPOINT",
    "PERMISSION_VARIANTS",
    "AttentionPermission",
    "AutoModelForEvidenceSelection",
    "EvidenceAttentionOutput",
    "EvidenceOutput",
    "EvidenceProcessor",
    "EvidenceReadout",
    "EvidenceSelectionPipeline",
    "ItemGate",
    "LowRankGate",
    "MassAwareAttention",
    "PairwiseGate",
    "PermissionGate",
    "PrecisionAttention",
    "PrecisionHead",
    "WarrantAttention",
    "WarrantEncoderConfig",
    "WarrantEncoderForEvidenceSelection",
    "WarrantFiDConfig",
    "WarrantFiDForEvidenceSelection",
    "WarrantLEDConfig",
    "WarrantLEDForEvidenceSelection",
    "attach_from_config",
    "attach_permission",
    "attach_precision",
    "detach",
    "evidence_attention",
    "load_attached",
    "set_maa_power",
]
