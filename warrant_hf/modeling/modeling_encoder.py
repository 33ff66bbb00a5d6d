"""Evidence selection on RoBERTa-like encoders."""

from __future__ import annotations

import torch
from transformers import AutoModel

from .attached_attention import attach_from_config
from .base_weights import without_pooler
from .configuration_evidence import WarrantEncoderConfig
from .modeling_evidence import WarrantPreTrainedModel

# Encoders that cannot take a token-by-token mask, so that candidates cannot be kept apart inside one window.
_JOINT_ONLY = {"deberta", "deberta-v2"}


class WarrantEncoderForEvidenceSelection(WarrantPreTrainedModel):
    """A text encoder with an [`EvidenceReadout`]: question and candidates in, support logits and permissions out.

    Use [`~WarrantEncoderForEvidenceSelection.from_backbone`] to start from a pretrained encoder and `from_pretrained`
    for a trained selector.

    A pretrained cross-encoder (a reranker with a head for sequence classification) is a pretrained encoder too. Its
    head stays in the file: it reads the first token after that has read the candidate, but here the question is read
    once for all candidates of a window. With `packing="isolated"` its states have seen none of them, so nothing made
    of them gives the head's logit of a candidate; the readout starts afresh and is trained.
    """

    config_class = WarrantEncoderConfig
    backbone_auto_class = AutoModel

    @classmethod
    def reads(cls, backbone_config) -> bool:
        return not backbone_config.is_encoder_decoder and hasattr(backbone_config, "max_position_embeddings")

    def _make_backbone(self, config):
        kind = config.backbone_config.model_type
        if config.packing == "isolated" and kind in _JOINT_ONLY:
            raise ValueError(f"packing is 'isolated', but {kind} takes no token-by-token mask; use packing='joint'.")
        backbone = AutoModel.from_config(config.backbone_config, **without_pooler(config.backbone_config))
        if not hasattr(backbone, "embeddings"):
            raise ValueError(f"{kind!r} is not a text encoder of a supported kind; take one like 'roberta' or 'bert'.")
        attach_from_config(backbone)
        return backbone

    @classmethod
    def _fill_in(cls, config, backbone_config):
        config.setdefault("packing", "joint" if backbone_config.model_type in _JOINT_ONLY else "isolated")

    def longest_input(self) -> int:
        """Tokens that the position table of the encoder holds, special tokens included."""
        return self.config.backbone_config.max_position_embeddings - self._first_position()

    def _first_position(self):
        # RoBERTa and its kin keep the rows up to the one of padding, and count from the next.
        table = getattr(self.backbone.embeddings, "position_embeddings", None)
        return 0 if table is None or table.padding_idx is None else table.padding_idx + 1

    def _lower_layers(self):
        encoder = getattr(self.backbone, "encoder", self.backbone)
        return [self.backbone.embeddings], list(encoder.layer if hasattr(encoder, "layer") else encoder.layers)

    def _evidence(self, input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs):
        rows, windows, tokens = input_ids.shape
        states = self.encode(input_ids, segment_ids, kwargs.get("advance"))
        with torch.autocast(states.device.type, enabled=False):  # see _keep_in_fp32_modules_strict
            return self.readout(
                states.view(rows, windows * tokens, -1),
                segment_ids.flatten(1),
                item_candidates,
                candidate_mask,
                **readout,
            )

    def encode(self, input_ids, segment_ids, advance=None) -> torch.Tensor:
        """States `[..., N, D]` of windows `[..., N]`, `encode_batch_size` windows at a time."""
        windows = input_ids.flatten(0, -2), segment_ids.flatten(0, -2)
        return self._in_groups(*windows, self._encode_windows, advance).view(*input_ids.shape, -1)

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
