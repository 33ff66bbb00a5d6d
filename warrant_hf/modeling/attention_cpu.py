"""Fused evidence attention on the CPU: prepares the arguments of `cpu_kernel/kernel.cpp` and compiles it at first use.

Nothing here is needed: without a compiler, AVX-512 or the C++ files, [`unsupported`] says so and another backend runs.
The environment variable `WARRANT_HF_CPU_KERNEL=0` switches the kernel off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch
from torch import Tensor

from .attention_problem import AttentionGradients, AttentionProblem

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).with_name("cpu_kernel")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-w")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3, torch.bool: 4}
_KINDS = ("none", "tensor", "item", "mlp", "low_rank")
# Chunks of queries sum gradients of keys and values in copies of their own; so much memory may go into these.
_COPIES_LIMIT = 1 << 28
# Jobs are cut smaller until the threads are busy for this share of the time.
_SHARE_BUSY = 0.85
# Multiplications that are worth one more thread.
_THREAD_WORK = 1 << 21
_lock = threading.Lock()


def unsupported(problem: AttentionProblem) -> str | None:
    """One sentence why this backend cannot do `problem`, or `None`. The first call may compile for some seconds."""
    tensors = [problem.query, problem.key, problem.value, problem.keep, problem.bias, *problem.gate]
    if any(x is not None and x.device.type != "cpu" for x in tensors):
        return "The CPU kernel reads tensors on the CPU only."
    if problem.query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"The CPU kernel does not compute in {problem.query.dtype}."
    if any(x is not None and x.dtype not in _TYPES and x.is_floating_point() for x in tensors):
        return "The CPU kernel does not read one of the dtypes of the gate and the bias."
    if problem.dropout > 0.0:
        return "The CPU kernel has no dropout."
    if any(x is not None and x.numel() == 0 for x in tensors):
        return "The CPU kernel does not take empty tensors."
    return _missing()


def forward(problem: AttentionProblem, need_mass: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`context [B, H, Q, Dv]` in the dtype of the query, and `mass`, `lse`, `lse_power` `[B, H, Q]` in float32.

    `mass` is empty unless `need_mass`; `lse_power` is `lse` at p = 1.
    """
    arguments, held = _arguments(problem)
    rows = problem.query.shape[:3]
    context = problem.query.new_empty(*rows, problem.value.shape[-1])
    lse = problem.query.new_empty(rows, dtype=torch.float32)
    lse_power = lse if problem.power == 1.0 else torch.empty_like(lse)
    mass = lse.new_empty(rows if need_mass else 0)
    arguments.context = context.data_ptr()
    arguments.lse = lse.data_ptr()
    arguments.lse_power = lse_power.data_ptr() if lse_power is not lse else None
    arguments.mass = mass.data_ptr() if need_mass else None
    _run("warrant_forward", arguments)
    del held
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
    """Gradients of what `needs` names: those of query, key and value in the dtype of the query, the other ones in
    float32. Same numbers on every run with the same number of threads.

    Args:
        lse, lse_power: of the forward pass.
        d_context: gradient of `context`.
        d_mass: `[B, H, Q]`, gradient of `mass`, or `None`.
        row: `[B, H, Q]`, what multiplies a_ij in the gradient of a logit.
        row_power: `[B, H, Q]`, what multiplies r_ij there.
        needs: names out of "query", "key", "value", "bias", "gate", "power".
    """
    arguments, held = _arguments(problem)
    batch, heads, queries, width = problem.query.shape
    kv_heads, keys = problem.key.shape[1:3]
    arguments.d_context = _view(d_context)
    lse = lse.detach()
    rows = {"lse": lse, "lse_power": lse_power, "d_mass": d_mass, "row": row, "row_power": row_power}
    for name, x in rows.items():
        if x is not None:
            held.append(x := x.to(torch.float32).contiguous())
            setattr(arguments, name, x.data_ptr())

    pairs = _pair_gradients(problem, needs)
    parts = _Parts(problem, [shape for shape, by_row in pairs.values() if by_row])
    arguments.batch_parts, arguments.head_parts, arguments.chunks = parts.batch, parts.heads, parts.chunks
    sums = {}
    for name, (shape, by_row) in pairs.items():
        copies, factors = parts.copies(shape, by_row)
        sums[name] = lse.new_zeros(copies, *shape)
        setattr(arguments, name, sums[name].data_ptr())
        getattr(arguments, f"{name}_step")[:] = _steps(sums[name])[:4]
        getattr(arguments, f"{name}_job")[:] = factors
    for name, shape, dtype in (
        ("d_weight", (parts.jobs, arguments.rank), torch.float32),
        ("d_offset", (parts.jobs,), torch.float64),
        ("d_power", (parts.jobs,), torch.float64),
    ):
        if _needs_sum(name, problem, needs):
            sums[name] = lse.new_zeros(shape, dtype=dtype)
            setattr(arguments, name, sums[name].data_ptr())

    direct = {}
    for name, shape in {
        "query": (batch, heads, queries, width),
        "key": (batch, kv_heads, keys, width),
        "value": (batch, kv_heads, keys, problem.value.shape[-1]),
    }.items():
        setattr(arguments, f"need_{name}", name in needs)
        if name in needs:
            direct[name] = problem.query.new_empty(shape)
            setattr(arguments, f"d_{name}", direct[name].data_ptr())
    _run("warrant_backward", arguments)
    del held

    sums = {name: x.sum(dim=0) for name, x in sums.items()}
    gate: tuple[Tensor | None, ...] = ()
    if "gate" in needs and problem.gate_kind != "none":
        found = {
            "tensor": ("d_gate_query",),
            "item": ("d_gate_query", None),
            "mlp": ("d_gate_query", "d_gate_key", "d_weight", "d_offset"),
            "low_rank": ("d_gate_query", "d_gate_key", "d_offset"),
        }[problem.gate_kind]
        gate = tuple(
            None if name is None else _sum_to(sums[name], x.shape) for name, x in zip(found, problem.gate, strict=True)
        )
    power = (sums["d_power"] / problem.power).float() if "d_power" in sums else None
    return AttentionGradients(**direct, bias=sums.get("d_bias"), gate=gate, power=power)


