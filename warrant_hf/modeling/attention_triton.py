"""Evidence attention on a GPU: checks, memory and launches for the Triton kernels.

Gradients are deterministic with one exception: the gradient of a `[Q, K]` gate or bias that several heads or batch
entries share is summed with atomic additions, as one buffer per head would be as large as the weights. Everything else
that is shared is summed by torch from one float32 buffer per head.

The gradient of an item gate with more than 64 items costs a pass over the tile per item between the first and the last
one of a key tile: cheap where the keys of an item stand together, slow where items are mixed.

On a GPU, the first call with new head widths, a new gate or much longer inputs measures a few tile sizes. Make it
before a CUDA graph is captured.
"""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor

from .attention_problem import AttentionGradients, AttentionProblem

try:
    import triton

    from .attention_triton_gradients import evidence_attention_bwd_dkv_kernel, evidence_attention_bwd_dq_kernel
    from .attention_triton_kernels import evidence_attention_fwd_kernel
except ImportError:
    triton, _KERNELS = None, {}
else:
    _KERNELS = {
        "fwd": evidence_attention_fwd_kernel,
        "bwd_dq": evidence_attention_bwd_dq_kernel,
        "bwd_dkv": evidence_attention_bwd_dkv_kernel,
    }

_LOG2E = 1.4426950408889634
_WIDEST_HEAD = 256
_WIDEST_GATE = 128
_INT32_OFFSETS = 2**31
# Up to this number of items their gate gradients fit into the registers of a tile.
_ITEMS_IN_TILE = 64

# (BLOCK_M, BLOCK_N, warps, stages) by kernel and padded head width, fastest guess first; each list ends with a
# configuration for GPUs with 99 KiB of shared memory.
_HALF_CONFIGS = {
    "fwd": {
        64: [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 2)],
        128: [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2)],
        256: [(128, 64, 8, 2), (64, 64, 8, 2), (32, 32, 8, 2)],
    },
    "bwd_dq": {
        64: [(128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2)],
        128: [(128, 64, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2)],
        256: [(64, 64, 8, 2), (64, 32, 8, 2), (32, 32, 8, 1)],
    },
    "bwd_dkv": {
        64: [(64, 128, 8, 3), (32, 128, 8, 3), (64, 64, 4, 3), (32, 64, 4, 2)],
        128: [(64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2), (32, 64, 8, 2)],
        256: [(64, 64, 8, 1), (32, 64, 8, 2), (32, 32, 8, 1)],
    },
}
# The error function, inlined for every element of a thread, compiles slowly and leaves the products no weight.
_MLP_CONFIGS = {
    64: [(64, 64, 8, 1), (64, 32, 4, 1)],
    128: [(64, 64, 8, 1), (32, 32, 4, 1)],
    256: [(32, 64, 8, 1), (32, 32, 8, 1)],
}
# Products of float32 run on the FMA units, unrolled: larger tiles spill and take minutes to compile.
_FLOAT_CONFIGS = {
    64: [(32, 32, 8, 2), (32, 32, 4, 2)],
    128: [(32, 32, 8, 2), (32, 16, 4, 2)],
    256: [(32, 16, 8, 1), (16, 16, 4, 1)],
}


def unsupported(problem: AttentionProblem) -> str | None:
    """One sentence why this backend cannot compute the problem, or `None`."""
    if triton is None:
        return "Triton is not installed."
    query, value = problem.query, problem.value
    if not _is_interpreted():
        if query.device.type != "cuda":
            return f"Triton kernels need a GPU, but query is on {query.device}."
        if torch.version.hip is None and torch.cuda.get_device_capability(query.device) < (8, 0):
            return "Triton kernels need a GPU of compute capability 8.0 or newer."
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"Triton kernels compute float32, float16 and bfloat16, not {query.dtype}."
    if max(query.shape[-1], value.shape[-1]) > _WIDEST_HEAD:
        return f"Triton kernels take heads up to {_WIDEST_HEAD} wide, not {query.shape[-1]} and {value.shape[-1]}."
    if problem.gate_kind in ("mlp", "low_rank"):
        if problem.gate[0].shape[-1] > _WIDEST_GATE:
            return f"Triton kernels take learned gates up to {_WIDEST_GATE} wide, not {problem.gate[0].shape[-1]}."
        if torch.float64 in {x.dtype for x in problem.gate}:
            return "Triton kernels compute learned gates in float32, not float64."
    if problem.dropout > 0:
        return "Triton kernels have no dropout."
    return None


