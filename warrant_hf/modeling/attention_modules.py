"""Stand-alone attention layers: `nn.MultiheadAttention` with permission, a power, or a precision."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attached_permission import AttentionPermission
from .attention_interface import attend, check_power_field
from .precision import PrecisionHead


class EvidenceMultiheadAttention(nn.Module):
    """What the three layers share: projections, masks and shapes of `nn.MultiheadAttention`, always `batch_first`.

    The parameters have the names and shapes of `nn.MultiheadAttention`, so its state dict loads with `strict=False`
    (what remains missing is the permission or the precision); [`~EvidenceMultiheadAttention.from_multihead`] does it.
    A layer also takes the place of `self_attn` in `nn.TransformerEncoderLayer(..., batch_first=True)`.

    Args:
        embed_dim (`int`), num_heads (`int`): width of the query and the output, and H, which divides it.
        dropout (`float`): on the weights, in training.
        bias (`bool`): of the projections.
        kdim, vdim (`int`, *optional*): widths of key and value if they differ from `embed_dim`.
        batch_first (`bool`): `True`; the layers have no other form.

    Raises:
        TypeError: an unknown setting.
        ValueError: sizes that do not fit, or `batch_first=False`.
    """

    # nn.TransformerEncoderLayer would otherwise read the projections and leave this module out, in evaluation.
    _qkv_same_embed_dim = False
    batch_first = True

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, *, kdim=None, vdim=None, batch_first=True):
        super().__init__()
        if batch_first is not True:
            raise ValueError(
                f"batch_first is {batch_first!r}, but {type(self).__name__} takes [batch, length, width] only; leave "
                "it out, and transpose the inputs."
            )
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}, but embed_dim is {embed_dim}; give a number that divides it.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; give a number from 0 to below 1.")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        else:
            self.register_parameter("in_proj_weight", None)
            self.q_proj_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
            self.k_proj_weight = nn.Parameter(torch.empty(embed_dim, self.kdim))
            self.v_proj_weight = nn.Parameter(torch.empty(embed_dim, self.vdim))
        self.register_parameter("in_proj_bias", nn.Parameter(torch.empty(3 * embed_dim)) if bias else None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        # What a subclass adds; neutral here.
        self.power, self.permission, self.precision = 1.0, None, None
        for weight in self._weights():
            nn.init.xavier_uniform_(weight)
        if bias:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def from_multihead(cls, attention: nn.MultiheadAttention, **settings):
        """The layer with the weights of an `nn.MultiheadAttention`; at neutral settings it gives the same outputs.

        Args:
            attention: with `batch_first=True`.
            settings: of this class beyond those of `nn.MultiheadAttention`.

        Raises:
            ValueError: `attention` has `add_bias_kv`, `add_zero_attn` or `batch_first=False`.
        """
        for name, given in (
            ("add_bias_kv=True", attention.bias_k is not None),
            ("add_zero_attn=True", attention.add_zero_attn),
            ("batch_first=False", not attention.batch_first),
        ):
            if given:
                remedy = "make it without"
                if name == "batch_first=False":
                    remedy = "build it with batch_first=True (its weights are the same), and transpose its inputs"
                raise ValueError(f"The attention has {name}, which {cls.__name__} has not; {remedy}.")
        made = cls(
            attention.embed_dim,
            attention.num_heads,
            attention.dropout,
            attention.in_proj_bias is not None,
            kdim=attention.kdim,
            vdim=attention.vdim,
            **settings,
        )
        made.load_state_dict(attention.state_dict(), strict=False)
        weight = attention.out_proj.weight
        return made.to(device=weight.device, dtype=weight.dtype).train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        items: Tensor | None = None,
        log_precision: Tensor | None = None,
        permission_record: dict[str, list] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """
        Args:
            query (`[B, Q, embed_dim]`).
            key (`[B, K, kdim]`), value (`[B, K, vdim]`): `None` for the query, and for the key.
            key_padding_mask (`[B, K]`): bool, True = not to be read, or floating, added.
            need_weights: return the clean weights too, before permission and dropout.
            attn_mask (`[Q, K]` or `[B * H, Q, K]`): bool, True = not to be read, or floating, added.
            average_attn_weights: over the heads.
            is_causal: query i reads key j only if j <= i + K - Q; needs no `attn_mask`.
            items (`[B, K]`, int64): of a [`WarrantAttention`] with gates per item.
            permission_record: of a [`WarrantAttention`]: `{"permissions": [], "masses": []}` or one of them; the gates
                `[B, H | 1, Q, K]` and the masses `[B, H, Q]` are appended.
            log_precision (`[B, K]`): of a [`PrecisionAttention`], instead of the learned one.

        Returns:
            `[B, Q, embed_dim]`, and the weights `[B, Q, K]` (`[B, H, Q, K]` if not averaged) or `None`. A row without
            any readable key reads nothing, where `nn.MultiheadAttention` gives NaN.

        Raises:
            ValueError: shapes or dtypes that do not fit, or an argument that nothing in this layer reads.
        """
        self._check_arguments(items, log_precision, permission_record)
        key = query if key is None else key
        value = key if value is None else value
        for name, states, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if states.dim() != 3 or states.shape[-1] != width or states.shape[0] != query.shape[0]:
                raise ValueError(f"{name} has shape {list(states.shape)}; give [batch, length, {width}] to all three.")
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        states = [
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), self._weights(), biases)
        ]
        context, weights = attend(
            *states,
            mask=self._mask(attn_mask, key_padding_mask, states[0], key.shape[1]),
            is_causal=is_causal,
            scale=None,
            power=self.power,
            dropout=self.dropout if self.training else 0.0,
            permission=self.permission,
            precision=self.precision,
            items=items,
            log_precision=log_precision,
            record=permission_record,
            need_weights=need_weights,
        )
        if weights is not None:
            weights = (weights.mean(1) if average_attn_weights else weights).to(query.dtype)
        return self.out_proj(context.transpose(1, 2).flatten(2)), weights

    def _check_arguments(self, items, log_precision, permission_record):
        reads_items = self.permission is not None and self.permission.granularity == "item"
        for name, given, is_read, remedy in (
            ("items", items, reads_items, "WarrantAttention(..., granularity='item')"),
            ("log_precision", log_precision, self.precision is not None, "PrecisionAttention"),
            ("permission_record", permission_record, self.permission is not None, "WarrantAttention"),
        ):
            if given is not None and not is_read:
                raise ValueError(
                    f"{name} is given, but this {type(self).__name__} does not read it; use {remedy}, or leave {name} "
                    "out."
                )

    def _weights(self):
        if self.in_proj_weight is not None:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _mask(self, attn_mask, key_padding_mask, query, keys):
        """Two masks as `nn.MultiheadAttention` means them -> one in which True means readable."""
        batch, heads, queries, _ = query.shape
        for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
                raise ValueError(
                    f"{name} has dtype {mask.dtype}; make it bool (True = not to be read), from a Transformers mask "
                    "with attention_mask == 0."
                )
        parts = []
        if attn_mask is not None:
            fits = {(queries, keys): (1, 1), (batch * heads, queries, keys): (batch, heads)}
            if tuple(attn_mask.shape) not in fits:
                raise ValueError(
                    f"attn_mask has shape {list(attn_mask.shape)}; give {[queries, keys]} or "
                    f"{[batch * heads, queries, keys]}."
                )
            parts.append(attn_mask.reshape(*fits[tuple(attn_mask.shape)], queries, keys))
        if key_padding_mask is not None:
            if tuple(key_padding_mask.shape) != (batch, keys):
                raise ValueError(f"key_padding_mask has shape {list(key_padding_mask.shape)}; give {[batch, keys]}.")
            parts.append(key_padding_mask[:, None, None, :])
        if not parts:
            return None
        if all(part.dtype == torch.bool for part in parts):
            return ~(parts[0] | parts[-1])
        return sum(_additive(part, query.dtype) for part in parts)


def _check_settings(kind, part, settings):
    """Raises a `TypeError` in the name of the layer, where Python would name the part that it is made of."""
    of_part = [p.name for p in inspect.signature(part).parameters.values() if p.kind == p.KEYWORD_ONLY]
    unknown = next((name for name in settings if name not in of_part), None)
    if unknown is not None:
        own = [p.name for p in inspect.signature(kind).parameters.values() if p.kind != p.VAR_KEYWORD]
        raise TypeError(f"{kind.__name__} has no setting {unknown!r}; choose from {', '.join([*own, *of_part])}.")


def _additive(mask, dtype):
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


class WarrantAttention(EvidenceMultiheadAttention):
    """Multi-head attention whose terms need a permission (Warrant, section 4).

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim: see [`EvidenceMultiheadAttention`].
        permission: settings of [`AttentionPermission`]; with `start=1`, the default, the first outputs are those of
            softmax attention.
    """

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, *, kdim=None, vdim=None, batch_first=True, **permission
    ):
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
        _check_settings(type(self), AttentionPermission, permission)
        self.permission = AttentionPermission(num_heads, num_heads, embed_dim // num_heads, **permission)


class MassAwareAttention(EvidenceMultiheadAttention):
    """Multi-head attention with weights normalised in L_p (MAA, equation 3); p = 1 is softmax.

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim: see [`EvidenceMultiheadAttention`].
        power (`float`): p > 0; the useful range is 1.02 to 1.3.
    """

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, *, kdim=None, vdim=None, batch_first=True, power=1.1
    ):
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
        self.power = check_power_field(power, "power")


class PrecisionAttention(EvidenceMultiheadAttention):
    """Multi-head attention with a bounded log-precision per key (PFA, "the minimal factorisation"), 0 at first.

    Args:
        embed_dim, num_heads, dropout, bias, kdim, vdim: see [`EvidenceMultiheadAttention`].
        precision: settings of [`PrecisionHead`].
    """

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, *, kdim=None, vdim=None, batch_first=True, **precision
    ):
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
        _check_settings(type(self), PrecisionHead, precision)
        self.precision = PrecisionHead(embed_dim, **precision)


__all__ = ["EvidenceMultiheadAttention", "MassAwareAttention", "PrecisionAttention", "WarrantAttention"]
