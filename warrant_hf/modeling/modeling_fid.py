"""Fusion-in-Decoder: each passage is encoded on its own with the question, and a decoder reads all of them at once."""

from __future__ import annotations

import functools
import inspect
import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from .attached_attention import attach_from_config, find_places, mark_arguments
from .attention_interface import ATTENTION_KEYS
from .base_weights import backbone_class
from .configuration_evidence import WarrantFiDConfig
from .modeling_evidence import WarrantPreTrainedModel
from .outputs import EvidenceOutput

# Relative positions have no limit; T5 was trained on inputs of this length.
_RELATIVE_LENGTH = 512
_TINY = 1e-30
#: Kinds whose cross-attention a permission reaches, as a test shows for each. Others drop the argument on the way
#: (LongT5), or have no cross-attention of transformers' interface.
KINDS = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "encoder-decoder", "m2m_100", "marian", "mbart",
    "mt5", "pegasus", "pegasus_x", "plbart", "t5", "umt5",
)  # fmt: skip
#: Decoders of an `EncoderDecoderModel` of which the same holds.
DECODERS = ("bert", "bert-generation", "camembert", "electra", "roberta", "xlm-roberta")


class WarrantFiDForEvidenceSelection(WarrantPreTrainedModel):
    r"""An encoder-decoder as Fusion-in-Decoder (Izacard & Grave), with a permission per passage.

    Window i holds the question and passage i and is encoded on its own; the decoder's cross-attention reads the tokens
    of all windows. The permission of a passage comes from its own window alone, `g_i = g(question_i, passage_i)`, so
    it does not depend on the other passages, and it multiplies the values of all tokens of the window, those of the
    question too, in the cross-attention of every decoder layer: closing it takes the passage out of what the decoder
    can say. The reading that is scored is the last layer's cross-attention in the decoder's first step, summed over a
    window; see [`EvidenceReadout`].

    Use [`~WarrantFiDForEvidenceSelection.from_backbone`] to start from a pretrained encoder-decoder (T5, BART,
    `EncoderDecoderModel`) and `from_pretrained` for a trained selector.
    """

    config_class = WarrantFiDConfig
    backbone_auto_class = AutoModelForSeq2SeqLM

    def __init__(self, config: WarrantFiDConfig):
        if config._attn_implementation is None:
            # "warrant" is transformers' "sdpa" wherever no permission is given.
            config._attn_implementation = config.attention if config.attention in ATTENTION_KEYS else "warrant"
        super().__init__(config)
        decoder = getattr(self.backbone, "get_decoder", lambda: None)()
        if hasattr(decoder, "layerdrop"):
            decoder.layerdrop = 0.0  # its last layer reads
        if getattr(config.backbone_config, "decoder_start_token_id", None) is None:
            raise ValueError("backbone_config has no decoder_start_token_id; set the token the decoder starts with.")
        mark_arguments(self.backbone, {"key_permission"})
        for module in find_places(self.backbone, "cross"):
            module._takes_key_permission = True

    @classmethod
    def reads(cls, backbone_config) -> bool:
        decoder = getattr(backbone_config, "decoder", None)
        return backbone_config.model_type in KINDS and (decoder is None or decoder.model_type in DECODERS)

    def _make_backbone(self, config):
        kind = _permitted(backbone_class(config.backbone_config, AutoModelForSeq2SeqLM))
        backbone = kind._from_config(config.backbone_config)
        attach_from_config(backbone)
        return backbone

    def longest_input(self) -> int:
        """Tokens that the positions of the encoder reach, special tokens included; 512 where they are relative."""
        config = _encoder_config(self.config.backbone_config)
        table = getattr(getattr(self._encoder(), "embeddings", None), "position_embeddings", None)
        offset = 0 if table is None or table.padding_idx is None else table.padding_idx + 1
        return getattr(config, "max_position_embeddings", _RELATIVE_LENGTH + offset) - offset

    def state_size(self) -> int:
        return _encoder_config(self.config.backbone_config).hidden_size

    def processor_settings(self) -> dict:
        return super().processor_settings() | {"packing": "single", "answers": self.config.answer_weight > 0}

    def _reads_elsewhere(self):
        return self.readout.variant.path  # the content score of `base` is the readout's own

    def _freeze(self):
        super()._freeze()
        pooler = getattr(self._encoder(), "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)

    def _encoder(self):
        return self.backbone.get_encoder()

    def _lower_layers(self):
        encoder = self._encoder()
        stack = getattr(encoder, "encoder", encoder)
        layers = next(getattr(stack, name) for name in ("block", "layer", "layers") if hasattr(stack, name))
        below = [self.backbone.get_input_embeddings()]
        below += [getattr(encoder, name) for name in ("embeddings", "embed_positions") if hasattr(encoder, name)]
        return below, list(layers)

    def forward(self, *args, answer_labels=None, encoder_states=None, **kwargs) -> EvidenceOutput:
        """
        Args:
            args, kwargs: those of [`WarrantPreTrainedModel`]; each window holds one item, in order.
            answer_labels (`[B, A]`, *optional*): tokens of the answer, its end included, -100 where there is none;
                with `answer_weight`, their cross-entropy is added to the loss.
            encoder_states (`[B, W, N, D]`, *optional*): from `encode` of the same windows. Exact, for what changes no
                window: gates opened and closed, other lists. A passage is encoded together with the question, so
                states are of no use for another question.
        """
        return super().forward(*args, answer_labels=answer_labels, encoder_states=encoder_states, **kwargs)

    def encode(self, input_ids, segment_ids, advance=None) -> torch.Tensor:
        """States `[B, W, N, D]` of windows `[B, W, N]`, `encode_batch_size` windows at a time."""
        states = self._in_groups(input_ids.flatten(0, 1), segment_ids.flatten(0, 1), self._encode_windows, advance)
        return states.view(*input_ids.shape, -1)

    def _encode_windows(self, input_ids, segment_ids):
        real, config = segment_ids >= 0, _encoder_config(self.config.backbone_config)
        if real.shape[1] > self.longest_input() and hasattr(config, "max_position_embeddings"):
            raise ValueError(
                f"A window has {real.shape[1]} tokens, but the encoder has {self.longest_input()} positions; make the "
                f"processor with max_length={self.longest_input()}."
            )
        inputs = {
            # Padding takes the embedding of a real token: a NaN in its own passes any mask, because 0 * NaN is NaN.
            "input_ids": torch.where(real, input_ids, input_ids.gather(1, real.long().argmax(1, keepdim=True))),
            "attention_mask": real.long(),
        }
        if getattr(config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = (segment_ids > 0).long()
        return self._encoder()(**inputs).last_hidden_state

    def _evidence(self, input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs):
        answer_labels, states = kwargs.get("answer_labels"), kwargs.get("encoder_states")
        states = self.encode(input_ids, segment_ids, kwargs.get("advance")) if states is None else states
        permission, lists = readout.pop("permission_override"), readout
        with torch.autocast(states.device.type, enabled=False):  # see _keep_in_fp32_modules_strict
            pooled = self._pool_windows(states, segment_ids, item_candidates)
            gate = self.readout.permission(pooled, item_candidates, candidate_mask, permission)
        reading = self._reading(states, segment_ids) if self._reads_elsewhere() else None
        with torch.autocast(states.device.type, enabled=False):
            output = self.readout.score(
                pooled, segment_ids.flatten(1), item_candidates, candidate_mask, gate=gate, reading=reading, **lists
            )
        if answer_labels is not None and self.config.answer_weight and output.loss is not None:
            output.loss = output.loss + self.config.answer_weight * self._answer_loss(
                states, segment_ids, gate, answer_labels
            )
        return output

    def _reading(self, states, segment_ids):
        """Log of how strongly the decoder's first step reads each window, `[B, H, W]`.

        Without the permissions: what is read is one thing, what of it may count another.
        """
        start = self.config.backbone_config.decoder_start_token_id
        decoded = self.backbone(
            decoder_input_ids=torch.full((states.shape[0], 1), start, device=states.device),
            use_cache=False,
            output_attentions=True,
            **self._fused(states, segment_ids),
        )
        # Summed over all tokens of a window: its question has read the passage.
        weights = decoded.cross_attentions[-1][:, :, 0].float()
        return weights.unflatten(-1, states.shape[1:3]).sum(-1).clamp(min=_TINY).log()

    def _answer_loss(self, states, segment_ids, gate, labels):
        limit = self._longest_answer()
        if labels.shape[1] > limit:
            raise ValueError(
                f"An answer has {labels.shape[1]} tokens, but the decoder has {limit} positions; shorten the answer "
                "or leave it out."
            )
        decoded = self.backbone(
            decoder_input_ids=self.backbone.prepare_decoder_input_ids_from_labels(labels=labels),
            use_cache=False,
            **self._fused(states, segment_ids, gate),
        )
        logits, known = decoded.logits.flatten(0, 1).float(), (labels != -100).sum().clamp(min=1)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum") / known

    def _longest_answer(self):
        """Tokens that the positions of the decoder reach; no limit where they are relative."""
        config = self.backbone.config.get_text_config(decoder=True)
        table = getattr(config, "max_position_embeddings", None)
        return math.inf if table is None else table - (config.pad_token_id + 1 if _counts_from_padding(config) else 0)

    def _fused(self, states, segment_ids, gate=None):
        """What the decoder reads: all windows, one after the other, each token with the permission of its window."""
        key = self.backbone.config.get_text_config(decoder=True)._attn_implementation
        if key not in ATTENTION_KEYS:
            raise ValueError(
                f"The attention key is {key!r}, under which no permission acts; call "
                "model.set_attn_implementation('warrant'), or load the model without attn_implementation."
            )
        fused = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states.flatten(1, 2)),
            "attention_mask": (segment_ids >= 0).long().flatten(1),
        }
        if gate is not None and (self.readout.variant.gate != "one" or bool((gate != 1).any())):
            fused["key_permission"] = gate.unsqueeze(-1).expand(segment_ids.shape).flatten(1)
        return fused

    def save_pretrained(self, save_directory, **kwargs):
        """As for the other readers, with the settings of `generate`."""
        super().save_pretrained(save_directory, **kwargs)
        if kwargs.get("is_main_process", True):
            self.backbone.generation_config.save_pretrained(save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **kwargs):
        """As for the other readers, with the settings of `generate` where the checkpoint has them."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        try:
            found = GenerationConfig.from_pretrained(pretrained_model_name_or_path, **model._source)
        except OSError:
            return loaded
        model.backbone.generation_config = found
        return loaded

    @torch.no_grad()
    def generate(self, input_ids, segment_ids, item_candidates, candidate_mask, permission_override=None, **kwargs):
        """Token ids `[B, A]` of answers, by `generate` of the backbone.

        Args:
            input_ids, segment_ids, item_candidates, candidate_mask, permission_override: as in `forward`.
            kwargs: of `generate` in transformers (`max_new_tokens`, `num_beams`, `do_sample`, ...), and
                `encoder_states` as in `forward`.
        """
        if kwargs.get("max_new_tokens", 0) >= self._longest_answer():
            raise ValueError(
                f"max_new_tokens is {kwargs['max_new_tokens']}, but the decoder has {self._longest_answer()} "
                "positions; lower it."
            )
        states = kwargs.pop("encoder_states", None)
        kwargs.pop("candidate_features", None)  # of the evidence only
        states = self.encode(input_ids, segment_ids) if states is None else states
        with torch.autocast(states.device.type, enabled=False):
            pooled = self._pool_windows(states, segment_ids, item_candidates)
            gate = self.readout.permission(pooled, item_candidates, candidate_mask, permission_override)
        return self.backbone.generate(**self._fused(states, segment_ids, gate), **kwargs)

    def answer(
        self, question, passages, *, revoke=(), revoke_by="gate", return_tokens=False, progress=None, **generation
    ) -> dict:
        """The answer in words beside its evidence.

        Args:
            question, passages, revoke, revoke_by, return_tokens, progress: as in `rank`.
            generation: of `generate` in transformers (there `top_k` is of sampling); without any limit,
                `max_new_tokens` is 32.

        Returns:
            The dict of `rank`, with `answer`: a text, empty where there was nothing to read.

        Raises:
            ValueError: as in `rank`.
        """
        settings = {"revoke_by": revoke_by, "return_tokens": return_tokens, "progress": progress}
        return self.answer_batch([question], [passages], revoke=[revoke], **settings, **generation)[0]

    @torch.no_grad()
    def answer_batch(
        self,
        questions,
        passages,
        *,
        batch_size=8,
        revoke=None,
        revoke_by="gate",
        return_tokens=False,
        progress=None,
        **generation,
    ) -> list[dict]:
        """[`answer`] for many questions; see `rank_batch`."""
        for name in ("num_return_sequences", "return_dict_in_generate"):
            if int(generation.get(name) or 0) > (name == "num_return_sequences"):
                raise ValueError(
                    f"{name} is {generation[name]!r}, but there is one answer to a question; use generate()."
                )
        if not {"max_new_tokens", "max_length", "generation_config"} & set(generation):
            generation["max_new_tokens"] = 32
        settings = {"revoke_by": revoke_by, "return_tokens": return_tokens, "progress": progress}
        settings["generation"] = generation
        results = self._rank_batch(questions, passages, batch_size, revoke, **settings)
        return [{"answer": "", **result} for result in results]

    def _read(self, inputs, generation=None, advance=None):
        if generation is None:
            return super()._read(inputs, advance=advance)
        states = self.encode(inputs["input_ids"], inputs["segment_ids"], advance)
        scores = super()._read(inputs, encoder_states=states)
        tokens = self.generate(**inputs, encoder_states=states, **generation)
        texts = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return scores | {"answer": [text.strip() for text in texts]}


class _TakesPermission:
    """An encoder-decoder whose `forward`, and so `generate`, takes a permission per key of the cross-attention."""

    _permission_argument = "key_permission"

    def forward(self, *args, key_permission=None, **kwargs):
        if key_permission is not None:
            kwargs[self._permission_argument] = key_permission
        return super().forward(*args, **kwargs)


@functools.cache
def _permitted(base: type[nn.Module]) -> type[nn.Module]:
    """A subclass of a transformers encoder-decoder that takes `key_permission`."""
    name = base.__name__
    # transformers reads the source file of a class by its module.
    kind = type(name, (_TakesPermission, base), {"__module__": base.__module__})
    if name == "EncoderDecoderModel":  # arguments of its decoder carry a prefix
        kind._permission_argument = "decoder_key_permission"
    # `generate` looks into the signature for what the model accepts.
    signature = inspect.signature(base.forward)
    named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    extra = inspect.Parameter("key_permission", inspect.Parameter.KEYWORD_ONLY, default=None)
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)

    @functools.wraps(base.forward)
    def forward(self, *args, **kwargs):
        return _TakesPermission.forward.__get__(self, kind)(*args, **kwargs)

    forward.__signature__ = signature.replace(parameters=[*named, extra, rest])
    kind.forward = forward
    return kind


def _counts_from_padding(config):
    # RoBERTa and its kin keep the rows up to the one of padding.
    return config.model_type in ("roberta", "xlm-roberta", "camembert")


def _encoder_config(config):
    """The config of the encoder inside an encoder-decoder."""
    return getattr(config, "encoder", config)


__all__ = ["WarrantFiDForEvidenceSelection"]
