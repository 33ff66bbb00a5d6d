"""What the evidence selectors share: a pretrained backbone, a readout on its states, and how to start one."""

from __future__ import annotations

import os

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers import initialization as init

from .attention_interface import ATTENTION_KEYS, DEFAULT_POWER, check_interface
from .base_weights import find_backbone, load_backbone
from .checkpoint_loading import EvidenceLoadingMixin
from .checkpoint_saving import EvidenceSavingMixin
from .configuration_evidence import WarrantConfig
from .evidence_ranking import EvidenceRankingMixin
from .evidence_readout import EvidenceReadout, PooledEvidence
from .marker_readout import MarkerReadout
from .outputs import EvidenceOutput
from .permission import PERMISSION_VARIANTS

# Tokens that a group of windows has on a CPU. What is computed of more falls out of its caches, and tensors of many
# large sizes fragment its heap. `training/benchmarks/serving_load.py --part windows` times it.
_CPU_TOKENS = 1024


class WarrantPreTrainedModel(EvidenceLoadingMixin, EvidenceSavingMixin, EvidenceRankingMixin, PreTrainedModel):
    """Base class of the evidence selectors.

    A reader is a subclass that says which backbones it reads (`reads`), makes one (`_make_backbone`), and turns a
    batch of windows into evidence (`_evidence`).
    """

    config_class = WarrantConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # The loss is a mean over questions. From `**kwargs` of `forward` the Trainer would conclude that the model divides
    # by the number of items of all accumulated batches, and not divide by the number of batches itself.
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_attention_backend = True
    # Masses span decades, and bfloat16 has three digits. The second list is the one that quantisers leave alone.
    _keep_in_fp32_modules_strict = ["readout"]
    _keep_in_fp32_modules = ["readout"]
    #: Auto class of transformers that the backbone is an instance of.
    backbone_auto_class = None

    def __init__(self, config: WarrantConfig):
        if config.attention in ATTENTION_KEYS and config._attn_implementation is None:
            config._attn_implementation = config.attention
        super().__init__(config)
        backbone = config.backbone_config
        if backbone is None:
            raise ValueError("backbone_config is missing; give a backbone's config, or use from_backbone(name).")
        if not self.reads(backbone):
            raise ValueError(
                f"backbone_config is of the kind {backbone.model_type!r}, which {type(self).__name__} does not read; "
                "use AutoModelForEvidenceSelection.from_backbone(name), which finds the class that does."
            )
        if config._attn_implementation in ATTENTION_KEYS:
            check_interface(backbone)
        if config._attn_implementation == "maa" or config.maa_power != DEFAULT_POWER:
            backbone.maa_power = config.maa_power
        self.backbone = self._make_backbone(config)
        kind = MarkerReadout if PERMISSION_VARIANTS[config.variant].acts == "tokens" else EvidenceReadout
        self.readout = kind(config, self.state_size())
        self.post_init()
        self._freeze()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, EvidenceReadout | MarkerReadout):
            # Here and not for the parts themselves: transformers passes over modules without parameters of their own.
            module.gate.reset_score(init)
            for parameter, value in ((module.beta, 1.0), (module.bias, 0.0)):
                init.constant_(parameter, value)
            init.constant_(module.mass_scale, 1.0)
            init.constant_(module.mass_bias, 0.0)
            if module.precision is not None:
                for parameter in (module.precision.score, module.precision.offset, module.precision.clipped_share):
                    init.zeros_(parameter)

    # What a reader says about itself.

    @classmethod
    def reads(cls, backbone_config) -> bool:
        """Whether a backbone of this config is one for this reader."""
        raise NotImplementedError

    def _make_backbone(self, config) -> nn.Module:
        """The backbone with fresh weights."""
        raise NotImplementedError

    @classmethod
    def _load_backbone(cls, source, config, **where) -> nn.Module:
        """The pretrained backbone of a selector's config, with the module structure of `_make_backbone`."""
        return load_backbone(source, config.backbone_config, cls.backbone_auto_class, **where)

    def _evidence(self, input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs) -> EvidenceOutput:
        """Reads windows `[B, W, N]`; `readout` holds the keyword arguments of [`EvidenceReadout.score`], and `advance`
        in `kwargs` is for `_in_groups`.
        """
        raise NotImplementedError

    def longest_input(self) -> int:
        """Tokens that the positions of the backbone reach, special tokens included."""
        raise NotImplementedError

    def state_size(self) -> int:
        """Width of the states that the readout gets."""
        return self.config.backbone_config.hidden_size

    def _lower_layers(self) -> tuple[list, list]:
        """What lies below the first layer, and the layers that `frozen_layers` counts."""
        raise NotImplementedError

    def processor_settings(self) -> dict:
        """Arguments of [`EvidenceProcessor`] that fit this reader."""
        return {"features": self.config.precision_features}

    # What all readers have in common.

    @classmethod
    def from_backbone(cls, name_or_path, *, revision=None, local_files_only=False, encoder=None, **config):
        """A selector with a pretrained backbone and a fresh readout.

        Args:
            name_or_path (`str`): pretrained model on the Hub or in a folder, such as `"roberta-base"`.
            revision (`str`, *optional*), local_files_only (`bool`): as in `from_pretrained`.
            encoder (`dict`, *optional*): fields of the backbone's config to change, such as its dropout.
            config: fields of the selector's config, such as [`WarrantEncoderConfig`].

        Raises:
            OSError: the backbone is not on this machine and cannot be fetched, or has no safetensors file.
            ValueError: it is no backbone for this reader, or an unknown or contradictory setting.
        """
        kind = cls.config_class
        # Those that say which backbone it is come from `name_or_path`.
        fields = [f for f in kind.own_fields() if not f.startswith(("backbone_", "base_"))]
        unknown = sorted(set(config) - set(fields))
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not a field of {kind.__name__} that can be set; choose from {', '.join(fields)}."
            )
        source = {"revision": revision, "local_files_only": local_files_only}
        given, name_or_path = name_or_path, find_backbone(name_or_path)
        backbone_config = read_backbone_config(name_or_path, **source)
        change_config(backbone_config, encoder or {})
        cls._fill_in(config, backbone_config)
        model = cls(kind(backbone_config=backbone_config, **config))
        backbone_config = model.config.backbone_config  # a reader may have made it its own
        loaded = cls._load_backbone(name_or_path, model.config, **source)
        model.backbone.load_state_dict(loaded.state_dict())
        if loaded.can_generate():
            model.backbone.generation_config = loaded.generation_config
        backbone_config._name_or_path = str(given)  # and not the place of a packaged copy on this machine
        model._encoder_name, model._source = str(given), {k: v for k, v in source.items() if v}
        return model.eval()  # as from `from_pretrained`

    @classmethod
    def _fill_in(cls, config, backbone_config):
        """Sets what the backbone decides and `config` leaves open."""

    def _reads_elsewhere(self) -> bool:
        """Whether something other than the readout's own question reads the candidates."""
        return False

    def _freeze(self):
        """Holds still what the config wants so, and what no loss reaches."""
        self.readout.freeze_unused()
        if not self.config.answerability_weight:
            self.readout.mass_scale.requires_grad_(False)
            self.readout.mass_bias.requires_grad_(False)
        if self._reads_elsewhere():
            self.readout.freeze_reading()
        self._freeze_lower_layers()

    def _freeze_lower_layers(self):
        count = self.config.frozen_layers
        if not count:
            return
        below, layers = self._lower_layers()
        if count > len(layers):
            raise ValueError(f"frozen_layers is {count}, but the encoder has {len(layers)} layers; lower it.")
        for module in (*below, *layers[:count]):
            module.requires_grad_(False)

    def get_input_embeddings(self):
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value):
        self.backbone.set_input_embeddings(value)

    def forward(
        self,
        input_ids: torch.LongTensor,
        segment_ids: torch.LongTensor,
        item_candidates: torch.LongTensor,
        candidate_mask: torch.BoolTensor,
        labels: torch.LongTensor | None = None,
        candidate_lists: torch.BoolTensor | None = None,
        permission_override: torch.FloatTensor | None = None,
        candidate_features: torch.FloatTensor | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> EvidenceOutput:
        """
        Args:
            input_ids (`[B, W, N]`): W windows of N tokens a row; a row with fewer windows has empty ones.
            segment_ids (`[B, W, N]`): -1 padding (at the end of a window), 0 question, s + 1 the tokens of the row's
                item s.
            item_candidates (`[B, S]`): candidate of each item, -1 where a row has fewer.
            candidate_mask (`[B, C]`, bool): which candidates exist.
            labels, candidate_lists, permission_override, candidate_features: see [`EvidenceReadout.score`].

        With labels in training mode, the config's `answerability_calibration` becomes `None`: it is of weights that
        will not be these.

        Raises:
            ValueError: shapes that do not fit each other, or a window too long for the backbone.
        """
        if input_ids.dim() != 3 or segment_ids.shape != input_ids.shape:
            raise ValueError(
                f"input_ids {list(input_ids.shape)} and segment_ids {list(segment_ids.shape)}: both must be "
                "[rows, windows, tokens]; use EvidenceProcessor to make them."
            )
        if labels is not None and labels.shape != candidate_mask.shape:
            raise ValueError(
                f"labels {list(labels.shape)}: there are {list(candidate_mask.shape)} candidates; give one label each."
            )
        shape, given = candidate_mask.shape, permission_override
        if given is not None and not (torch.is_tensor(given) and given.shape == shape and given.is_floating_point()):
            found = f"{given.dtype} {list(given.shape)}" if torch.is_tensor(given) else f"a {type(given).__name__}"
            raise ValueError(
                f"permission_override is {found}; give a float tensor {list(shape)}, one permission for each "
                "candidate, NaN for the learned one."
            )
        precision = next(self.readout.parameters()).dtype
        if precision != torch.float32:
            raise ValueError(
                f"The readout is in {precision}, but it works in float32 only; load the model with "
                "from_pretrained(..., dtype=...), which keeps it so, instead of casting it."
            )
        if labels is not None and self.training and self.config.answerability_calibration is not None:
            self.config.answerability_calibration = None
        readout = {
            "labels": labels,
            "candidate_lists": candidate_lists,
            "permission_override": permission_override,
            "candidate_features": candidate_features,
        }
        output = self._evidence(input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs)
        return output if return_dict is not False else output.to_tuple()

    def _pool_windows(self, states, segment_ids, item_candidates) -> PooledEvidence:
        """Question and candidate of each window of `[B, W, N]` segments, which holds one item.

        Raises:
            ValueError: windows with more.
        """
        rows, windows, tokens, _ = states.shape
        own = torch.arange(1, windows + 1, device=segment_ids.device)[:, None]
        if item_candidates.shape[1] != windows or ((segment_ids > 0) & (segment_ids != own)).any():
            raise ValueError(
                f"item_candidates {list(item_candidates.shape)} for {windows} windows: this reader takes one item per "
                f"window, in order; make the processor with packing={self.processor_settings()['packing']!r}."
            )
        pooled = self.readout.pool(states.flatten(0, 1), segment_ids.clamp(max=1).flatten(0, 1), 1)
        return PooledEvidence(
            pooled.query.view(rows, windows, -1),
            pooled.key.view(rows, windows, -1),
            pooled.token_share.view(rows, windows * tokens),
        )

    def _in_groups(self, input_ids, segment_ids, encode, advance=None):
        """States of `[R, N]` windows by `encode`, in groups of similar length; empty windows stay zero.

        A group has `encode_batch_size` windows at most, and on a CPU no more than fit its caches.

        `advance` hears after each group how many windows were read.
        """
        lengths = (segment_ids >= 0).sum(-1)
        order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
        states, start = None, 0
        while start < len(order):
            width, count = int(lengths[order[start]]), self.config.encode_batch_size
            if input_ids.device.type == "cpu":
                count = max(1, min(count, _CPU_TOKENS // width))
            group = order[start : start + count]
            start += count
            part = encode(input_ids[group, :width], segment_ids[group, :width])
            if states is None:
                states = part.new_zeros(*input_ids.shape, part.shape[-1])
            states[group, :width] = part
            if advance is not None:
                advance(len(group))
        return states


def read_backbone_config(name_or_path, **source):
    """The config of a pretrained model that is to become a backbone.

    Raises:
        OSError: it is not on this machine and cannot be fetched.
        ValueError: transformers does not know its kind, or it is an evidence selector already.
    """
    if os.path.isfile(os.path.join(name_or_path, "adapter_config.json")):
        raise ValueError(
            f"{name_or_path} holds a PEFT adapter and no model; merge it into its base, or give the base's name."
        )
    try:
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **source)
    except OSError as error:
        raise OSError(
            f"The encoder {name_or_path} is neither a folder with a config.json nor in the Hub cache; check the "
            "name, or load it once with a network."
        ) from error
    except ValueError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{name_or_path} is no encoder that transformers knows ({reason}); give another.") from error
    if isinstance(config, WarrantConfig):
        raise ValueError(f"{name_or_path} is an evidence selector already; use from_pretrained to go on from it.")
    return config


def change_config(config, changes):
    """Sets fields of a backbone's config, or of the configs inside it (encoder and decoder) if only these have them.

    Raises:
        ValueError: it has no such field, or the value is of another type.
    """
    for name, value in changes.items():
        parts = [getattr(config, part) for part in config.sub_configs if hasattr(config, part)]
        holders = [part for part in [config] if hasattr(part, name)] or [part for part in parts if hasattr(part, name)]
        if not holders:
            raise ValueError(f"encoder: {name!r} is not a field of a {config.model_type} config; remove it.")
        for holder in holders:
            try:
                setattr(holder, name, value)
            except StrictDataclassError:
                usual = getattr(holder, name)
                raise ValueError(f"encoder: {name} is {value!r}; give a value like {usual!r}.") from None


__all__ = ["WarrantPreTrainedModel", "change_config", "read_backbone_config"]
