"""Configuration of the evidence selectors."""

from __future__ import annotations

import dataclasses
import math

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from .attention_interface import ATTENTION_KEYS, DEFAULT_POWER, check_power_field
from .code_copy import IS_COPY
from .permission import PERMISSION_VARIANTS

# What a checkpoint with code says about it; see checkpoint_saving.py.
_CODE_FIELDS = ("auto_map", "custom_pipelines")
#: Tests of the precision contract (PFA, "six tests before the label is earned").
CONTRACT_TESTS = 6
# Smallest value of each numeric field.
_LEAST_WHOLE = {
    "readout_size": 1,
    "readout_heads": 1,
    "gate_size": 1,
    "frozen_layers": 0,
    "encode_batch_size": 1,
}
_LEAST = dict.fromkeys(
    ("gate_init", "gate_leak", "readout_dropout", "answerability_weight", "permission_supervision", "answer_weight"),
    0,
)


class WarrantConfig(PreTrainedConfig):
    """What the configurations of all evidence selectors share: the backbone, and the readout that scores evidence.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`): configuration of the pretrained model that reads the text; a
            `dict` needs the key `model_type`.
        variant (`str`, defaults to `"pair"`): which permission stands on the evidence path, a key of
            `PERMISSION_VARIANTS`: `"pair"` (the papers' Full: one gate per question and item), or one of its controls,
            such as `"base"` (content head, no path) and `"open"` (path, gate = 1). A reader that cannot be controlled
            in some way refuses that variant.
        packing (`str`): `"isolated"` lets a candidate see the question and itself only, so that its state does not
            depend on the other candidates or on the window it lies in; `"joint"` lets all tokens of a window see each
            other. A reader that knows one of them only takes no other.
        encode_batch_size (`int`): windows encoded at a time, at most; bounds memory for a thousand candidates.
        readout_size (`int`): width of the readout's query and key projections.
        readout_heads (`int`): attention heads of the readout; the permission is shared by the heads.
        gate_size (`int`): hidden width of the pairwise gate MLP.
        gate_init (`float`): permission of every item before training, in (gate_leak, 1).
        gate_leak (`float`): smallest permission the gate can learn, in [0, 1).
        readout_dropout (`float`): dropout on the states that enter the readout.
        evidence_loss (`str`): `"bce"` (each candidate against its label) or `"listwise"` (cross-entropy against the
            uniform distribution over a list's golds).
        answerability_weight (`float`): weight of the loss on total mass ("does the list hold evidence at all").
        permission_supervision (`float`): weight of a pairwise ranking loss that puts the labels on the gates
            directly. 0 (the default) keeps labels away from the gate.
        reading_power (`float`): p of the readout's attention (MAA, equation 3); at 1 it sums to one over a list.
        precision_features (`list[str]`, *optional*): names of the numbers in a passage's dict (calibration age,
            corruption severity, spread of repeated measurements, ...), of about the size 1, from which a bounded
            log-precision of the passage is made (PFA). It is added to the logits of the readout's attention. `None`
            (the default) for none.
        precision_bound (`float`): largest size of the log-precision.
        precision_contract (`dict`, *optional*): `ContractReport.to_dict()` of the six tests that the log-precision was
            put to. Only if all are in it and passed is it called a precision (`precision_label`).
        answerability_calibration (`dict`, *optional*): `data`, `size` of the lists, `questions`, `ece` and `brier` of
            the fit that makes the answerability a probability (`warrant-hf calibrate`); `None` where none was made.
        attention (`str`, defaults to `"sdpa"`): attention of the backbone, `"sdpa"`, `"warrant"`, `"maa"` or `"pfa"`;
            it is saved, while the `attn_implementation` of `from_pretrained` is not and goes before it.
        maa_power (`float` or list of one per layer): p of the attention `"maa"`.
        frozen_layers (`int`): the embeddings and this many lower layers keep their pretrained weights.
        base_model (`str`, *optional*): the checkpoint holds a PEFT adapter in its folder `adapter/` and completes it
            with the weights of this encoder. `None` for a checkpoint with all its weights.
        base_sha256 (`str`, *optional*): digest of the `model.safetensors` the adapter was trained on.
    """

    sub_configs = {"backbone_config": AutoConfig}
    #: Packings that the reader knows.
    packings = ("isolated", "joint")
    #: Variants that make a difference in the reader.
    variants = tuple(PERMISSION_VARIANTS)
    # The Trainer keeps logits and permissions, `[rows, candidates]`, and nothing that grows with the text.
    keys_to_ignore_at_inference = [
        "attention",
        "effective",
        "mass",
        "answerability_logits",
        "precision",
        "item_attention",
        "item_permission",
    ]

    backbone_config: dict | PreTrainedConfig | None = None
    variant: str = "pair"
    packing: str = "isolated"
    encode_batch_size: int = 16
    readout_size: int = 256
    readout_heads: int = 4
    gate_size: int = 128
    gate_init: float = 0.95
    gate_leak: float = 0.05
    readout_dropout: float = 0.1
    evidence_loss: str = "bce"
    answerability_weight: float = 0.2
    permission_supervision: float = 0.0
    reading_power: float = 1.0
    precision_features: list | None = None
    precision_bound: float = 2.0
    precision_contract: dict | None = None
    answerability_calibration: dict | None = None
    attention: str = "sdpa"
    maa_power: float | list = DEFAULT_POWER
    frozen_layers: int = 0
    base_model: str | None = None
    base_sha256: str | None = None

    def __post_init__(self, **kwargs):
        if not IS_COPY:
            # The installed package is what runs, and what is saved from here on has no code beside it. transformers
            # would otherwise take the pipeline from the checkpoint.
            kwargs = {name: value for name, value in kwargs.items() if name not in _CODE_FIELDS}
        if isinstance(self.backbone_config, dict):
            settings = dict(self.backbone_config)
            if "model_type" not in settings:
                raise ValueError("backbone_config: the dict has no 'model_type'; add one, such as 'roberta'.")
            if settings["model_type"] not in CONFIG_MAPPING:
                raise ValueError(
                    f"backbone_config: the model_type {settings['model_type']!r} is unknown to this version of "
                    "transformers; correct it or update transformers."
                )
            self.backbone_config = AutoConfig.for_model(**settings)
        elif not isinstance(self.backbone_config, PreTrainedConfig | None):
            raise ValueError(f"backbone_config is {self.backbone_config!r}; give the config of a pretrained model.")
        _choice("variant", self.variant, self.variants)
        _choice("packing", self.packing, self.packings)
        _choice("evidence_loss", self.evidence_loss, ("bce", "listwise"))
        _choice("attention", self.attention, ("sdpa", *ATTENTION_KEYS))
        for power in self.maa_power if isinstance(self.maa_power, list | tuple) else [self.maa_power]:
            check_power_field(power)
        check_power_field(self.reading_power, "reading_power")
        if not 0 < self.precision_bound < math.inf:
            raise ValueError(f"precision_bound is {self.precision_bound!r}; it must be a number above 0.")
        names = self.precision_features
        is_list = isinstance(names, list | tuple)
        if names is not None and (
            not is_list or not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names)
        ):
            raise ValueError(f"precision_features is {names!r}; give names, each once, or leave it out.")
        if names is not None and PERMISSION_VARIANTS[self.variant].acts == "tokens":
            raise ValueError(
                f"precision_features is given, but variant {self.variant!r} has no place for a precision."
            )
        if {"label", "kind"} & set(names or ()):
            raise ValueError("precision_features names 'label' or 'kind', which hold the answer; remove it.")
        _check_calibration(self.answerability_calibration)
        for name, least in (_LEAST_WHOLE | _LEAST).items():
            value, kinds = getattr(self, name, least), int if name in _LEAST_WHOLE else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
                kind = "whole number" if name in _LEAST_WHOLE else "number"
                raise ValueError(f"{name} is {value!r}; it must be a {kind} of {least} or more.")
        for name in ("base_model", "base_sha256"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a text or left out.")
        if not 0 <= self.gate_leak < self.gate_init < 1:
            raise ValueError(
                f"gate_leak {self.gate_leak} and gate_init {self.gate_init}: need 0 <= gate_leak < gate_init < 1."
            )
        if self.readout_size % self.readout_heads:
            raise ValueError(
                f"readout_size {self.readout_size} is not divisible by readout_heads {self.readout_heads}; "
                "choose a multiple."
            )
        if self.readout_dropout >= 1:
            raise ValueError(f"readout_dropout is {self.readout_dropout}; it must be less than 1.")
        super().__post_init__(**kwargs)

    @property
    def precision_label(self) -> str | None:
        """What the log-precision may be called: "precision" or "reliability score"; `None` where there is none."""
        if self.precision_features is None:
            return None
        tests = (self.precision_contract or {}).get("tests", ())
        has_passed = len({test["name"] for test in tests if test["passed"]}) == CONTRACT_TESTS
        return "precision" if has_passed and len(tests) == CONTRACT_TESTS else "reliability score"

    @classmethod
    def own_fields(cls) -> list[str]:
        """Names of the fields that are documented above, without those of every transformers config."""
        inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
        return [field.name for field in dataclasses.fields(cls) if field.name not in inherited]


class WarrantEncoderConfig(WarrantConfig):
    """Configuration of [`WarrantEncoderForEvidenceSelection`]: an encoder such as RoBERTa, XLM-R, BERT, MPNet,
    ModernBERT or DeBERTa-v3.

    Args:
        reading (`str`, defaults to `"question"`): who reads the candidates: `"question"`, the pooled question, or
            `"head"`, the classification head of the cross-encoder that the backbone then is, each candidate in a
            window of its own (`packing="joint"`).
        (others): those of [`WarrantConfig`].
    """

    model_type = "warrant_encoder"

    reading: str = "question"

    def __post_init__(self, **kwargs):
        _choice("reading", self.reading, ("question", "head"))
        if self.reading == "head":
            _choice("variant", self.variant, WarrantFiDConfig.variants)
            if self.packing != "joint":
                raise ValueError(
                    f"packing is {self.packing!r}, but reading is 'head', which reads question and candidate "
                    "together; use packing='joint'."
                )
        super().__post_init__(**kwargs)


class WarrantFiDConfig(WarrantConfig):
    """Configuration of [`WarrantFiDForEvidenceSelection`]: an encoder-decoder such as T5, BART or an
    `EncoderDecoderModel`, as Fusion-in-Decoder.

    Args:
        answer_weight (`float`): weight of the answer's cross-entropy beside the evidence loss, where a batch has
            answers.
        (others): those of [`WarrantConfig`].
    """

    model_type = "warrant_fid"
    packings = ("isolated",)
    # The decoder reads tokens by its own attention, on whose terms alone a permission acts there.
    variants = tuple(name for name, variant in PERMISSION_VARIANTS.items() if variant.acts == "terms")

    answer_weight: float = 0.0


class WarrantLEDConfig(WarrantConfig):
    """Configuration of [`WarrantLEDForEvidenceSelection`]: a long-input encoder, LED or Longformer.

    Args:
        reading (`str`, defaults to `"question"`): who reads the candidates: `"question"`, the pooled question, as in
            the other readers, or `"decoder"`, the last cross-attention of LED's decoder in its first step.
        (others): those of [`WarrantConfig`].
    """

    model_type = "warrant_led"
    packings = ("joint",)
    variants = tuple(name for name, variant in PERMISSION_VARIANTS.items() if variant.acts != "tokens")

    packing: str = "joint"
    reading: str = "question"

    def __post_init__(self, **kwargs):
        _choice("reading", self.reading, ("question", "decoder"))
        if self.reading == "decoder":
            _choice("variant", self.variant, [name for name in WarrantFiDConfig.variants if name != "base"])
        super().__post_init__(**kwargs)


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_share(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


# What `answerability_calibration` holds: key -> whether a value will do, and what will.
_CALIBRATION = {
    "data": (lambda value: isinstance(value, str), "a text"),
    "size": (_is_count, "a whole number of 1 or more"),
    "questions": (_is_count, "a whole number of 1 or more"),
    "ece": (_is_share, "a number from 0 to 1"),
    "brier": (
        lambda value: isinstance(value, dict) and all(_is_share(value.get(end)) for end in ("value", "low", "high")),
        "a dict with value, low and high, each from 0 to 1",
    ),
}


def _check_calibration(found):
    if not isinstance(found, dict | None):
        raise ValueError(f"answerability_calibration is {found!r}; it must be a dict or left out.")
    for key, (will_do, wanted) in _CALIBRATION.items():
        if found is not None and not will_do(found.get(key)):
            raise ValueError(
                f"answerability_calibration has the {key} {found.get(key)!r}; it must be {wanted}: correct it, or "
                "leave out the whole field."
            )


def _choice(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(repr(a) for a in allowed)}.")


__all__ = ["WarrantConfig", "WarrantEncoderConfig", "WarrantFiDConfig", "WarrantLEDConfig"]
