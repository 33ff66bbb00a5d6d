"""Evidence selection on RoBERTa-like encoders."""

from __future__ import annotations

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers import initialization as init

from .attached_attention import attach_from_config
from .attention_interface import ATTENTION_KEYS, DEFAULT_POWER, check_interface
from .base_weights import find_backbone, load_encoder, without_pooler
from .checkpoint_loading import EvidenceLoadingMixin
from .configuration_evidence import WarrantEncoderConfig
from .evidence_ranking import EvidenceRankingMixin
from .evidence_readout import EvidenceReadout
from .outputs import EvidenceOutput

# Encoders that cannot take a token-by-token mask, so that candidates cannot be kept apart inside one window.
_JOINT_ONLY = {"deberta", "deberta-v2"}
# Windows encoded at a time: bounds memory for a thousand candidates, and windows of similar length waste no padding.
_WINDOWS_AT_A_TIME = 16


class WarrantPreTrainedModel(EvidenceLoadingMixin, EvidenceRankingMixin, PreTrainedModel):
    """Loading, saving and weight initialisation shared by the evidence selectors."""

    config_class = WarrantEncoderConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True
    # Masses span decades, and bfloat16 has three digits.
    _keep_in_fp32_modules_strict = ["readout"]

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, EvidenceReadout):
            # Here and not for the gate itself: transformers passes over modules that hold no parameters of their own.
            module.gate.reset_score(init)
            for parameter, value in ((module.beta, 1.0), (module.bias, 0.0)):
                init.constant_(parameter, value)
            init.constant_(module.mass_scale, 1.0)
            init.constant_(module.mass_bias, 0.0)


