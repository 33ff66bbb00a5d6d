"""Evidence selection on long-input encoders: LED and Longformer."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from transformers import AutoModel
from transformers.models.led.modeling_led import LEDEncoder

from .attention_windowed import use_windowed_attention
from .base_weights import without_pooler
from .configuration_evidence import WarrantLEDConfig
from .modeling_evidence import WarrantPreTrainedModel


class WarrantLEDForEvidenceSelection(WarrantPreTrainedModel):
    """A long-input encoder with an [`EvidenceReadout`]: hundreds of candidates in one window.

    A token sees those within half an attention window. Tokens of the question, and the last token of every item (its
    separator, which stands for it in the readout), have global attention: they see the whole window and are seen by
    all of it, so that question and candidates meet over any distance.

    With `reading="question"` the readout reads the candidates by itself, and of LED only the encoder is kept. With
    `reading="decoder"` LED's decoder makes its first step over the states of all windows, and the weights of its last
    cross-attention, summed over an item's tokens, take the place of the readout's reading; permission and score are as
    before.
    """

    config_class = WarrantLEDConfig
    backbone_auto_class = AutoModel

    @classmethod
    def reads(cls, backbone_config) -> bool:
        return backbone_config.model_type in ("led", "longformer")

    def _make_backbone(self, config):
        windows = config.backbone_config.attention_window
        windows = [windows] if isinstance(windows, int) else windows
        if any(window % 2 or max(windows) % window for window in windows):
            raise ValueError(
                f"backbone_config: attention_window is {windows}; windows must be even, and each divide the largest."
            )
        # Not the caller's, because it is changed below.
        backbone = config.backbone_config = deepcopy(config.backbone_config)
        if backbone.model_type == "longformer":
            if config.reading == "decoder":
                raise ValueError("reading is 'decoder', but a Longformer has none; use reading='question' or an LED.")
            made = AutoModel.from_config(backbone, **without_pooler(backbone))
        elif config.reading == "question":
            backbone.decoder_layers = 0  # says in the checkpoint that there is no decoder
            made = LEDEncoder._from_config(backbone)
        else:
            if not backbone.decoder_layers:
                raise ValueError(
                    "reading is 'decoder', but the backbone has no decoder layers, as in a selector made with "
                    "reading='question'; start from an LED with a decoder."
                )
            made = AutoModel.from_config(backbone)
            made.decoder.layerdrop = 0.0  # its last layer reads
        if self.longest_input() < 1:
            raise ValueError(
                f"backbone_config: attention_window {self._block()} is longer than the positions of the encoder; "
                "lower it."
            )
        use_windowed_attention(made)
        return made

    def _reads_elsewhere(self):
        return self.config.reading == "decoder"

    def _freeze(self):
        super()._freeze()
        if self._reads_elsewhere():
            self._freeze_unread()

    def _freeze_unread(self):
        """Holds still what gets no gradient, behind the weights of the last cross-attention."""
        layer = self.backbone.decoder.layers[-1]
        idle = [layer.encoder_attn.v_proj, layer.encoder_attn.out_proj, layer.encoder_attn_layer_norm]
        for module in [*idle, layer.fc1, layer.fc2, layer.final_layer_norm]:
            module.requires_grad_(False)

    @classmethod
    def _load_backbone(cls, source, config, **where):
        loaded = super()._load_backbone(source, config, **where)
        is_encoder = config.backbone_config.model_type == "led" and config.reading == "question"
        return loaded.encoder if is_encoder else loaded

    def _block(self):
        """Windows of attention come whole, so inputs are padded to a multiple of this."""
        window = self.config.backbone_config.attention_window
        return window if isinstance(window, int) else max(window)

    def longest_input(self) -> int:
        """Tokens that the position table of the encoder holds, in whole windows of attention."""
        config = self.config.backbone_config
        if config.model_type == "led":
            return config.max_encoder_position_embeddings // self._block() * self._block()
        return config.max_position_embeddings - self._first_position()

    def _first_position(self):
        # Longformer counts from behind the row of padding.
        return self.config.backbone_config.pad_token_id + 1

    def processor_settings(self) -> dict:
        """Arguments of [`EvidenceProcessor`]: as many candidates to a window as the encoder reaches."""
        return super().processor_settings() | {"max_length": self.longest_input(), "packing": "shared"}

    def _lower_layers(self):
        if self.config.backbone_config.model_type == "longformer":
            return [self.backbone.embeddings], list(self.backbone.encoder.layer)
        encoder = self.backbone.encoder if self.config.reading == "decoder" else self.backbone
        below = [self.backbone.get_input_embeddings(), encoder.embed_positions, encoder.layernorm_embedding]
        return below, list(encoder.layers)

    def _evidence(self, input_ids, segment_ids, item_candidates, candidate_mask, readout, **kwargs):
        rows, windows, tokens = input_ids.shape
        states = self.encode(input_ids, segment_ids, kwargs.get("advance"))
        states = states.view(rows, windows * tokens, -1)
        segments = segment_ids.flatten(1)
        reading = None
        if self.config.reading == "decoder":
            reading = self._decoder_reading(states, segments, item_candidates.shape[1])
        with torch.autocast(states.device.type, enabled=False):  # see _keep_in_fp32_modules_strict
            pooled = self.readout.pool(states, segments, item_candidates.shape[1])
            return self.readout.score(pooled, segments, item_candidates, candidate_mask, reading=reading, **readout)

    def encode(self, input_ids, segment_ids, advance=None) -> torch.Tensor:
        """States `[..., N, D]` of windows `[..., N]`."""

        def some(input_ids, segment_ids):
            # Together no more tokens than the longest window has: memory grows with them.
            at_once = max(1, self.longest_input() // input_ids.shape[1])
            parts = zip(input_ids.split(at_once), segment_ids.split(at_once))
            return torch.cat([self._encode_windows(*part) for part in parts])

        windows = input_ids.flatten(0, -2), segment_ids.flatten(0, -2)
        return self._in_groups(*windows, some, advance).view(*input_ids.shape, -1)

    def _encode_windows(self, input_ids, segment_ids):
        width, limit, block = segment_ids.shape[1], self.longest_input(), self._block()
        if width > limit:
            raise ValueError(
                f"A window needs {width} positions, but the encoder has {limit}; make the processor with "
                f"max_length={limit}."
            )
        # Padded here and not by the backbone, whose padding would bring the embedding of the padding token along.
        beyond = -width % block
        input_ids = nn.functional.pad(input_ids, (0, beyond))
        segment_ids = nn.functional.pad(segment_ids, (0, beyond), value=-1)
        real = segment_ids >= 0
        # Padding takes the embedding of a real token: a NaN in its own passes any mask, because 0 * NaN is NaN.
        input_ids = torch.where(real, input_ids, input_ids.gather(1, real.long().argmax(1, keepdim=True)))
        config, is_global = self.config.backbone_config, global_tokens(segment_ids)
        if config.model_type == "led":
            return self._led_states(input_ids, real, is_global)[:, :width]
        inputs = {"attention_mask": real.long(), "global_attention_mask": is_global.long()}
        index = torch.arange(width + beyond, device=real.device).expand_as(input_ids)
        inputs["position_ids"] = index.masked_fill(~real, 0) + self._first_position()
        if config.type_vocab_size > 1:
            inputs["token_type_ids"] = (segment_ids > 0).long()
        return self.backbone(input_ids=input_ids, **inputs).last_hidden_state[:, :width]

    def _led_states(self, input_ids, real, is_global):
        """`LEDEncoder.forward` without its masks `[R, 1, N, N]`, which are gigabytes at 16k tokens."""
        encoder = self.backbone.encoder if self.config.reading == "decoder" else self.backbone
        states = encoder.embed_tokens(input_ids) + encoder.embed_positions(input_ids.shape)
        states = encoder.layernorm_embedding(states)
        states = nn.functional.dropout(states, p=encoder.dropout, training=self.training)
        for layer in encoder.layers:
            if self.training and encoder.layerdrop and torch.rand(()) < encoder.layerdrop:
                continue
            states = layer(states, None, is_index_masked=~real, is_index_global_attn=is_global, is_global_attn=True)[0]
        return states

    def _decoder_reading(self, states, segment_ids, item_count):
        """Log-weights `[B, H, S]` of each item in the last cross-attention of the decoder's first step."""
        start = segment_ids.new_full((len(states), 1), self.config.backbone_config.decoder_start_token_id)
        weights = self.backbone.decoder(
            input_ids=start,
            encoder_hidden_states=states,
            encoder_attention_mask=(segment_ids >= 0).long(),
            output_attentions=True,
            use_cache=False,
        ).cross_attentions[-1]
        weights = weights[:, :, 0].float()  # [B, H, T]
        item = segment_ids.clamp(min=0).unsqueeze(1).expand_as(weights)
        # Column 0 takes the question and the padding.
        total = weights.new_zeros(*weights.shape[:2], item_count + 1).scatter_add(2, item, weights)[..., 1:]
        return total.clamp(min=torch.finfo(total.dtype).tiny).log()


def global_tokens(segment_ids):
    """`[R, N]` segments -> `[R, N]` bool: the question, and the last token of each item."""
    follows = nn.functional.pad(segment_ids[:, 1:], (0, 1), value=-1)
    return (segment_ids == 0) | ((segment_ids > 0) & (segment_ids != follows))


__all__ = ["WarrantLEDForEvidenceSelection", "global_tokens"]
