"""The Triton kernels against the dense float64 formulas.

Without a GPU the kernels run in Triton's interpreter, which has to be chosen before Triton is first imported. Other
libraries import it too, so one test starts this file again in a process of its own. The interpreter computes bfloat16
wrongly (a product multiplies the bit patterns, a conversion can lose the carry), which `repair_bfloat16` mends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
RUNS_HERE = HAS_TRITON and (INTERPRETED or DEVICE == "cuda")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3}
EVERYTHING = frozenset({"query", "key", "value", "bias", "gate", "power"})


def slow(*values):
    """A case that repeats, with other numbers, what a fast one shows."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(RUNS_HERE, reason="the tests below run in this process")
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_the_interpreter(marked):
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider", "--durations=10", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, __file__]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900)
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.skipif(INTERPRETED, reason="it has run before")
def test_module_imports_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from importlib import import_module as load\n"
        "package = type(sys)('package'); package.__path__ = [sys.argv[1]]; sys.modules['package'] = package\n"
        "load('package.attention_triton_kernels'); load('package.attention_triton_gradients')\n"
        "print(load('package.attention_triton').unsupported(None))"
    )
    folder = Path(__file__).resolve().parents[2] / "warrant_hf" / "modeling"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "Triton is not installed.", done.stderr


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_gate(kind, batch, heads, queries, keys, width, seed=10):
    """Shared by heads; a third of the values of a given gate are exactly 0 or 1."""
    if kind == "none":
        return ()
    if kind in ("tensor", "item"):
        columns = keys if kind == "tensor" else width
        values = (randn(batch, 1, queries, columns, seed=seed) * 1.2 + 0.5).clamp(0, 1)
        if kind == "tensor":
            return (values,)
        items = torch.randint(width, (batch, keys), generator=torch.Generator().manual_seed(seed)).sort(dim=-1).values
        return values, items
    pair = randn(batch, 1, queries, width, seed=seed), randn(batch, heads, keys, width, seed=seed + 1)
    offset = torch.tensor(0.3)
    return (*pair, randn(width, seed=seed + 2), offset) if kind == "mlp" else (*pair, offset)


def make(
    kind="none",
    *,
    batch=1,
    heads=2,
    kv_heads=1,
    queries=33,
    keys=65,
    width=16,
    value_width=8,
    gate_width=3,
    power=1.0,
    is_causal=False,
    keep=None,
    bias=None,
    gate=None,
    dtype=torch.float32,
):
    from warrant_hf.modeling.attention_problem import AttentionProblem

    def place(x, target=dtype):
        return None if x is None else x.to(DEVICE, target if x.is_floating_point() else x.dtype)

    gate = make_gate(kind, batch, heads, queries, keys, gate_width) if gate is None else gate
    return AttentionProblem(
        place(randn(batch, heads, queries, width, seed=1)),
        place(randn(batch, kv_heads, keys, width, seed=2)),
        place(randn(batch, kv_heads, keys, value_width, seed=3)),
        place(keep),
        place(bias),
        kind,
        tuple(place(x) for x in gate),
        0.1,
        1.7 * width**-0.5,
        power,
        is_causal,
        0.0,
        0,
    )


@contextlib.contextmanager
def poisoned_memory():
    """New memory holds NaN, so that a place that no kernel writes shows."""

    def poisoned(new):
        def call(*args, **kwargs):
            x = new(*args, **kwargs)
            return x.fill_(math.nan) if x.is_floating_point() else x

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", poisoned(torch.empty))
        patch.setattr(torch, "empty_like", poisoned(torch.empty_like))
        patch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
        yield


def upstream(problem):
    """Gradients of context, mass (None without gate), lse and lse_power."""
    rows, width = problem.query.shape[:3], problem.value.shape[-1]
    d_context = randn(*rows, width, seed=20).to(problem.query)
    d_mass, d_lse, d_lse_power = (randn(*rows, seed=seed).to(DEVICE) for seed in (21, 22, 23))
    return d_context, None if problem.gate_kind == "none" else d_mass, d_lse, d_lse_power


