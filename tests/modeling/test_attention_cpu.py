"""The CPU kernel against the dense oracle, its edges, and what happens where it cannot be built."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.modeling import attention_oracle
from warrant_hf.modeling import attention_cpu
from warrant_hf.modeling.attention_problem import AttentionProblem

ALL = {"query", "key", "value", "bias", "gate", "power"}
KINDS = ("none", "tensor", "item", "mlp", "low_rank")
GATE_SHAPES = ((2, 4, True), (1, 1, True), (2, 1, True), (1, 4, False), (2, 1, False))
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def make_problem(
    kind="none",
    *,
    sizes=(2, 4, 2),
    queries=37,
    keys=45,
    width=16,
    value_width=8,
    gate_shape=(2, 4, True),
    rank=5,
    bias=None,
    keep=None,
    power=1.0,
    is_causal=False,
    dtype=torch.float32,
):
    """`sizes` are B, H and Hkv; `bias` and `keep` are shapes; the last of `gate_shape` says if there is a row axis."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    batch, heads, kv_heads = sizes
    query = random(batch, heads, queries, width).to(dtype)
    key, value = (random(batch, kv_heads, keys, size).to(dtype) for size in (width, value_width))
    b, h, by_row = gate_shape
    b, h, q = min(b, batch), min(h, heads), queries if by_row else 1
    gate = ()
    if kind == "tensor":
        gate = (random(b, h, q, keys).sigmoid(),)
    elif kind == "item":
        items = torch.randint(0, rank, (b, keys), generator=generator)
        gate = (random(b, h, q, rank).sigmoid(), items.sort(dim=-1).values)
    elif kind in ("mlp", "low_rank"):
        gate = (random(b, h, q, rank), random(batch, 1, keys, rank), random(rank), torch.tensor(0.3))
        gate = gate if kind == "mlp" else (*gate[:2], gate[3])
    return AttentionProblem(
        query=query,
        key=key,
        value=value,
        keep=None if keep is None else random(*keep) > -0.5,
        bias=None if bias is None else random(*bias),
        gate_kind=kind,
        gate=gate,
        leak=0.05,
        scale=width**-0.5,
        power=power,
        is_causal=is_causal,
        dropout=0.0,
        seed=0,
    )


def needs_kernel(problem):
    if reason := attention_cpu.unsupported(problem):
        pytest.skip(reason)


def to_leaf(x):
    return x.detach().double().requires_grad_() if x is not None and x.is_floating_point() else x


def compare(problem, needs=ALL):
    """Largest relative error (root mean square) of every output and gradient, by name."""
    needs_kernel(problem)
    need_mass = problem.gate_kind != "none"
    context, mass, lse, lse_power = attention_cpu.forward(problem, need_mass)
    leaves = problem._replace(
        **{name: to_leaf(getattr(problem, name)) for name in ("query", "key", "value", "bias")},
        gate=tuple(map(to_leaf, problem.gate)),
        power=torch.tensor(problem.power, dtype=torch.float64, requires_grad=True),
    )
    expected = attention_oracle.dense(leaves)
    generator = torch.Generator().manual_seed(8)
    d_context = torch.randn(context.shape, generator=generator).to(context.dtype)
    d_mass, d_lse, d_lse_power = (torch.randn(lse.shape, generator=generator) for _ in range(3))
    has_key = attention_oracle.existing_terms(problem).any(dim=-1)
    total = (expected.context * d_context.double()).sum()
    total = total + ((expected.lse * d_lse + expected.lse_power * d_lse_power) * has_key).sum()
    if need_mass:
        total = total + (expected.mass * d_mass).sum()
    total.backward()

    row = d_lse - expected.mass.detach().float() * d_mass if need_mass else d_lse
    row_power = d_lse_power - (d_context.double() * expected.context.detach()).sum(dim=-1).float()
    found = attention_cpu.backward(
        problem, lse, lse_power, d_context, d_mass if need_mass else None, row, row_power, needs
    )
    pairs = {
        "context": (context, expected.context),
        "lse": (lse, expected.lse),
        "lse_power": (lse_power, expected.lse_power),
        "power": (found.power, leaves.power.grad),
    }
    if need_mass:
        pairs["mass"] = (mass, expected.mass)
    for name in ("query", "key", "value", "bias"):
        pairs[f"d_{name}"] = (getattr(found, name), getattr(getattr(leaves, name), "grad", None))
    for at, (mine, leaf) in enumerate(zip(found.gate, leaves.gate, strict=bool(found.gate))):
        if leaf.is_floating_point():
            pairs[f"d_gate_{at}"] = (mine, leaf.grad)
        else:
            assert mine is None
    assert context.dtype == problem.query.dtype and lse.dtype == lse_power.dtype == mass.dtype == torch.float32

    errors = {}
    for name, (mine, truth) in pairs.items():
        if name.startswith("d_") and name[2:].partition("_")[0] not in needs or name == "power" and name not in needs:
            assert mine is None, name
        elif mine is not None:
            truth = torch.zeros_like(mine) if truth is None else truth.detach()
            assert mine.shape == truth.shape, name
            assert mine.isfinite().all(), name
            # Sums that nearly cancel (offset, power) keep the size of their terms as the measure.
            size = truth.norm() + 1e-2 * mine.numel() ** 0.5
            errors[name] = float((mine.double() - truth).norm() / size)
    return errors


