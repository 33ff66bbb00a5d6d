"""The amplitude's way through a model, module by module: where a norm erases it (MAA, sections on STPP and on norms).

MAA writes the effective support of a row into the length of its vector. A LayerNorm behind it sets that length to a
constant; what was measured at the attention is then gone from the state that the predictor gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..modeling.attention_interface import uses_interface
from ..modeling.attention_modules import EvidenceMultiheadAttention
from .probes import Recovery, probe_recovery

#: A norm through which less than this share of a change of scale passes has erased the amplitude.
ERASED_BELOW = 0.05


@dataclass(frozen=True)
class TraceSite:
    """One place on the way of the states through a model.

    Attributes:
        name: of the module. kind: "attention" or "norm".
        mass: mean over rows and heads of sum_j w_ij, which is the amplitude g_p (1 for softmax); NaN where the module
            returns no weights.
        norm: mean L_2 norm of the rows behind the module.
        spread: standard deviation over rows of the logarithm of that norm.
        passed: of a norm, the share of a change of scale that passes, |f(2x) - f(x)| / |f(x)|: 1 for a linear map, 0
            for a LayerNorm. NaN of an attention.
        recovery: of `target` from these states by a probe, or `None`.
    """

    name: str
    kind: str
    mass: float
    norm: float
    spread: float
    passed: float
    recovery: Recovery | None = None

    @property
    def is_erased(self) -> bool:
        """Whether this is a norm that takes the amplitude of its input away."""
        return self.passed < ERASED_BELOW


def amplitude_trace(
    model: nn.Module,
    inputs: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    *,
    target=None,
    held_out=None,
    position: int = 0,
    **probe_settings,
) -> list[TraceSite]:
    """Follows the amplitude through a model, module by module in the order of computation (MAA, section on STPP).

    What a norm takes away is the scale of its own input. Behind a residual sum, part of the mass lives on as a
    direction; `recovery` of two models, p = 1 and p > 1, tells how much. `pandas.DataFrame(trace)` makes a table.

    Args:
        model: a transformers model whose attention goes through `AttentionInterface`, or a module with layers such as
            [`MassAwareAttention`]. It is put into evaluation mode for the call.
        inputs: arguments of the forward pass, or a list of such batches. Rows where `attention_mask` is 0 do not
            count. For masses, add `output_attentions=True` under "maa" or "warrant", or `need_weights=True`.
        target: `[rows of all batches]`, adds `recovery` from the state at `position`.
        held_out: `[rows]` bool, needed with `target`.
        position: of the token whose state is probed.
        probe_settings: of [`probe_recovery`].

    Raises:
        ValueError: the model has neither attention nor norm, `target` without `held_out`, or what the probe refuses.
    """
    if (target is None) != (held_out is None):
        raise ValueError("Give target and held_out together, or neither.")
    kinds = {name: _kind(module) for name, module in model.named_modules()}
    watched = {name: kind for name, kind in kinds.items() if kind}
    if not watched:
        raise ValueError(f"{type(model).__name__} has no attention and no norm that could be followed; give another.")
    batches = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    calls: list[list[dict]] = []
    was_training = model.training
    hooks = [
        model.get_submodule(name).register_forward_hook(_recorder(name, kind, calls, position))
        for name, kind in watched.items()
    ]
    try:
        model.eval()
        with torch.no_grad():
            for batch in batches:
                calls.append([{"mask": batch.get("attention_mask")}])
                model(**batch)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return [_site(group, target, held_out, probe_settings) for group in zip(*(c[1:] for c in calls), strict=True)]


def _kind(module):
    if uses_interface(type(module)) or isinstance(module, EvidenceMultiheadAttention):
        return "attention"
    is_norm = isinstance(module, nn.LayerNorm | nn.RMSNorm) or type(module).__name__.endswith(("LayerNorm", "RMSNorm"))
    return "norm" if is_norm else None


def _recorder(name, kind, calls, position):
    def record(module, arguments, output):
        states, *rest = output if isinstance(output, tuple) else (output,)
        if states.dim() != 3:
            return
        rows = torch.ones(states.shape[:2], dtype=torch.bool)
        mask = calls[-1][0]["mask"]
        if mask is not None and mask.shape == rows.shape:
            rows = mask.cpu().bool()
        norms, passed = states.float().norm(dim=-1).cpu(), torch.full(rows.shape, math.nan)
        if kind == "norm" and arguments:
            change = (module.forward(2 * arguments[0]) - states).float().norm(dim=-1)
            passed = (change / states.float().norm(dim=-1).clamp(min=1e-30)).cpu()
        mass = torch.full((1,), math.nan)
        if rest and rest[0] is not None and rest[0].shape[-2] == rows.shape[1]:
            mass = rest[0].float().sum(-1).cpu()  # [B, H, Q], or [B, Q] where heads are averaged
            mass = (mass.mean(1) if mass.dim() == 3 else mass)[rows]
        found = {"norm": norms[rows], "passed": passed[rows], "mass": mass, "state": states[:, position].float().cpu()}
        calls[-1].append({"name": name, "kind": kind, **found})

    return record


def _site(group, target, held_out, settings):
    norm, passed, mass, states = (
        torch.cat([call[key] for call in group]) for key in ("norm", "passed", "mass", "state")
    )
    recovery = None if target is None else probe_recovery(states, target, held_out, **settings)
    logs = norm.clamp(min=1e-30).double().log()
    return TraceSite(
        name=group[0]["name"],
        kind=group[0]["kind"],
        mass=float(mass.mean()),
        norm=float(norm.mean()),
        spread=float(logs.std()) if len(logs) > 1 else 0.0,
        passed=float(passed.mean()),
        recovery=recovery,
    )


__all__ = ["ERASED_BELOW", "TraceSite", "amplitude_trace"]