class WarrantEncoderForEvidenceSelection(WarrantPreTrainedModel):
    """A text encoder with an [`EvidenceReadout`]: question and candidates in, support logits and permissions out.

    Use [`~WarrantEncoderForEvidenceSelection.from_backbone`] to start from a pretrained encoder and `from_pretrained`
    for a trained selector.
    """

    main_input_name = "input_ids"

    def __init__(self, config: WarrantEncoderConfig):
        if config.attention in ATTENTION_KEYS and config._attn_implementation is None:
            config._attn_implementation = config.attention
        super().__init__(config)
        if config.backbone_config is None:
            raise ValueError("backbone_config is missing; give an encoder config, or use from_backbone(name).")
        kind = config.backbone_config.model_type
        if config.packing == "isolated" and kind in _JOINT_ONLY:
            raise ValueError(f"packing is 'isolated', but {kind} takes no token-by-token mask; use packing='joint'.")
        if config._attn_implementation in ATTENTION_KEYS:
            check_interface(config.backbone_config)
        if config._attn_implementation == "maa" or config.maa_power != DEFAULT_POWER:
            config.backbone_config.maa_power = config.maa_power
        self.backbone = AutoModel.from_config(config.backbone_config, **without_pooler(config.backbone_config))
        if not hasattr(self.backbone, "embeddings") or not hasattr(config.backbone_config, "max_position_embeddings"):
            raise ValueError(f"{kind!r} is not a text encoder of a supported kind; take one like 'roberta' or 'bert'.")
        attach_from_config(self.backbone)
        self.readout = EvidenceReadout(config, config.backbone_config.hidden_size)
        self.post_init()
        self._freeze_lower_layers()

    @classmethod
    def from_backbone(cls, name_or_path, *, revision=None, local_files_only=False, encoder=None, **config):
        """A selector with a pretrained encoder and a fresh readout.

        Args:
            name_or_path (`str`): encoder on the Hub or in a folder, such as `"roberta-base"`.
            revision (`str`, *optional*), local_files_only (`bool`): as in `from_pretrained`.
            encoder (`dict`, *optional*): fields of the encoder's config to change, such as its dropout.
            config: fields of [`WarrantEncoderConfig`].

        Raises:
            OSError: the encoder is not on this machine and cannot be fetched, or has no safetensors file.
            ValueError: it is no encoder, or an unknown or contradictory setting.
        """
        # Those that say which encoder it is come from `name_or_path`.
        fields = [f for f in WarrantEncoderConfig.own_fields() if not f.startswith(("backbone_", "base_"))]
        unknown = sorted(set(config) - set(fields))
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not a field of WarrantEncoderConfig that can be set; choose from "
                f"{', '.join(fields)}."
            )
        source = {"revision": revision, "local_files_only": local_files_only}
        given, name_or_path = name_or_path, find_backbone(name_or_path)
        try:
            backbone_config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **source)
        except OSError as error:
            raise OSError(
                f"The encoder {name_or_path} is neither a folder with a config.json nor in the Hub cache; check the "
                "name, or load it once with a network."
            ) from error
        except ValueError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{name_or_path} is no encoder that transformers knows ({reason}); give another."
            ) from error
        if backbone_config.model_type == WarrantEncoderConfig.model_type:
            raise ValueError(f"{name_or_path} is an evidence selector already; use from_pretrained to go on from it.")
        for name, value in (encoder or {}).items():
            if not hasattr(backbone_config, name):
                kind = backbone_config.model_type
                raise ValueError(f"encoder: {name!r} is not a field of a {kind} config; remove it.")
            try:
                setattr(backbone_config, name, value)
            except StrictDataclassError:
                usual = getattr(backbone_config, name)
                raise ValueError(f"encoder: {name} is {value!r}; give a value like {usual!r}.") from None
        config.setdefault("packing", "joint" if backbone_config.model_type in _JOINT_ONLY else "isolated")
        model = cls(WarrantEncoderConfig(backbone_config=backbone_config, **config))
        model.backbone.load_state_dict(load_encoder(name_or_path, backbone_config, **source).state_dict())
        backbone_config._name_or_path = str(given)  # and not the place of a packaged copy on this machine
        model._encoder_name, model._source = str(given), {k: v for k, v in source.items() if v}
        return model

    def longest_input(self) -> int:
        """Tokens that the position table of the encoder holds, special tokens included."""
        return self.config.backbone_config.max_position_embeddings - self._first_position()

    def _first_position(self):
        # RoBERTa and its kin keep the rows up to the one of padding, and count from the next.
        table = getattr(self.backbone.embeddings, "position_embeddings", None)
        return 0 if table is None or table.padding_idx is None else table.padding_idx + 1

    def _freeze_lower_layers(self):
        count = self.config.frozen_layers
        if not count:
            return
        layers = self._layers()
        if count > len(layers):
            raise ValueError(f"frozen_layers is {count}, but the encoder has {len(layers)} layers; lower it.")
        for module in (self.backbone.embeddings, *layers[:count]):
            module.requires_grad_(False)

    def _layers(self):
        encoder = getattr(self.backbone, "encoder", self.backbone)
        return encoder.layer if hasattr(encoder, "layer") else encoder.layers

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
            labels, candidate_lists, permission_override: see [`EvidenceReadout`].

        Raises:
            ValueError: shapes that do not fit each other, or a window too long for the encoder.
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
        precision = next(self.readout.parameters()).dtype
        if precision != torch.float32:
            raise ValueError(
                f"The readout is in {precision}, but it works in float32 only; load the model with "
                "from_pretrained(..., dtype=...), which keeps it so, instead of casting it."
            )
        rows, windows, tokens = input_ids.shape
        states = self._encode(input_ids.flatten(0, 1), segment_ids.flatten(0, 1))
        with torch.autocast(states.device.type, enabled=False):  # see _keep_in_fp32_modules_strict
            output = self.readout(
                states.view(rows, windows * tokens, -1),
                segment_ids.flatten(1),
                item_candidates,
                candidate_mask,
                candidate_lists=candidate_lists,
                labels=labels,
                permission_override=permission_override,
            )
        return output if return_dict is not False else output.to_tuple()

    def _encode(self, input_ids, segment_ids):
        """States of `[B * W, N]` windows, encoded in groups of similar length; empty windows stay zero."""
        lengths = (segment_ids >= 0).sum(-1)
        order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
        groups = []
        for group in order.split(_WINDOWS_AT_A_TIME):
            width = int(lengths[group[0]])
            part = self._encode_windows(input_ids[group, :width], segment_ids[group, :width])
            groups.append(nn.functional.pad(part, (0, 0, 0, input_ids.shape[1] - width)))
        states = torch.cat(groups)
        return states.new_zeros(*input_ids.shape, states.shape[-1]).index_copy(0, order, states)

    def _encode_windows(self, input_ids, segment_ids):
        config, real = self.config.backbone_config, segment_ids >= 0
        isolated = self.config.packing == "isolated"
        positions = positions_in_pair(segment_ids) if isolated else (real.cumsum(1) - 1).clamp(min=0)
        limit = self.longest_input()
        if real.shape[1] > limit and positions.max() >= limit:
            raise ValueError(
                f"A window needs {int(positions.max()) + 1} positions, but the encoder has {limit}; make the "
                f"processor with max_length={limit}."
            )
        inputs = {
            # Padding takes the embedding of a real token: a NaN in its own passes any mask, because 0 * NaN is NaN.
            "input_ids": torch.where(real, input_ids, input_ids.gather(1, real.long().argmax(1, keepdim=True))),
            "position_ids": positions + self._first_position(),
            "attention_mask": real.long(),
        }
        if getattr(config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = (segment_ids > 0).long()
        if isolated:
            mask = isolation_mask(segment_ids)
            inputs["attention_mask"] = self._additive(mask)
            if config.model_type == "modernbert":
                near = (positions.unsqueeze(2) - positions.unsqueeze(1)).abs() <= config.sliding_window
                inputs["attention_mask"] = {
                    "full_attention": self._additive(mask),
                    "sliding_attention": self._additive(mask & near),
                }
            elif config.model_type == "mpnet":
                # Its relative bias counts the tokens of the window; the mask carries the difference.
                in_window = torch.arange(positions.shape[1], device=positions.device).unsqueeze(0)
                bias = self._relative_bias(positions) - self._relative_bias(in_window)
                inputs["attention_mask"] = inputs["attention_mask"] + bias
        return self.backbone(**inputs).last_hidden_state

    def _relative_bias(self, positions):
        encoder = self.backbone.encoder
        buckets = encoder.relative_position_bucket(positions.unsqueeze(1) - positions.unsqueeze(2))
        return encoder.relative_attention_bias(buckets).permute(0, 3, 1, 2)

    def _additive(self, mask):
        # Additive, because eager attention adds whatever it is given: a boolean mask would raise real tokens by one.
        dtype = self.backbone.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)[
            :, None
        ]


def isolation_mask(segment_ids):
    """`[W, N]` segments -> `[W, N, N]` bool: a token sees the question and its own segment.

    Padding sees padding, so that no row is empty.
    """
    same = segment_ids.unsqueeze(2) == segment_ids.unsqueeze(1)
    question = (segment_ids == 0).unsqueeze(1) & (segment_ids >= 0).unsqueeze(2)
    return same | question


def positions_in_pair(segment_ids):
    """`[W, N]` segments -> position each token would have if its candidate stood alone behind the question."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    starts = torch.ones_like(segment_ids, dtype=torch.bool)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    start = torch.where(starts, index, 0).cummax(1).values
    question = (segment_ids == 0).sum(1, keepdim=True)
    return (index - start + torch.where(segment_ids > 0, question, 0)).masked_fill(segment_ids < 0, 0)


__all__ = ["WarrantEncoderForEvidenceSelection", "isolation_mask", "positions_in_pair"]
