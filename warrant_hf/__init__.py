"""Evidence selection with learned permission, for 🤗 Transformers.

    >>> import warrant_hf
    >>> from transformers import pipeline
    >>> pipe = pipeline("evidence-selection")

Importing this package registers its classes with transformers, in whichever order the two are imported: from then on
`AutoConfig`, `AutoModel`, `AutoProcessor` and `pipeline` know them. Registration needs transformers' own registries,
and they need torch, so the import takes as long as these two do. Everything else (data, trainer, Hub) is loaded on
first use of a name. The command line is a module beside the package, `warrant_hf_cli`, because it must answer
`--help` and a mistyped option without that wait.
"""

from __future__ import annotations

import importlib

from . import modeling  # noqa: F401 (registers)

__version__ = "0.1.0"

# Public name -> module that defines it.
_MODULES = {
    "ATTENTION_CONTROLS": "modeling",
    "AttentionPermission": "modeling",
    "AutoModelForEvidenceSelection": "modeling",
    "EvidenceAttentionOutput": "modeling",
    "EvidenceCollator": "trainer",
    "EvidenceOutput": "modeling",
    "EvidenceProcessor": "modeling",
    "EvidenceReadout": "modeling",
    "EvidenceSelectionPipeline": "modeling",
    "EvidenceTrainer": "trainer",
    "EvidenceTrainingArguments": "trainer",
    "EvidenceWorld": "data",
    "ItemGate": "modeling",
    "LowRankGate": "modeling",
    "MassAwareAttention": "modeling",
    "PairwiseGate": "modeling",
    "PermissionGate": "modeling",
    "PrecisionAttention": "modeling",
    "PrecisionHead": "modeling",
    "WarrantAttention": "modeling",
    "WarrantEncoderConfig": "modeling",
    "WarrantEncoderForEvidenceSelection": "modeling",
    "WarrantFiDConfig": "modeling",
    "WarrantFiDForEvidenceSelection": "modeling",
    "WarrantLEDConfig": "modeling",
    "WarrantLEDForEvidenceSelection": "modeling",
    "attach_from_config": "modeling",
    "attach_permission": "modeling",
    "attach_precision": "modeling",
    "detach": "modeling",
    "evidence_attention": "modeling",
    "evidence_metrics": "evaluation",
    "load_attached": "modeling",
    "load_default": "hub",
    "read_rows": "data",
    "set_maa_power": "modeling",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