def check(problem, tolerance=None, needs=ALL):
    errors = compare(problem, needs)
    tolerance = tolerance or TOLERANCE[problem.query.dtype]
    assert not {name: error for name, error in errors.items() if not error < tolerance}


@pytest.mark.parametrize("gate_shape", GATE_SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kinds(kind, gate_shape, dtype):
    """Every gate with every sharing of its axes, plain and with everything else at once."""
    if kind == "none" and gate_shape != GATE_SHAPES[0]:
        pytest.skip("there is no gate to share")
    check(make_problem(kind, gate_shape=gate_shape, dtype=dtype))
    check(
        make_problem(
            kind,
            gate_shape=gate_shape,
            dtype=dtype,
            bias=(2, 1, 37, 45),
            keep=(1, 4, 37, 45),
            power=1.1,
            is_causal=True,
        )
    )


@pytest.mark.parametrize("power", [0.5, 1.0, 1.1, 2.0, 8.0, 64.0])
def test_power(power):
    check(make_problem("item", power=power, bias=(1, 1, 1, 45)), tolerance=1e-5 * max(1.0, power / 4))


LENGTHS = [1, 63, 64, 65, 111, 127, 129]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("queries", "keys"), [*zip(LENGTHS, reversed(LENGTHS), strict=True), (1, 1), (257, 300), (130, 4097)]
)
def test_lengths(queries, keys, dtype):
    for kind in ("tensor", "item", "mlp") if keys < 1000 else ("item",):
        check(make_problem(kind, sizes=(1, 2, 1), queries=queries, keys=keys, gate_shape=(1, 1, True), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "value_width"), [(32, 32), (40, 72), (80, 96), (256, 128), (7, 5), (1, 1)])
def test_widths(width, value_width, dtype):
    check(make_problem("item", width=width, value_width=value_width, dtype=dtype))


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_grouped_heads(kv_heads):
    for kind in KINDS:
        check(make_problem(kind, sizes=(1, 6, kv_heads), gate_shape=(1, 6, True)))


def in_nan(x):
    """The same numbers as a slice of a buffer that is NaN elsewhere, with a step of 2 on the last axis."""
    if x is None or x.dim() == 0:
        return x
    buffer = torch.full([2 * size + 3 for size in x.shape], float("nan") if x.is_floating_point() else 1).to(x.dtype)
    view = buffer[tuple(slice(2, 2 + size) for size in x.shape[:-1])][..., 1 : 1 + 2 * x.shape[-1] : 2]
    return view.copy_(x)


@pytest.mark.parametrize("kind", KINDS)
def test_strides(kind):
    problem = make_problem(kind, bias=(2, 1, 37, 45), keep=(1, 4, 37, 45))
    tensors = {name: in_nan(getattr(problem, name)) for name in ("query", "key", "value", "keep", "bias")}
    check(problem._replace(**tensors, gate=tuple(map(in_nan, problem.gate))))


def test_transposed_and_expanded():
    problem = make_problem("tensor", gate_shape=(1, 1, False), bias=(1, 1, 1, 45), keep=(1, 1, 1, 45))
    shape = (2, 4, 37, 45)
    query, key, value = (
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in (problem.query, problem.key, problem.value)
    )
    check(
        problem._replace(
            query=query,
            key=key[:, :1].expand(2, 2, -1, -1),
            value=value[..., :1].expand(-1, -1, -1, 6),
            gate=(problem.gate[0].expand(shape),),
            bias=problem.bias.expand(shape),
            keep=problem.keep.expand(shape),
        )
    )


@pytest.mark.parametrize("kind", ["tensor", "item"])
def test_gates_at_the_ends(kind):
    """g = 0 leaves exactly nothing, g = 1 everything."""
    problem = make_problem(kind)
    gate = problem.gate[0]
    check(problem._replace(gate=(gate.round(), *problem.gate[1:])))
    closed = problem._replace(gate=(torch.zeros_like(gate), *problem.gate[1:]))
    needs_kernel(closed)
    context, mass, lse, _ = attention_cpu.forward(closed, True)
    assert not context.any() and not mass.any()
    opened = problem._replace(gate=(torch.ones_like(gate), *problem.gate[1:]))
    context, mass, other_lse, _ = attention_cpu.forward(opened, True)
    plain = attention_cpu.forward(make_problem(), False)[0]
    torch.testing.assert_close(context, plain)
    torch.testing.assert_close(mass, torch.ones_like(mass))
    assert torch.equal(lse, other_lse)


