"""Evidence selection on RoBERTa-like encoders."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.utils import logging

from .attached_attention import attach_from_config
from .base_weights import load_backbone, without_pooler
from .configuration_evidence import WarrantEncoderConfig
from .modeling_evidence import WarrantPreTrainedModel

logger = logging.get_logger(__name__)

# Encoders that cannot take a token-by-token mask, so that candidates cannot be kept apart inside one window.
_JOINT_ONLY = {"deberta", "deberta-v2"}
# Tokens of a window of isolated candidates: shorter ones repeat the question, longer ones the attention to what they
# must not see. `training/benchmarks/serving_load.py --part windows` times it.
_SHARED_WINDOW = 384


class WarrantEncoderForEvidenceSelection(WarrantPreTrainedModel):
    """A text encoder with an [`EvidenceReadout`]: question and candidates in, support logits and permissions out.

    Use [`~WarrantEncoderForEvidenceSelection.from_backbone`] to start from a pretrained encoder and `from_pretrained`
    for a trained selector.

    A pretrained cross-encoder (a reranker with a head for sequence classification) is a pretrained encoder too, in two
    ways. With `reading="question"` its head stays in the file: it reads the first token, which here has seen no
    candidate, because the question is read once for all of them; the readout starts afresh and is trained. With
    `reading="head"` the backbone is the cross-encoder itself, a candidate to a window as it was trained, at its cost.
    The head's logit `r_c` takes the place of q . k, so that alpha is the softmax of the head over the list, and as
    every gate starts equal, the selector starts with the ranking of the reranker; `base` starts with its logits up to
    a constant. A head of two classes gives the logit of the second over the first. The mass of a candidate in several
    parts is the sum over its parts.
    """

    config_class = WarrantEncoderConfig
    backbone_auto_class = AutoModel

    @classmethod
    def reads(cls, backbone_config) -> bool:
        return not backbone_config.is_encoder_decoder and hasattr(backbone_config, "max_position_embeddings")

    def _make_backbone(self, config):
        kind = config.backbone_config.model_type
        if config.reading == "head":
            labels = config.backbone_config.num_labels
            if labels not in (1, 2):
                raise ValueError(
                    f"backbone_config has {labels} labels, but reading is 'head', which takes the head of a reranker "
                    "with one score, or with two classes; use reading='question'."
                )
            made = AutoModelForSequenceClassification.from_config(config.backbone_config)
            return self._checked(made, made.base_model, kind)
        if config.packing == "isolated" and kind in _JOINT_ONLY:
            raise ValueError(f"packing is 'isolated', but {kind} takes no token-by-token mask; use packing='joint'.")
        made = AutoModel.from_config(config.backbone_config, **without_pooler(config.backbone_config))
        return self._checked(made, made, kind)

    @staticmethod
    def _checked(backbone, encoder, kind):
        if not hasattr(encoder, "embeddings"):
            raise ValueError(f"{kind!r} is not a text encoder of a supported kind; take one like 'roberta' or 'bert'.")
        attach_from_config(backbone)
        return backbone

    @classmethod
    def _fill_in(cls, config, backbone_config):
        reads_by_head = config.get("reading") == "head"
        is_joint = reads_by_head or backbone_config.model_type in _JOINT_ONLY
        config.setdefault("packing", "joint" if is_joint else "isolated")
        kinds = backbone_config.architectures or ()
        if not reads_by_head and any(kind.endswith("ForSequenceClassification") for kind in kinds):
            logger.warning(
                f"The classification head of {kinds[0]} is left behind and a fresh readout takes its place; "
                "reading='head' keeps it as the first score."
            )

    @classmethod
    def _load_backbone(cls, source, config, **where):
        if config.reading == "question":
            return super()._load_backbone(source, config, **where)
        try:
            return load_backbone(source, config.backbone_config, AutoModelForSequenceClassification, **where)
        except ValueError as error:
            raise ValueError(f"{error} For an encoder without a head use reading='question'.") from error

    def processor_settings(self) -> dict:
        settings = super().processor_settings()
        if self.config.packing == "isolated":
            settings["window_length"] = _SHARED_WINDOW
        return settings | {"packing": "pair"} if self._reads_elsewhere() else settings

    def _reads_elsewhere(self):
        return self.config.reading == "head"

    @property
    def _encoder(self):
        return self.backbone.base_model if self._reads_elsewhere() else self.backbone

    def longest_input(self) -> int:
        """Tokens that the position table of the encoder holds, special tokens included."""
        return self.config.backbone_config.max_position_embeddings - self._first_position()

    def _first_position(self):
        # RoBERTa and its kin keep the rows up to the one of padding, and count from the next.
        table = getattr(self._encoder.embeddings, "position_embeddings", None)
        return 0 if table is None or table.padding_idx is None else table.padding_idx + 1

    def _lower_layers(self):
        encoder = getattr(self._encoder, "encoder", self._encoder)
        return [self._encoder.embeddings], list(encoder.layer if hasattr(encoder, "layer") else encoder.layers)

    def _evidence(self, input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs):
        rows, windows, tokens = input_ids.shape
        states = self._states_and_score(input_ids, segment_ids, kwargs.get("advance"))
        with torch.autocast(states.device.type, enabled=False):  # see _keep_in_fp32_modules_strict
            if self._reads_elsewhere():
                states, logits = states[..., :-1], states[..., 0, -1].float()
                pooled = self._pool_windows(states, segment_ids, item_candidates)
                reading = logits.unsqueeze(1).expand(-1, self.readout.heads, -1)
                segments = segment_ids.flatten(1)
                return self.readout.score(
                    pooled, segments, item_candidates, candidate_mask, reading=reading, **readout
                )
            return self.readout(
                states.view(rows, windows * tokens, -1),
                segment_ids.flatten(1),
                item_candidates,
                candidate_mask,
                **readout,
            )

    def encode(self, input_ids, segment_ids, advance=None) -> torch.Tensor:
        """States `[..., N, D]` of windows `[..., N]`, `encode_batch_size` windows at a time."""
        return self._states_and_score(input_ids, segment_ids, advance)[..., : self.state_size()]

    def _states_and_score(self, input_ids, segment_ids, advance=None):
        """`encode`, with the head's logit in one more column where the head reads."""
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
        if self._reads_elsewhere():
            found = self.backbone(**inputs, output_hidden_states=True)
            states, logits = found.hidden_states[-1], found.logits
            logits = logits if logits.shape[1] == 1 else logits[:, 1:] - logits[:, :1]
            return torch.cat([states, logits.unsqueeze(1).expand(-1, states.shape[1], -1)], -1)
        return self.backbone(**inputs).last_hidden_state

    def _relative_bias(self, positions):
        encoder = self._encoder.encoder
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