def fused(problem, needs=EVERYTHING):
    """Outputs and gradients of the backend, by name."""
    from warrant_hf.modeling import attention_triton

    assert attention_triton.unsupported(problem) is None
    d_context, d_mass, d_lse, d_lse_power = upstream(problem)
    with poisoned_memory():
        context, mass, lse, lse_power = attention_triton.forward(problem, d_mass is not None)
        row = d_lse if d_mass is None else d_lse - mass * d_mass
        row_power = d_lse_power - (context.float() * d_context.float()).sum(dim=-1)
        needed = {name for name in needs if name != "bias" or problem.bias is not None}
        gradients = attention_triton.backward(problem, lse, lse_power, d_context, d_mass, row, row_power, needed)
    results = {"context": context, "lse": lse, "lse_power": lse_power}
    if d_mass is not None:
        results["mass"] = mass
    for name in ("query", "key", "value", "bias", "power"):
        results[f"d_{name}"] = getattr(gradients, name)
    results |= {f"d_gate_{at}": x for at, x in enumerate(gradients.gate)}
    return {name: x for name, x in results.items() if x is not None}


def exact(problem, needs=EVERYTHING):
    """The same in float64 by autograd."""
    from tests.modeling.attention_oracle import dense

    def leaf(x):
        return x if x is None or not x.is_floating_point() else x.detach().double().requires_grad_()

    inputs = {name: leaf(getattr(problem, name)) for name in ("query", "key", "value", "bias")}
    gate, power = tuple(leaf(x) for x in problem.gate), torch.tensor(float(problem.power)).double().requires_grad_()
    output = dense(problem._replace(**inputs, gate=gate, power=power))
    results = {name: x.detach() for name, x in output._asdict().items()}
    d_context, d_mass, d_lse, d_lse_power = (None if x is None else x.double() for x in upstream(problem))
    loss = (output.context * d_context).sum() + (output.lse * d_lse).sum() + (output.lse_power * d_lse_power).sum()
    if d_mass is None:
        del results["mass"]
    else:
        loss = loss + (output.mass * d_mass).sum()
    leaves = {f"d_{name}": x for name, x in inputs.items() if x is not None and name in needs}
    if "gate" in needs:
        leaves |= {f"d_gate_{at}": x for at, x in enumerate(gate) if x.is_floating_point()}
    if "power" in needs:
        leaves["d_power"] = power
    if leaves:
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        results |= dict(zip(leaves, gradients))
    return results


def assert_close(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, reference in expected.items():
        assert actual[name].shape == reference.shape, name
        assert actual[name].isfinite().all(), name
        error = (actual[name].double() - reference).norm()
        size = reference.norm().clamp(min=1e-12)
        if name == "d_power":
            # One number: a sum over the rows of entropies, here 2 to 3, with random signs.
            size = size.clamp(min=2 * expected["lse"].numel() ** 0.5)
        assert error <= tolerance * size, f"{name}: relative error {error / size:.1e}"


def check(problem, needs=EVERYTHING, tolerance=None):
    results = fused(problem, needs)
    assert_close(results, exact(problem, needs), tolerance or TOLERANCES[problem.query.dtype])
    return results


@pytest.fixture
def repair_bfloat16(monkeypatch):
    """Gives Triton's interpreter bfloat16 products and conversions with the rounding of a GPU."""
    if not INTERPRETED:
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def widen(bits):
        return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)

    def convert_float(data, source, target, rounding_mode):
        if (source, target) == (tl.bfloat16, tl.float32):
            return widen(data).view(np.uint32)
        if (source, target) == (tl.float32, tl.bfloat16):
            half = torch.from_numpy(np.array(data, dtype=np.float32)).bfloat16()
            return half.view(torch.int16).numpy().view(np.uint16)
        return convert(data, source, target, rounding_mode)

    def create_dot(self, a, b, *rest):
        if a.dtype.scalar == tl.bfloat16:
            a, b = (interpreter.TensorHandle(widen(x.data), tl.float32) for x in (a, b))
        return dot(self, a, b, *rest)

    monkeypatch.setattr(interpreter, "_convert_float", convert_float)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