def test_leak_of_one():
    check(make_problem("mlp")._replace(leak=1.0))


@pytest.mark.parametrize("rank", [1, 33, 70])
def test_unsorted_items(rank):
    problem = make_problem("item", keys=300, rank=rank)
    items = torch.randint(0, rank, (1, 300), generator=torch.Generator().manual_seed(3))
    check(problem._replace(gate=(problem.gate[0], items)))


def test_gelu_over_its_range():
    """Gates to 1e-6 wherever the two halves of the argument lie, out to where GELU is its asymptote."""
    problem = make_problem("mlp", sizes=(1, 1, 1), queries=64, keys=257, gate_shape=(1, 1, True), rank=1)
    query, key = torch.linspace(-6.0, 6.0, 64).view(1, 1, 64, 1), torch.linspace(-3.0, 3.0, 257).view(1, 1, 257, 1)
    problem = problem._replace(gate=(query, key, torch.ones(1), torch.tensor(0.0)))
    needs_kernel(problem)
    # One key at a time reads the gate itself: the mass of a row with one key is its gate.
    for at in range(0, 257, 16):
        keep = torch.zeros(1, 1, 1, 257, dtype=torch.bool)
        keep[..., at] = True
        mass = attention_cpu.forward(problem._replace(keep=keep), True)[1]
        torch.testing.assert_close(mass.double(), attention_oracle.gate_values(problem)[..., at], rtol=0, atol=1e-6)
    check(problem)