def forward(problem: AttentionProblem, need_mass: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Context, mass (empty unless `need_mass`), lse and lse_power; the last two are one tensor at p = 1."""
    problem = _items_per_key(problem)
    query = problem.query
    rows, is_softmax = query.shape[:3], problem.power == 1
    context = query.new_empty(*rows, problem.value.shape[-1])
    mass = query.new_empty(rows if need_mass else 0, dtype=torch.float32)
    lse = query.new_empty(rows, dtype=torch.float32)
    lse_power = lse if is_softmax else torch.empty_like(lse)
    if lse.numel() == 0:
        return context, mass, lse, lse_power

    arguments = _common_arguments(problem, is_softmax)
    arguments |= {"context": context, "mass": mass, "lse": lse, "lse_power": lse_power, "NEED_MASS": need_mass}
    _launch("fwd", problem, arguments, "BLOCK_M", rows)
    return context, mass, lse, lse_power


def backward(
    problem: AttentionProblem,
    lse: Tensor,
    lse_power: Tensor,
    d_context: Tensor,
    d_mass: Tensor | None,
    row: Tensor,
    row_power: Tensor,
    needs: set[str],
) -> AttentionGradients:
    """Gradients of the arguments named in `needs`, float32, in the shapes of their tensors."""
    given, problem = problem, _items_per_key(problem)
    query, key, value, bias = problem.query, problem.key, problem.value, problem.bias
    (batch, heads, queries), keys = query.shape[:3], key.shape[2]
    float32 = functools.partial(query.new_empty, dtype=torch.float32)
    # Only the gradient of the power tells row and row_power apart at p = 1.
    is_softmax = problem.power == 1 and "power" not in needs
    if is_softmax:
        row = row + row_power

    need_bias, need_gate = bias is not None and "bias" in needs, bool(problem.gate) and "gate" in needs
    bias_by_query = need_bias and bias.shape[2] != 1
    gate_by_query = need_gate and (problem.gate_kind != "tensor" or problem.gate[0].shape[2] != 1)
    bias_by_key, gate_by_key = need_bias and not bias_by_query, need_gate and problem.gate_kind != "item"
    if problem.gate_kind == "tensor":
        gate_by_key = need_gate and not gate_by_query
    learned = problem.gate_kind in ("mlp", "low_rank")

    d_context = d_context.to(query.dtype)
    common = _common_arguments(problem, is_softmax, d_context)
    common |= {
        "lse": lse.contiguous(),
        "lse_power": lse_power.contiguous(),
        "d_context": d_context,
        "d_mass": None if d_mass is None else d_mass.float().contiguous(),
        "row": row.float().contiguous(),
        "row_power": row_power.float().contiguous(),
        "scale": float(problem.scale),
        **_strides(d_context, "obohomod"),
    }

    d_query = float32(query.shape) if "query" in needs else None
    d_power = float32(batch, heads, queries) if "power" in needs else None
    d_bias = _new_pairs(bias, problem) if bias_by_query else None
    d_gate = None
    if gate_by_query and problem.gate_kind == "tensor":
        d_gate = _new_pairs(problem.gate[0], problem)
    elif gate_by_query:
        # As wide as the kernel's R: a new number of items in each batch shall not be a new kernel.
        d_gate = float32(batch, heads, queries, common["R"])
        if problem.gate_kind == "item" and common["R"] > _ITEMS_IN_TILE:
            d_gate.zero_()
    if any(x is not None for x in (d_query, d_power, d_bias, d_gate)) and batch * heads * queries > 0:
        pair_strides = _pair_strides(d_bias, problem, "dbias")
        pair_strides |= _pair_strides(d_gate if problem.gate_kind == "tensor" else None, problem, "dgate")
        arguments = common | pair_strides
        arguments |= {"d_query": d_query, "d_bias": d_bias, "d_gate": d_gate, "d_power": d_power}
        arguments |= {
            "NEED_DQ": d_query is not None,
            "NEED_DBIAS": bias_by_query,
            "NEED_DGATE": gate_by_query,
            "NEED_DPOWER": d_power is not None,
            "BIAS_IS_SHARED": bias_by_query and _is_shared(bias, problem),
            "GATE_IS_SHARED": gate_by_query and _is_shared(problem.gate[0], problem),
        }
        _launch("bwd_dq", problem, arguments, "BLOCK_M", (batch, heads, queries))

    d_key = float32(key.shape) if "key" in needs else None
    d_value = float32(value.shape) if "value" in needs else None
    d_bias_key = float32(batch, heads, 1, keys) if bias_by_key else None
    d_gate_key = d_weight = d_offset = None
    if gate_by_key and learned:
        width = problem.gate[0].shape[-1]
        d_gate_key = float32(batch, heads, keys, width)
        # One part per key tile and head; tiles have at least 16 keys, and the parts of larger tiles stay 0.
        parts = batch * heads * -(-keys // 16)
        d_offset = float32(parts).zero_()
        d_weight = float32(parts, width).zero_() if problem.gate_kind == "mlp" else None
    elif gate_by_key:
        d_gate_key = float32(batch, heads, 1, keys)
    if any(x is not None for x in (d_key, d_value, d_bias_key, d_gate_key)) and batch * key.shape[1] * keys > 0:
        arguments = common | {"d_key": d_key, "d_value": d_value, "d_bias": d_bias_key, "d_gate": d_gate_key}
        arguments |= {
            "d_weight": d_weight,
            "d_offset": d_offset,
            "num_heads": key.shape[1],
            "NEED_DK": d_key is not None,
            "NEED_DV": d_value is not None,
            "NEED_DBIAS": bias_by_key,
            "NEED_DGATE": gate_by_key,
        }
        _launch("bwd_dkv", problem, arguments, "BLOCK_N", (batch, key.shape[1], keys))

    if bias_by_key:
        d_bias = d_bias_key.sum_to_size(bias.shape)
    gate_gradients: tuple[Tensor | None, ...] = (None,) * len(given.gate)
    if need_gate and learned:
        first = d_gate.sum_to_size(problem.gate[0].shape)
        second = d_gate_key.sum_to_size(problem.gate[1].shape)
        last = d_offset.sum().view(problem.gate[-1].shape)
        gate_gradients = (first, second, last) if d_weight is None else (first, second, d_weight.sum(dim=0), last)
    elif need_gate:
        d_values = (d_gate if gate_by_query else d_gate_key)[..., : problem.gate[0].shape[-1]]
        d_values = d_values.sum_to_size(problem.gate[0].shape).contiguous()
        if given.gate_kind != "item":
            gate_gradients = (d_values,)
        elif problem.gate_kind == "item":
            gate_gradients = (d_values, None)
        else:
            values, items = given.gate
            # A product with the indicator, as index additions on a GPU have no fixed order.
            indicator = items.unsqueeze(-1) == torch.arange(values.shape[-1], device=items.device)
            d_values = torch.matmul(d_values, indicator.unsqueeze(1).float())
            gate_gradients = (d_values.sum_to_size(values.shape), None)
    return AttentionGradients(
        query=d_query,
        key=d_key,
        value=d_value,
        bias=d_bias,
        gate=gate_gradients,
        power=None if d_power is None else d_power.sum(),
    )


def _is_interpreted() -> bool:
    """Whether Triton runs the kernels in Python (TRITON_INTERPRET=1), for tests without a GPU."""
    return not isinstance(_KERNELS["fwd"].fn, triton.JITFunction)


def _items_per_key(problem: AttentionProblem) -> AttentionProblem:
    """An item gate that all queries share is a gate per key, which no kernel has to gather."""
    if problem.gate_kind != "item" or problem.gate[0].shape[2] != 1:
        return problem
    values, items = problem.gate
    batch = max(values.shape[0], items.shape[0])
    index = items[:, None, None, :].expand(batch, values.shape[1], 1, -1)
    return problem._replace(gate_kind="tensor", gate=(values.expand(batch, -1, -1, -1).gather(-1, index),))


def _common_arguments(
    problem: AttentionProblem, is_softmax: bool, d_context: Tensor | None = None
) -> dict[str, object]:
    """What all three kernels take."""
    query, key, value, keep, bias = problem[:5]
    (batch, heads, queries, width), (kv_heads, keys) = query.shape, key.shape[1:3]
    first = second = weight = offset = None
    if problem.gate_kind == "tensor":
        (first,) = problem.gate
    elif problem.gate_kind == "item":
        first, items = problem.gate
        second = items[:, None, :, None]
    elif problem.gate_kind == "low_rank":
        first, second, offset = problem.gate
    elif problem.gate_kind == "mlp":
        # The kernel reads one column after the other; the copies make these reads contiguous.
        first, second = (x.mT.contiguous().mT for x in problem.gate[:2])
        weight, offset = problem.gate[2].contiguous(), problem.gate[3]
    if problem.gate_kind == "low_rank" and first.dtype != second.dtype:
        first, second = first.float(), second.float()
    last = 1 if first is None else first.shape[-1]
    gate_width = {"none": 1, "tensor": 1, "item": _pad(last)}.get(problem.gate_kind, last)
    block_r = _pad(gate_width) if problem.gate_kind != "item" or gate_width <= _ITEMS_IN_TILE else 16
    # The farthest place of a head that an offset may name, with a whole tile behind the end.
    widest = max(width, value.shape[-1], gate_width)
    extents = [(queries + 128) * (keys + widest), (keys + 128) * widest]
    for tensor in (query, key, value, keep, bias, first, second, d_context):
        if tensor is not None:
            extents.append(sum((size + 128) * stride for size, stride in zip(tensor.shape[2:], tensor.stride()[2:])))
    return {
        "q": query,
        "k": key,
        "v": value,
        "keep": None if keep is None else keep.view(torch.uint8),
        "bias": bias,
        "gate_a": first,
        "gate_b": second,
        "gate_weight": weight,
        "gate_offset": offset,
        **_strides(query, "qbqhqmqd"),
        **_strides(key, "kbkhknkd"),
        **_strides(value, "vbvhvnvd"),
        **_strides(keep, ("keepb", "keeph", "keepm", "keepn"), (batch, heads, queries, keys)),
        **_strides(bias, ("biasb", "biash", "biasm", "biasn"), (batch, heads, queries, keys)),
        **_strides(first, "abahamar", (batch, heads, queries, last)),
        **_strides(second, "bbbhbnbr", (batch, heads, keys, 1 if problem.gate_kind == "item" else last)),
        "num_heads": heads,
        "Q": queries,
        "K": keys,
        "scale_log2e": problem.scale * _LOG2E,
        "power": float(problem.power),
        "leak": float(problem.leak),
        "GROUPS": heads // kv_heads,
        "D": width,
        "DV": value.shape[-1],
        "R": gate_width,
        "GATE_KIND": problem.gate_kind,
        "GATE_ROWS": problem.gate_kind != "tensor" or first.shape[2] != 1,
        "BIAS_ROWS": bias is not None and bias.shape[2] != 1,
        "KEEP_ROWS": keep is not None and keep.shape[2] != 1,
        "IS_CAUSAL": problem.is_causal,
        "POWER_IS_ONE": is_softmax,
        "WIDE": max(extents) >= _INT32_OFFSETS,
        "BLOCK_D": _pad(width),
        "BLOCK_DV": _pad(value.shape[-1]),
        "BLOCK_R": block_r,
    }


def _pad(width: int) -> int:
    """The next power of two that a product in Triton takes."""
    return max(16, 1 << (width - 1).bit_length())


def _strides(
    tensor: Tensor | None, names: str | tuple[str, ...], sizes: tuple[int, ...] | None = None
) -> dict[str, int]:
    """Strides as kernel arguments `s_<name>`, 0 on axes on which the tensor broadcasts to `sizes`."""
    if isinstance(names, str):
        names = tuple(names[at : at + 2] for at in range(0, len(names), 2))
    if tensor is None:
        strides = (0,) * len(names)
    else:
        strides = (tensor if sizes is None else tensor.expand(sizes)).stride()
    return {f"s_{name}": stride for name, stride in zip(names, strides)}


def _is_shared(pairs: Tensor, problem: AttentionProblem) -> bool:
    """Whether one entry of a `[b, h, Q, K]` tensor belongs to several heads or batch entries."""
    return pairs.shape[:2] != problem.query.shape[:2]


def _new_pairs(pairs: Tensor, problem: AttentionProblem) -> Tensor:
    """Memory for the gradient of a `[b, h, Q, K]` tensor, 0 where the kernel adds to it or skips tiles."""
    new = torch.zeros if problem.is_causal or _is_shared(pairs, problem) else torch.empty
    return new(pairs.shape, dtype=torch.float32, device=pairs.device)


def _pair_strides(pairs: Tensor | None, problem: AttentionProblem, name: str) -> dict[str, int]:
    sizes = (*problem.query.shape[:3], problem.key.shape[2])
    strides = _strides(pairs, (f"{name}b", f"{name}h", "", ""), sizes)
    return {key: strides[key] for key in (f"s_{name}b", f"s_{name}h")}


def _launch(
    name: str, problem: AttentionProblem, arguments: dict[str, object], block: str, sizes: tuple[int, int, int]
) -> None:
    """Runs kernel `name` with one program per tile of the last of `sizes`."""
    batch, heads, length = sizes
    if _is_interpreted():
        run, config = _KERNELS[name], {"BLOCK_M": 32, "BLOCK_N": 64}
    else:
        # Whatever moves the optimum; lengths in powers of two, so that a new length is rarely a new measurement.
        traits = [value for flag, value in arguments.items() if flag.isupper() and flag not in ("Q", "K")]
        traits += [problem.query.shape[2].bit_length(), problem.key.shape[2].bit_length(), problem.query.device]
        traits += [problem.keep is None, problem.bias is None]
        width = max(64, arguments["BLOCK_D"], arguments["BLOCK_DV"])
        run, config = _tuned_kernel(name, width, problem.query.dtype, problem.gate_kind, *traits), {}
    on_device = torch.cuda.device(problem.query.device) if problem.query.is_cuda else contextlib.nullcontext()
    with on_device:
        run[lambda meta: (batch * heads * triton.cdiv(length, meta[block]),)](**arguments, **config)


def _configs(name: str, width: int, dtype: torch.dtype, gate_kind: str) -> list[tuple[int, int, int, int]]:
    if dtype == torch.float32:
        return _FLOAT_CONFIGS[width]
    return (_MLP_CONFIGS if gate_kind == "mlp" else _HALF_CONFIGS[name])[width]


@functools.cache
def _tuned_kernel(name: str, width: int, dtype: torch.dtype, gate_kind: str, *traits: object) -> object:
    """The kernel with the configurations of its head width; `traits` only keep measurements apart."""
    configs = [
        triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=warps, num_stages=stages)
        for block_m, block_n, warps, stages in _configs(name, width, dtype, gate_kind)
    ]
    kernel = _KERNELS[name]
    return triton.autotune(configs=configs, key=[], pre_hook=_clear_sums)(kernel)


def _clear_sums(arguments: dict[str, object], reset_only: bool = False) -> None:
    """Measuring runs a kernel many times, but some gradients are added to what is there."""
    for name in ("d_bias", "d_gate", "d_weight", "d_offset"):
        if arguments.get(name) is not None:
            arguments[name].zero_()


__all__ = ["backward", "forward", "unsupported"]
