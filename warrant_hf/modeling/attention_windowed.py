"""The attention of LED and Longformer encoders, block by block through PyTorch's fused attention.

Same weights and same result as the classes of transformers. Those write out logits `[B, T, H, window + globals]` and
copy them several times, and training keeps the copies; here they never leave the fused kernel.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.models.led.modeling_led import LEDEncoderSelfAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention


class _Windowed:
    def forward(
        self,
        hidden_states,
        attention_mask=None,
        is_index_masked=None,
        is_index_global_attn=None,
        is_global_attn=None,
        output_attentions=False,
    ):
        """
        Args:
            hidden_states (`[B, T, D]`): T a multiple of the window.
            is_index_masked, is_index_global_attn (`[B, T]`, bool): padding, and tokens with global attention.

        Returns:
            A tuple of the context `[B, T, D]`.
        """
        if output_attentions:  # the fused kernel has no weights to show
            return super().forward(
                hidden_states, attention_mask, is_index_masked, is_index_global_attn, is_global_attn, output_attentions
            )
        is_global, real = is_index_global_attn, ~is_index_masked
        dropout = self.dropout if self.training else 0.0
        query, key, value = (self._heads(part(hidden_states)) for part in (self.query, self.key, self.value))
        count = int(is_global.sum(1).max())
        # Global tokens of each row, in order; a row with fewer has others behind them, which `exists` hides.
        places = is_global.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
        exists = torch.arange(count, device=places.device) < is_global.sum(1, keepdim=True)

        context = scaled_dot_product_attention(
            self._blocks(query).flatten(0, 1),
            self._reached(key, places),
            self._reached(value, places),
            attn_mask=self._mask(real, is_global, exists),
            dropout_p=dropout,
        )  # [B * blocks, H, block, d]
        context = context.transpose(1, 2).reshape(hidden_states.shape)
        if count:
            asked = hidden_states.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden_states.shape[-1]))
            seen = scaled_dot_product_attention(
                self._heads(self.query_global(asked)),
                self._heads(self.key_global(hidden_states)),
                self._heads(self.value_global(hidden_states)),
                attn_mask=real[:, None, None, :],
                dropout_p=dropout,
            )
            seen = seen.transpose(1, 2).flatten(2)  # [B, count, D]
            context = context.masked_scatter(is_global.unsqueeze(-1), seen[exists])
        return (context,)

    def _heads(self, states):
        return states.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # [B, H, T, d]

    def _blocks(self, states):
        """`[B, H, T, d]` -> `[B, blocks, H, w, d]`."""
        return states.unflatten(2, (-1, self.one_sided_attn_window_size)).transpose(1, 2)

    def _reached(self, states, places):
        """What a block may see: the global tokens, and itself with its neighbours, `[B * blocks, H, G + 3w, d]`."""
        every = states.gather(2, places[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim))
        blocks = self._blocks(states)
        every = every.unsqueeze(1).expand(-1, blocks.shape[1], -1, -1, -1)
        blocks = pad(blocks, (0, 0, 0, 0, 0, 0, 1, 1))
        return torch.cat([every, blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], 3).flatten(0, 1)

    def _mask(self, real, is_global, exists):
        """`[B * blocks, 1, w, G + 3w]`, bool. Global tokens are seen as such, and not once more as neighbours."""
        width = self.one_sided_attn_window_size
        ahead = torch.arange(3 * width, device=real.device) - torch.arange(width, device=real.device).unsqueeze(1)
        near = pad(real & ~is_global, (width, width)).unfold(1, 3 * width, width).flatten(0, 1)  # [B * blocks, 3w]
        near = near.unsqueeze(1) & ((ahead >= 0) & (ahead <= 2 * width))
        # Padding sees itself, so that no row is empty.
        near = near | ((ahead == width) & ~real.reshape(-1, width, 1))
        every = exists.repeat_interleave(len(near) // len(exists), 0).unsqueeze(1).expand(-1, width, -1)
        return torch.cat([every, near], 2).unsqueeze(1)


class WindowedLEDSelfAttention(_Windowed, LEDEncoderSelfAttention):
    """LED's, with the parameters of `LEDEncoderSelfAttention`."""


class WindowedLongformerSelfAttention(_Windowed, LongformerSelfAttention):
    """Longformer's, with the parameters of `LongformerSelfAttention`."""


_WINDOWED = {
    LEDEncoderSelfAttention: WindowedLEDSelfAttention,
    LongformerSelfAttention: WindowedLongformerSelfAttention,
}


def use_windowed_attention(model: nn.Module) -> None:
    """Puts the attention of this file in the place of transformers' own; parameters and their names stay."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in _WINDOWED:
                made = _WINDOWED[type(child)](child.config, child.layer_id)
                made.load_state_dict(child.state_dict())
                setattr(parent, name, made.train(child.training))


__all__ = ["WindowedLEDSelfAttention", "WindowedLongformerSelfAttention", "use_windowed_attention"]