@pytest.mark.parametrize("power", [1.0, 1.1, 64.0])
def test_large_logits(power):
    """Logits of +-1e4, where float32 itself has a step of 1e-3."""
    problem = make_problem("item", bias=(1, 4, 37, 45), power=power)
    bias = 1e4 * problem.bias.sign()
    check(problem._replace(bias=bias), tolerance=2e-3 * max(1.0, power / 2))
    one_sided = problem._replace(bias=torch.full_like(bias, -1e4))
    check(one_sided, tolerance=2e-3 * max(1.0, power / 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("power", [1.0, 1.1])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_keys(kind, power, dtype):
    problem = make_problem(kind, keep=(2, 1, 37, 45), bias=(1, 1, 37, 45), power=power, dtype=dtype)
    problem.keep[:, :, 3:9] = False
    check(problem)
    context, mass, lse, lse_power = attention_cpu.forward(problem, kind != "none")
    for x in (context, lse, lse_power, *([mass] if kind != "none" else [])):
        assert not x[:, :, 3:9].any()
    problem.keep[:] = False
    check(problem)
    # More queries than keys: the first rows see no key.
    check(make_problem(kind, queries=40, keys=9, is_causal=True, power=power, dtype=dtype))


def test_causal_over_several_blocks():
    check(make_problem("tensor", sizes=(1, 2, 1), queries=400, keys=600, is_causal=True))


@pytest.mark.parametrize("name", sorted(ALL))
def test_only_what_is_needed(name):
    check(make_problem("mlp", bias=(1, 4, 37, 45), power=1.1), needs={name})


def test_threads(monkeypatch):
    """Several chunks of queries, each with its own sums; the same bits every time."""
    monkeypatch.setattr(attention_cpu, "_THREAD_WORK", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for kind, gate_shape in itertools.product(KINDS[1:], GATE_SHAPES):
            problem = make_problem(kind, queries=300, keys=40, gate_shape=gate_shape, bias=(1, 1, 1, 40))
            check(problem)
        lse = attention_cpu.forward(problem, True)[2]
        first, second = (
            attention_cpu.backward(problem, lse, lse, problem.query[..., :8], lse, lse, lse, ALL) for _ in range(2)
        )
        for name in ("query", "key", "value", "bias"):
            assert torch.equal(getattr(first, name), getattr(second, name))
        assert all(map(torch.equal, first.gate, second.gate))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_jobs_with_whole_heads(dtype, monkeypatch):
    """Gates with gradients that are small enough for a copy per head; also where query heads share keys."""
    monkeypatch.setattr(attention_cpu, "_THREAD_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shapes = {"queries": 200, "keys": 300, "width": 32, "value_width": 16, "dtype": dtype}
    for kind, sizes in itertools.product(("item", "none"), ((1, 6, 6), (1, 12, 6), (2, 3, 3))):
        problem = make_problem(kind, sizes=sizes, gate_shape=(1, 1, True), **shapes, power=1.1)
        parts = attention_cpu._Parts(problem, [tuple(x.shape) for x in problem.gate[:1]])
        assert parts.chunks == 1 and parts.jobs == sizes[0] * sizes[2]
        check(problem)


def test_threads_are_kept_busy(monkeypatch):
    monkeypatch.setattr(attention_cpu, "_THREAD_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    needs_kernel(problem := make_problem(sizes=(1, 12, 12), queries=1024, keys=32))
    assert attention_cpu._Parts(problem, []).chunks == 2  # 12 jobs would leave four threads idle half of the time


def test_memory_of_the_backward_pass():
    """What is packed and summed exists for one head per thread, besides the gradients."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("there is no /proc/self/clear_refs")
    problem = make_problem(
        "item", sizes=(1, 32, 32), queries=512, keys=512, width=64, value_width=64, gate_shape=(1, 1, True), rank=16
    )
    needs_kernel(problem)
    context, mass, lse, _ = attention_cpu.forward(problem, True)

    def resident(field):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status[field].split()[0]) * 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    attention_cpu.backward(problem, lse, lse, context, mass, lse, lse, {"query", "key", "value", "gate"})
    # Three gradients of the size of the query, an eighth of that for copies of the gate's gradient, one head a thread.
    assert resident("VmHWM") - before < 4.5 * context.numel() * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_of_gate_and_bias(kind, dtype):
    problem = make_problem(kind, bias=(2, 4, 37, 45))
    gate = tuple(x.to(dtype) if x.is_floating_point() else x for x in problem.gate)
    check(problem._replace(bias=problem.bias.to(dtype), gate=gate))


def test_unsupported():
    problem = make_problem()
    assert "dropout" in attention_cpu.unsupported(problem._replace(dropout=0.1))
    assert "float64" in attention_cpu.unsupported(problem._replace(query=problem.query.double()))
    assert "CPU" in attention_cpu.unsupported(problem._replace(query=problem.query.to("meta")))


def test_switched_off(monkeypatch):
    monkeypatch.setenv("WARRANT_HF_CPU_KERNEL", "0")
    assert "WARRANT_HF_CPU_KERNEL=0" in attention_cpu.unsupported(make_problem())


def test_without_source(monkeypatch, tmp_path):
    monkeypatch.setattr(attention_cpu, "_SOURCES", tmp_path / "cpu_kernel")
    monkeypatch.setattr(attention_cpu, "_library", attention_cpu._load.__wrapped__)
    assert "cpu_kernel/kernel.cpp" in attention_cpu.unsupported(make_problem())


def test_without_compiler(tmp_path):
    """One sentence and no traceback, without a compiler as well as with one that fails."""
    needs_kernel(make_problem())
    code = """if True:
        import logging, os, sys, torch
        from importlib import import_module as load
        logging.basicConfig(level=logging.INFO)
        # Without the package around it, which takes long to import.
        package = type(sys)("package"); package.__path__ = [sys.argv[1]]; sys.modules["package"] = package
        attention_cpu = load("package.attention_cpu")
        x = torch.ones(1, 1, 2, 4)
        settings = (None, None, "none", (), 0.0, 1.0, 1.0, False, 0.0, 0)
        problem = load("package.attention_problem").AttentionProblem(x, x, x, *settings)
        print(attention_cpu.unsupported(problem))
        os.environ["CXX"] = "/bin/false"
        attention_cpu._load.cache_clear()
        print(attention_cpu.unsupported(problem))
    """
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {"PATH": "", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code, str(Path(attention_cpu.__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing, failing = done.stdout.splitlines()
    assert "no C++ compiler was found" in missing and "could not compile" in failing
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("left", [0, 20_000])
def test_a_broken_file_is_made_again(left, monkeypatch, tmp_path):
    """Half a library, as a full disk leaves it, can end the process when it is loaded."""
    needs_kernel(make_problem())
    whole = attention_cpu._compile()
    content = whole.read_bytes()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    broken = attention_cpu._cache_directory() / whole.name
    broken.parent.mkdir()
    broken.write_bytes(content[:left])
    compiler = tmp_path / "c++"  # `-o FILE` is before the source
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp "{whole}" "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert attention_cpu._compile().read_bytes() == content
    compiler.write_text("#!/bin/sh\nexit 1\n")  # what is whole is not made again
    assert attention_cpu._compile().read_bytes() == content


def test_is_a_constant_for_torch_compile():
    problem = make_problem()
    needs_kernel(problem)

    def function(query):
        return query + (1 if attention_cpu.unsupported(problem._replace(query=query)) is None else 0)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert torch.equal(compiled(problem.query), problem.query + 1)


def test_compiles_once(monkeypatch):
    needs_kernel(make_problem())
    path, calls = attention_cpu._compile(), []

    def compile_slowly():
        calls.append(1)
        time.sleep(0.05)
        return path

    monkeypatch.setattr(attention_cpu, "_compile", compile_slowly)
    attention_cpu._load.cache_clear()
    threads = [threading.Thread(target=attention_cpu._library) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