def _pair_gradients(problem: AttentionProblem, needs: set[str]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Name -> shape that the C++ side fills, and whether its third axis counts the queries (otherwise it is the keys).

    An axis of queries of size 1 is one of these too: it is summed in copies.
    """
    found = {}
    if "bias" in needs and problem.bias is not None:
        found["d_bias"] = (tuple(problem.bias.shape), True)
    if "gate" in needs and problem.gate_kind != "none":
        shape = tuple(problem.gate[0].shape)
        if problem.gate_kind in ("mlp", "low_rank"):
            shape = (*shape[:2], problem.query.shape[2], shape[3])
            found["d_gate_key"] = (tuple(problem.gate[1].shape), False)
        found["d_gate_query"] = (shape, True)
    return found


def _needs_sum(name: str, problem: AttentionProblem, needs: set[str]) -> bool:
    if name == "d_power":
        return "power" in needs
    kinds = ("mlp",) if name == "d_weight" else ("mlp", "low_rank")
    return "gate" in needs and problem.gate_kind in kinds


class _Parts:
    """How the backward pass is cut into jobs so that no two of them write to one place.

    A gradient with an axis of queries that is too large for copies keeps the axes that it sums over in one job. Jobs
    that have whole heads come first, because they need the least memory; chunks of queries only keep threads busy.
    """

    def __init__(self, problem: AttentionProblem, shapes: list[tuple[int, ...]]):
        batch, heads, queries, width = problem.query.shape
        kv_heads, keys = problem.key.shape[1:3]
        self._shape, self._is_whole = (batch, heads), queries == 1
        large = [shape for shape in shapes if self._has_rows(shape) and not self._is_small(shape, problem)]
        is_pairwise = problem.gate_kind in ("mlp", "low_rank")
        # Also without gradients, a costly gate that all heads share is evaluated once for them.
        together = is_pairwise and all(x.shape[1] == 1 for x in problem.gate[:2])
        self.batch = batch if all(shape[0] == batch for shape in large) else 1
        self.heads = kv_heads if not together and all(shape[1] == heads for shape in large) else 1
        row_blocks = -(-queries // _library().warrant_row_block())
        copy_size = 4 * batch * kv_heads * keys * (width + problem.value.shape[-1])
        most = max(1, min(row_blocks, _COPIES_LIMIT // copy_size))
        threads = _threads(problem)
        self.chunks = next((n for n in range(1, most) if self._share_busy(n, threads) >= _SHARE_BUSY), most)
        self.jobs = self.batch * self.heads * self.chunks

    def _share_busy(self, chunks: int, threads: int) -> float:
        """Share of the time that the threads have a job."""
        jobs = self.batch * self.heads * chunks
        return jobs / (threads * -(-jobs // threads))

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        return shape[2] > 1 or self._is_whole

    def _is_small(self, shape: tuple[int, ...], problem: AttentionProblem) -> bool:
        """Whether a copy for each head and batch entry takes at most half the memory of the gradient of the query."""
        return 2 * self._shape[0] * self._shape[1] * shape[2] * shape[3] <= problem.query.numel()

    def copies(self, shape: tuple[int, ...], by_row: bool) -> tuple[int, tuple[int, int, int]]:
        """Copies of a gradient, and what the parts of batch, heads and queries add to the number of the copy."""
        # Chunks write to rows of their own, if there are rows.
        count, factors = (1, [0, 0, 0]) if by_row and self._has_rows(shape) else (self.chunks, [0, 0, 1])
        for axis, parts in ((1, self.heads), (0, self.batch)):
            if parts > 1 and shape[axis] < self._shape[axis]:
                factors[axis] = count
                count *= parts
        return count, tuple(factors)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """Only the axis of queries, or none, is longer than in `shape`."""
    return x.reshape(shape) if x.numel() == shape.numel() else x.sum(dim=2, keepdim=True)


def _threads(problem: AttentionProblem) -> int:
    rank = problem.gate[0].shape[-1] if problem.gate_kind in ("mlp", "low_rank") else 0
    pairs = problem.query.shape[:3].numel() * problem.key.shape[2]
    work = pairs * (problem.query.shape[-1] + problem.value.shape[-1] + rank)
    return max(1, min(torch.get_num_threads(), work // _THREAD_WORK))


class _View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("step", ctypes.c_int64 * 4), ("type", ctypes.c_int64)]


def _fields(names: str, kind: type) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class _Arguments(ctypes.Structure):
    _fields_ = [
        *_fields("query key value keep bias gate_query gate_key weight d_context", _View),
        *_fields("items", ctypes.c_void_p),
        *_fields("item_batch", ctypes.c_int64),
        *_fields("gate_query_shape gate_key_shape", ctypes.c_int64 * 2),
        *_fields("batch heads kv_heads queries keys width value_width rank", ctypes.c_int64),
        *_fields("gate_kind is_causal threads use_half out_type", ctypes.c_int64),
        *_fields("scale power leak offset", ctypes.c_double),
        *_fields("context mass lse lse_power d_mass row row_power", ctypes.c_void_p),
        *_fields("d_query d_key d_value d_bias d_gate_query d_gate_key d_weight d_offset d_power", ctypes.c_void_p),
        *_fields("d_bias_step d_gate_query_step d_gate_key_step", ctypes.c_int64 * 4),
        *_fields("d_bias_job d_gate_query_job d_gate_key_job", ctypes.c_int64 * 3),
        *_fields("batch_parts head_parts chunks need_query need_key need_value", ctypes.c_int64),
    ]


def _steps(x: Tensor) -> list[int]:
    return [0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)]


def _view(x: Tensor) -> _View:
    steps = _steps(x)
    return _View(x.data_ptr(), (ctypes.c_int64 * 4)(*([0] * (4 - len(steps)) + steps)), _TYPES[x.dtype])


def _arguments(problem: AttentionProblem) -> tuple[_Arguments, list[Tensor]]:
    """The arguments that both passes share, and tensors that must outlive the call."""
    a, held = _Arguments(), []
    a.batch, a.heads, a.queries, a.width = problem.query.shape
    a.kv_heads, a.keys, a.value_width = problem.value.shape[1:]
    for name in ("query", "key", "value", "keep", "bias"):
        if (x := getattr(problem, name)) is not None:
            setattr(a, name, _view(x))
    a.gate_kind = _KINDS.index(problem.gate_kind)
    gate = problem.gate
    if gate:
        a.gate_query = _view(gate[0])
        a.gate_query_shape[:] = gate[0].shape[:2]
        a.rank = gate[0].shape[-1]
    if problem.gate_kind == "item":
        held.append(items := gate[1].contiguous())
        # Here, because a compiled graph comes here without the checks of the operator, and C++ would read anything.
        if int(items.max()) >= a.rank:
            raise ValueError(f"ItemGate.items has item {int(items.max()) - 1}, but values of {a.rank - 1} items.")
        a.items, a.item_batch = items.data_ptr(), items.shape[0]
    if problem.gate_kind in ("mlp", "low_rank"):
        a.gate_key = _view(gate[1])
        a.gate_key_shape[:] = gate[1].shape[:2]
        a.offset = float(gate[-1].detach())
        if problem.gate_kind == "mlp":
            a.weight = _view(gate[2])
    a.is_causal, a.threads = problem.is_causal, _threads(problem)
    a.use_half = problem.query.dtype == torch.bfloat16 and _library().warrant_has_amx()
    a.out_type = _TYPES[problem.query.dtype]
    a.scale, a.power, a.leak = problem.scale, problem.power, problem.leak
    return a, held


def _run(name: str, arguments: _Arguments) -> None:
    if getattr(_library(), name)(ctypes.byref(arguments)) != 0:
        raise MemoryError("The CPU kernel of evidence attention found no memory.")


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The compiled kernel, or one sentence why there is none."""
    try:
        library = ctypes.CDLL(str(_compile()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.info("The CPU kernel of evidence attention is not used: %s", error)
        return f"The CPU kernel is not available: {' '.join(str(error).split())}"
    for name in ("warrant_forward", "warrant_backward"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.warrant_row_block.restype = ctypes.c_int64
    return library


def _library() -> ctypes.CDLL | str:
    # `cache` alone would let two threads compile at once.
    with _lock:
        return _load()


def _missing() -> str | None:
    if os.environ.get("WARRANT_HF_CPU_KERNEL") == "0":
        return "The CPU kernel is switched off by WARRANT_HF_CPU_KERNEL=0."
    library = _library()
    return library if isinstance(library, str) else None


# `torch.compile` shall call this and not trace it. The public decorator does no more, but imports the whole compiler.
_missing._dynamo_marked_constant = True


def _compile() -> Path:
    """Path of the shared library, made unless an earlier process has left it on the disk."""
    if not (_SOURCES / "kernel.cpp").is_file():
        raise RuntimeError("cpu_kernel/kernel.cpp is not beside attention_cpu.py.")
    if platform.system() != "Linux" or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        raise RuntimeError("it needs Linux and a processor with AVX-512.")
    files = sorted(path for path in _SOURCES.iterdir() if path.is_file())
    sources = [part for path in files for part in (path.name.encode(), path.read_bytes())]
    # A cache directory may be shared by machines, and `-march=native` is made for one kind of processor.
    key = hashlib.sha256(b"\0".join([*sources, " ".join(_FLAGS).encode(), _processor()])).hexdigest()[:16]
    directory = _cache_directory()
    for found in directory.glob(f"attention_cpu_{key}_*.so"):
        # Half a library (a full disk, a machine that stopped) would not fail to load but end the process.
        if found.name == f"attention_cpu_{key}_{_digest(found)}.so":
            return found
    candidates = map(shlex.split, (os.environ.get("CXX", ""), "c++", "g++"))
    compiler = next((words for words in candidates if words and shutil.which(words[0])), None)
    if compiler is None:
        raise RuntimeError("no C++ compiler was found (c++, g++ or the environment variable CXX).")
    directory.mkdir(parents=True, exist_ok=True)
    # Written beside its place and renamed, so that no other process loads half a file.
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=directory)
    os.close(handle)
    try:
        command = [*compiler, *_FLAGS, "-o", temporary, str(_SOURCES / "kernel.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            logger.debug("%s\n%s", shlex.join(command), done.stderr)
            raise RuntimeError(f"{compiler[0]} could not compile cpu_kernel/kernel.cpp.")
        target = directory / f"attention_cpu_{key}_{_digest(Path(temporary))}.so"
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:  # of another user, say
        return None


def _cache_directory() -> Path:
    """The place of PyTorch's own compiled extensions."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    return Path(root) / "warrant_hf"


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"model name"))}))


__all__ = ["backward", "forward", "unsupported"]