class TestKernels:
    __test__ = RUNS_HERE

    @pytest.mark.parametrize(
        ("kind", "power"),
        [
            *(("none", 1.0), ("tensor", 1.3), ("item", 1.0), ("mlp", 1.3), ("low_rank", 1.0)),
            *(slow("none", 1.3), slow("tensor", 1.0), slow("item", 1.3), slow("mlp", 1.0), slow("low_rank", 1.3)),
        ],
    )
    def test_every_gate(self, kind, power):
        keep = randn(1, 1, 33, 65, seed=30) > -0.5
        keep[:, :, 3] = False
        results = check(make(kind, power=power, keep=keep, bias=randn(1, 2, 33, 65, seed=31)))
        for name in ("context", "lse", "lse_power", "d_query"):
            assert (results[name][:, :, 3] == 0).all()

    @pytest.mark.parametrize(
        ("kind", "queries", "keys"),
        [("none", 1, 63), ("low_rank", 63, 1), slow("tensor", 129, 111), ("item", 64, 128), ("mlp", 1, 1)],
    )
    def test_lengths(self, kind, queries, keys):
        check(make(kind, queries=queries, keys=keys, heads=1, power=1.02))

    @pytest.mark.parametrize("width, value_width", [(24, 40), slow(80, 16)])
    def test_head_widths(self, width, value_width):
        check(make("item", width=width, value_width=value_width, heads=1))

    @pytest.mark.parametrize("kind, queries, keys", [("item", 33, 65), slow("low_rank", 65, 40)])
    def test_causal(self, kind, queries, keys):
        """With more queries than keys the first rows have no key."""
        bias = randn(1, 1, queries, keys, seed=31)
        results = check(make(kind, queries=queries, keys=keys, is_causal=True, power=1.3, bias=bias))
        empty = max(0, queries - keys)
        assert (results["context"][:, :, :empty] == 0).all() and (results["lse"][:, :, :empty] == 0).all()

    def test_grouped_heads(self):
        """Each query head has a gate and a bias of its own."""
        gate = (randn(2, 4, 20, 20, seed=10).sigmoid(),)
        check(make("tensor", batch=2, heads=4, kv_heads=2, queries=20, keys=20, gate=gate))

    @pytest.mark.parametrize("shape", [(1, 1, 20, 40), slow((2, 2, 1, 40)), (1, 1, 1, 40)])
    def test_shared_pairs(self, shape):
        """A gate, a bias and a mask that batch, heads or queries share."""
        values = randn(*shape, seed=10).sigmoid()
        keep = randn(*shape, seed=30) > -0.5
        check(make("tensor", batch=2, queries=20, keys=40, gate=(values,), bias=randn(*shape, seed=31), keep=keep))

    @pytest.mark.parametrize(
        ("shape", "item_batch", "is_sorted"),
        [
            *(((1, 2, 1, 5), 2, False), ((1, 1, 20, 70), 1, True)),
            *(slow((1, 1, 33, 5), 1, False), slow((2, 1, 33, 70), 2, True), slow((1, 1, 33, 1), 1, True)),
        ],
    )
    def test_items(self, shape, item_batch, is_sorted):
        """Shared by queries, in any order, more than fit in a tile, and one for all."""
        items = torch.randint(shape[-1], (item_batch, 65), generator=torch.Generator().manual_seed(0))
        items = items.sort(dim=-1).values if is_sorted else items
        batch, queries = max(shape[0], item_batch), max(20, shape[2])
        check(make("item", batch=batch, queries=queries, gate=(randn(*shape, seed=10).sigmoid(), items)))

    @pytest.mark.parametrize("kind", [slow("mlp"), "low_rank"])
    def test_shared_learned_gates(self, kind):
        gate = make_gate(kind, 1, 1, 1, 33, 5)
        check(make(kind, batch=2, queries=33, keys=33, gate=(*gate[:1], gate[1][:, :1], *gate[2:])))

    @pytest.mark.parametrize("kind", [slow("tensor"), "item", slow("mlp")])
    def test_layouts(self, kind):
        """Transposed axes, broadcast axes, and slices of a buffer that holds NaN everywhere else."""

        def inside_nan(x):
            buffer = x.new_full([size + 5 for size in x.shape], math.nan)
            view = buffer[tuple(slice(2, 2 + size) for size in x.shape)]
            return view.copy_(x)

        def transposed(x, first, second):
            return inside_nan(x.transpose(first, second).contiguous()).transpose(first, second)

        plain = make(kind, bias=randn(1, 1, 33, 65, seed=31), keep=randn(1, 2, 33, 65, seed=30) > -1)
        strange = plain._replace(
            query=transposed(plain.query, 1, 2),
            key=transposed(plain.key, 2, 3),
            value=plain.value[:, :, :, :1].expand_as(plain.value),
            keep=plain.keep.mT.contiguous().mT,
            bias=transposed(plain.bias, 2, 3),
            gate=tuple(inside_nan(x) if x.is_floating_point() and x.dim() else x for x in plain.gate),
        )
        check(strange)

    def test_wide_offsets(self, monkeypatch):
        """The path of heads with more than 2^31 places."""
        from warrant_hf.modeling import attention_triton

        monkeypatch.setattr(attention_triton, "_INT32_OFFSETS", 0)
        check(make("item", heads=1, bias=randn(1, 1, 33, 65, seed=31)))

    @pytest.mark.parametrize("power", [0.1, slow(8.0), slow(64.0)])
    def test_powers(self, power):
        check(make("tensor", heads=1, power=power))

    def test_power_of_one_as_a_variable(self):
        assert "d_power" in check(make("none", heads=1), frozenset({"power", "query"}))

    @pytest.mark.parametrize("power", [slow(1.0), 1.3])
    def test_large_logits(self, power):
        """Logits of 1e4 have three digits behind the point left in float32."""
        problem = make("tensor", heads=1, power=power)
        check(problem._replace(scale=1e4 / problem.query.shape[-1]), tolerance=5e-3)

    def test_gate_of_zero_and_one(self):
        shape = (1, 1, 33, 65)
        closed = fused(make("tensor", heads=1, gate=(torch.zeros(shape),)))
        assert all((closed[name] == 0).all() for name in ("context", "mass", "d_value"))
        opened, without = fused(make("tensor", heads=1, gate=(torch.ones(shape),))), fused(make("none", heads=1))
        assert torch.equal(opened["context"], without["context"])
        torch.testing.assert_close(opened["mass"], torch.ones_like(opened["mass"]))

    def test_without_mass(self):
        from warrant_hf.modeling import attention_triton

        problem = make("tensor", heads=1, queries=20, keys=20)
        d_context, d_mass, row, row_power = upstream(problem)
        context, mass, lse, lse_power = attention_triton.forward(problem, need_mass=False)
        assert mass.numel() == 0 and torch.equal(context, attention_triton.forward(problem, need_mass=True)[0])
        without, zero = (
            attention_triton.backward(problem, lse, lse_power, d_context, d_mass, row, row_power, {"gate", "key"})
            for d_mass in (None, torch.zeros_like(d_mass))
        )
        assert torch.equal(without.gate[0], zero.gate[0]) and torch.equal(without.key, zero.key)
        assert without.query is None and without.power is None

    @pytest.mark.parametrize("needs", [{"query"}, {"value"}, {"key", "gate"}, {"bias"}, set()])
    def test_only_what_is_needed(self, needs):
        problem = make("mlp", heads=1, queries=20, keys=20, bias=randn(1, 1, 1, 20, seed=31))
        check(problem, frozenset(needs))

    @pytest.mark.parametrize("kind", ["low_rank", slow("mlp")])
    def test_is_deterministic(self, kind):
        problem = make(kind, queries=40, keys=40)
        first, second = fused(problem), fused(problem)
        assert all(torch.equal(first[name], second[name]) for name in first)

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [
            *(("item", torch.bfloat16), ("low_rank", torch.bfloat16), ("tensor", torch.float16)),
            *(slow(kind, torch.bfloat16) for kind in ("none", "tensor", "mlp")),
            *(slow(kind, torch.float16) for kind in ("none", "item", "mlp", "low_rank")),
        ],
    )
    def test_half_precision(self, kind, dtype, repair_bfloat16):
        check(make(kind, heads=1, power=1.3 if kind == "item" else 1.0, dtype=dtype))

    def test_empty_batch(self):
        results = fused(make("item", batch=0))
        assert results["context"].shape == (0, 2, 33, 8) and results["d_gate_0"].shape == (0, 1, 33, 3)

    def test_refusals(self):
        from warrant_hf.modeling.attention_triton import unsupported

        problem = make("low_rank")
        assert "float64" in unsupported(problem._replace(query=problem.query.double()))
        assert "257" in unsupported(make(width=257))
        assert "129" in unsupported(make("mlp", gate_width=129))
        assert "dropout" in unsupported(problem._replace(dropout=0.1))
        assert unsupported(problem) is None
