"""Every fused backend behind `evidence_attention` against the reference, in outputs and all gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from warrant_hf.modeling import attention_blockwise, attention_ops
from warrant_hf.modeling.attention_fused import FUSED_BACKENDS
from warrant_hf.modeling.attention_gates import ItemGate, LowRankGate, PairwiseGate
from warrant_hf.modeling.attention_ops import evidence_attention

GATES = ("none", "key", "pair", "item", "mlp", "low_rank")
ITEMS, HIDDEN = 3, 5
# Triton runs in an interpreter here and has a test file of its own.
TOLERANCE = {"blockwise": (torch.float64, 1e-10, 1e-11), "cpp": (torch.float32, 2e-5, 2e-6)}


@pytest.fixture(params=list(TOLERANCE))
def backend(request):
    if request.param == "cpp":
        small = make_problem(gate="none", dtype=torch.float32)
        try:
            evidence_attention(*small["qkv"], backend="cpp")
        except ValueError as error:
            if "is not available" not in str(error):
                raise
            pytest.skip(str(error))  # no compiler, or no AVX-512
    return request.param


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(attention_blockwise, "BLOCK_ELEMENTS", 64)


def make_problem(
    *, gate="none", batch=2, heads=4, kv_heads=4, queries=5, keys=7, width=8, value_width=6, gate_heads=1, mask=None,
    bias=None, seed=0, dtype=torch.float64,
):  # fmt: skip
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    problem = {
        "qkv": (
            normal(batch, heads, queries, width),
            normal(batch, kv_heads, keys, width),
            normal(batch, kv_heads, keys, value_width),
        )
    }
    items = torch.randint(-1, ITEMS, (batch, keys), generator=g)
    pairwise = (
        normal(batch, gate_heads, queries, HIDDEN),
        normal(1, gate_heads, keys, HIDDEN),
    )
    problem["gate"] = {
        "none": lambda: None,
        "key": lambda: normal(batch, 1, 1, keys).sigmoid(),
        "pair": lambda: normal(batch, gate_heads, queries, keys).sigmoid(),
        "item": lambda: ItemGate(normal(batch, gate_heads, queries, ITEMS).sigmoid(), items),
        "mlp": lambda: PairwiseGate(*pairwise, normal(HIDDEN), normal(), 0.05),
        "low_rank": lambda: LowRankGate(*pairwise, normal(), 0.0),
    }[gate]()
    masks = {
        None: lambda: None,
        "keys": lambda: torch.rand(batch, keys, generator=g) > 0.3,
        "pairs": lambda: torch.rand(batch, 1, queries, keys, generator=g) > 0.4,
        "bias": lambda: normal(1, heads, queries, keys),
    }
    problem["mask"] = masks[mask]()
    problem["log_precision"] = None if bias is None else normal(batch, keys)
    return problem


def leaves(problem):
    """The floating tensors of a problem, ready for gradients, and the problem made of them."""
    found = []

    def leaf(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            found.append(x.detach().clone().requires_grad_())
            return found[-1]
        return x

    ready = {}
    for name, x in problem.items():
        if isinstance(x, tuple):
            ready[name] = tuple(leaf(y) for y in x)
        elif dataclasses.is_dataclass(x):
            ready[name] = dataclasses.replace(
                x, **{field.name: leaf(getattr(x, field.name)) for field in dataclasses.fields(x)}
            )
        else:
            ready[name] = leaf(x)
    return ready, found


def run(problem, *, dtype=None, seed=3, **options):
    """Outputs and the gradients of a random projection of them."""
    problem, inputs = leaves(problem if dtype is None else cast(problem, dtype))
    if isinstance(options.get("power"), torch.Tensor):
        options["power"] = options["power"].detach().clone().requires_grad_()
        inputs.append(options["power"])
    query, key, value = problem.pop("qkv")
    torch.manual_seed(seed)  # of the dropout
    out = evidence_attention(query, key, value, **problem, **options)
    outputs = [x for x in out if x is not None]
    g = torch.Generator().manual_seed(seed)
    loss = sum(
        (x * torch.randn(x.shape, generator=g, dtype=torch.float64).to(x.dtype)).sum()
        for x in outputs
        if x.requires_grad
    )
    return outputs, torch.autograd.grad(loss, inputs, allow_unused=True)


def cast(problem, dtype):
    def to(x):
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    out = {}
    for name, x in problem.items():
        if dataclasses.is_dataclass(x):
            x = dataclasses.replace(x, **{f.name: to(getattr(x, f.name)) for f in dataclasses.fields(x)})
        out[name] = tuple(to(y) for y in x) if isinstance(x, tuple) else to(x)
    return out


def assert_equals_reference(problem, backend, **options):
    dtype, rtol, atol = TOLERANCE[backend]
    exact = run(problem, backend="reference", **options)
    ours = run(problem, dtype=dtype, backend=backend, **options)
    for actual, expected in zip([*ours[0], *ours[1]], [*exact[0], *exact[1]], strict=True):
        if expected is None:
            assert actual is None or not actual.any()
            continue
        assert actual.shape == expected.shape
        size = expected.abs().max().item() + 1
        torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol * size * 10)


def slow(*values):
    """A case that repeats, with other numbers, what a fast one shows."""
    return pytest.param(*values, marks=pytest.mark.slow)


# ------------------------------------------------------------------------------------------------ equals reference


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mask", [None, "keys", "pairs", "bias"])
@pytest.mark.parametrize("power", [1.0, 1.1])
def test_equals_the_reference(backend, gate, mask, power):
    assert_equals_reference(make_problem(gate=gate, mask=mask, bias="keys"), backend, power=power)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mask", [None, "keys", "pairs"])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (5, 8), (8, 5)])
def test_causal(backend, gate, mask, queries, keys):
    problem = make_problem(gate=gate, mask=mask, queries=queries, keys=keys, gate_heads=4)
    assert_equals_reference(problem, backend, is_causal=True, power=1.3)


@given(
    gate=st.sampled_from(GATES),
    mask=st.sampled_from([None, "keys", "pairs", "bias"]),
    bias=st.sampled_from([None, "keys"]),
    batch=st.integers(1, 3),
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (4, 1)]),
    queries=st.integers(1, 20),
    keys=st.integers(1, 20),
    width=st.integers(1, 9),
    value_width=st.integers(1, 9),
    shared=st.booleans(),
    power=st.sampled_from([0.5, 1.0, 1.02, 1.3, 3.0, 8.0]),
    is_causal=st.booleans(),
    return_mass=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_shape_and_flag(
    gate, mask, bias, batch, groups, queries, keys, width, value_width, shared, power, is_causal, return_mass, seed
):
    problem = make_problem(
        gate=gate, mask=mask, bias=bias, batch=batch, heads=groups[0], kv_heads=groups[1], queries=queries, keys=keys,
        width=width, value_width=value_width, gate_heads=1 if shared else groups[0], seed=seed,
    )  # fmt: skip
    options = {"power": power, "is_causal": is_causal, "return_mass": return_mass}
    assert_equals_reference(problem, "blockwise", **options)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 4097), (63, 111), (130, 65)])
@pytest.mark.parametrize("gate", ["none", "item"])
def test_lengths(backend, lengths, gate):
    problem = make_problem(gate=gate, batch=1, heads=2, kv_heads=1, queries=lengths[0], keys=lengths[1], mask="keys")
    assert_equals_reference(problem, backend)


@pytest.mark.parametrize("width", [32, 80, 128, 256])
def test_head_widths(backend, width):
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 9, "keys": 11}
    problem = make_problem(gate="item", width=width, value_width=width, **sizes)
    assert_equals_reference(problem, backend, power=1.1)


@pytest.mark.parametrize("power", [0.1, 0.7, 1.0, 1.02, 3.0, 8.0, 64.0])
@pytest.mark.parametrize("mask", ["keys", "pairs"])
def test_learned_power(backend, power, mask):
    problem = make_problem(gate="pair", mask=mask, bias="keys")
    assert_equals_reference(problem, backend, power=torch.tensor(power, dtype=torch.float64))


def test_support_without_the_weights(backend):
    assert_equals_reference(make_problem(gate="item", mask="pairs"), backend, power=1.3, return_support=True)


@pytest.mark.parametrize("gate", ["none", "item", "mlp"])
@pytest.mark.parametrize("power", [1.0, 1.3])
@pytest.mark.parametrize("queries", [5, 300])
def test_dropout_has_one_definition(gate, power, queries):
    problem = make_problem(gate=gate, batch=2, heads=2, kv_heads=1, queries=queries, keys=4, mask="keys")
    assert_equals_reference(problem, "blockwise", power=power, dropout=0.4)


def test_dropout_keeps_the_expected_context():
    problem = make_problem(batch=1, heads=1, kv_heads=1, queries=1, keys=7)
    (clean,) = run(problem, return_mass=False)[0]
    drawn = torch.stack([run(problem, return_mass=False, dropout=0.3, seed=s)[0][0] for s in range(400)])
    assert (drawn[0] != drawn[1]).any()
    assert ((drawn.mean(0) - clean).abs() < 4 * drawn.std(0) / 20).all()
    assert run(problem, dropout=0.3)[0][1].eq(1).all()  # the mass is the clean one


# ------------------------------------------------------------------------------------------------ laws and edges


def test_a_learned_power_of_one_has_the_promised_outputs(backend):
    """A compiled graph reads as many normalisers as the shapes for `torch.compile` say."""
    query, key, value = (x.detach().float() for x in make_problem()["qkv"])
    power = torch.tensor(1.0, requires_grad=True)
    settings = ("none", 0.0, 0.3, 1.0, False, 0.0, True, backend)
    outputs = torch.ops.warrant_hf.evidence_attention(query, key, value, None, None, [], power, None, *settings)
    assert outputs[3].shape == outputs[2].shape == query.shape[:-1]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}])
def test_nothing_to_do(gate, empty):
    problem = make_problem(gate=gate, **empty)
    outputs, gradients = run(problem, backend="blockwise", power=1.3)
    expected_outputs, expected_gradients = run(problem, backend="reference", power=1.3)
    for x, expected in zip([*outputs, *gradients], [*expected_outputs, *expected_gradients], strict=True):
        assert expected is None or (x.shape == expected.shape and not x.any())


@pytest.mark.parametrize("gate", ["pair", "mlp", "low_rank"])
@pytest.mark.parametrize("what", ["query", "gate"])
def test_nan_that_is_read_stays_visible(backend, gate, what):
    """A diverged model must not look sound: least of all by a gate that falls back to its smallest value."""
    problem = make_problem(gate=gate, gate_heads=4, dtype=torch.float32)
    tensor = problem["qkv"][0] if what == "query" else problem["gate"]
    if not isinstance(tensor, torch.Tensor):
        tensor = tensor.query
    tensor.data[0, 1, 2, 3] = float("nan")
    output = evidence_attention(*problem["qkv"], gate=problem["gate"], power=1.3, backend=backend)
    of_row = torch.zeros(output.mass.shape, dtype=torch.bool)
    of_row[0, 1, 2] = True
    assert torch.equal(output.context.isnan().all(-1), of_row) and torch.equal(output.mass.isnan(), of_row)


@pytest.mark.parametrize("item", [ITEMS, ITEMS + 1, 10**6])
@pytest.mark.parametrize("mask", [None, "keys"])
@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise", "cpp"])
def test_an_item_without_values(item, mask, backend):
    problem = make_problem(gate="item", dtype=torch.float32, mask=mask)
    gate = dataclasses.replace(problem["gate"], items=problem["gate"].items.clone())
    gate.items[0, 2] = item
    with pytest.raises(ValueError, match=f"items has item {item}, but there are values of {ITEMS} items"):
        evidence_attention(*problem["qkv"], mask=problem.get("mask"), gate=gate, backend=backend)


@pytest.mark.parametrize("item", [ITEMS, ITEMS + 1])
def test_an_item_without_values_in_a_compiled_graph(backend, item):
    """There nothing is checked before the operator; item M must not be the one of the keys without item."""
    problem = make_problem(gate="item", dtype=torch.float32)
    gate = dataclasses.replace(problem["gate"], items=torch.full_like(problem["gate"].items, item))
    settings = ("item", 0.0, 0.3, 1.0, False, 0.0, True, backend)
    with pytest.raises((ValueError, RuntimeError)):
        torch.ops.warrant_hf.evidence_attention(
            *problem["qkv"], None, None, list(gate.tensors()), None, None, *settings
        )


def test_differentiated_twice(backend):
    query, key, value = (x.detach().float().requires_grad_() for x in make_problem()["qkv"])
    context = evidence_attention(query, key, value, power=1.3, backend=backend).context
    (gradient,) = torch.autograd.grad(context.square().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="use backend='reference'"):
        gradient.sum().backward()


@pytest.mark.parametrize("of", ["query", "gate", "power"])
def test_forward_mode(backend, of, monkeypatch):
    """The operator would drop the tangents, which gives a derivative of 0 and no error."""
    problem = make_problem(gate="pair")
    query, key, value = (x.detach().float() for x in problem["qkv"])
    given = {"query": query, "gate": problem["gate"].detach().float(), "power": torch.tensor(1.3)}

    def context(x, backend):
        now = given | {of: x}
        return evidence_attention(now["query"], key, value, gate=now["gate"], power=now["power"], backend=backend)[0]

    def derivative(backend):
        x = given[of]
        return torch.func.jvp(lambda x: context(x, backend), (x,), (torch.ones_like(x),))[1]

    with pytest.raises(ValueError, match="no forward-mode derivative; use backend='reference'"):
        derivative(backend)
    monkeypatch.setattr(attention_ops, "FUSED_FROM", 0)
    assert derivative("auto").abs().sum() > 0
    torch.testing.assert_close(derivative("auto"), derivative("reference"))


@pytest.mark.parametrize("power", [1.0, 1.3])
@pytest.mark.parametrize("gate", GATES)
def test_gradcheck(gate, power):
    problem, inputs = leaves(make_problem(gate=gate, batch=1, heads=2, kv_heads=1, queries=3, keys=4, mask="pairs"))
    inputs.append(torch.tensor(power + 0.01, dtype=torch.float64, requires_grad=True))
    rebuild = list(inputs)

    def call(*given_inputs):
        replace = dict(zip(map(id, rebuild), given_inputs))
        of = {k: v for k, v in problem.items()}
        of["qkv"] = tuple(replace[id(x)] for x in of["qkv"])
        if dataclasses.is_dataclass(of["gate"]):
            fields = {f.name: getattr(of["gate"], f.name) for f in dataclasses.fields(of["gate"])}
            of["gate"] = dataclasses.replace(of["gate"], **{k: replace.get(id(v), v) for k, v in fields.items()})
        elif of["gate"] is not None:
            of["gate"] = replace[id(of["gate"])]
        q, k, v = of.pop("qkv")
        learned = given_inputs[-1] if power != 1 else 1.0
        return evidence_attention(q, k, v, **of, power=learned, backend="blockwise")[:2]

    assert torch.autograd.gradcheck(call, inputs)


def test_neutral_settings_are_scaled_dot_product_attention(backend):
    dtype = TOLERANCE[backend][0]
    qkv = [x.to(dtype).requires_grad_() for x in make_problem(queries=65, keys=63)["qkv"]]
    d_out = torch.randn(2, 4, 65, 6, dtype=dtype)
    expected = F.scaled_dot_product_attention(*qkv)
    actual = evidence_attention(*qkv, gate=torch.ones(2, 1, 65, 63, dtype=dtype), backend=backend).context
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(*(torch.autograd.grad(x, qkv, d_out) for x in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("gate", GATES)
def test_nan_where_nobody_reads_reaches_nothing(backend, gate):
    """Padded keys, and a row without any key, hold NaN in every input that has a place for them."""
    dtype = TOLERANCE[backend][0]

    def poisoned(filler):
        problem = cast(make_problem(gate=gate, mask="keys", bias="keys"), dtype)
        hidden, row = ~problem["mask"][0], 2
        problem["mask"] = problem["mask"][:, None, None, :].expand(2, 1, 5, 7).clone()
        problem["mask"][0, :, row] = False
        query, key, value = problem["qkv"]
        query[0, :, row] = filler
        key[0, :, hidden] = value[0, :, hidden] = filler
        problem["log_precision"][0, hidden] = filler
        of = problem["gate"]
        if isinstance(of, torch.Tensor):
            of[0, ..., hidden] = filler
        elif isinstance(of, ItemGate):
            of.values[0, :, row] = filler
            of.items[0, hidden] = ITEMS - 1
            of.items[0, ~hidden] = 0
            of.values[0, :, :, ITEMS - 1] = filler
        elif of is not None:
            of.query[0, :, row] = filler
        return run(problem, backend=backend, power=1.1)

    for zero, nan in zip(*(sum(map(list, poisoned(x)), []) for x in (0.0, float("nan"))), strict=True):
        assert (zero is None) == (nan is None)
        if zero is not None:
            assert nan.isfinite().all()
            torch.testing.assert_close(nan, zero)


def test_closed_gate_and_extreme_logits(backend):
    dtype = TOLERANCE[backend][0]
    problem = cast(make_problem(gate="pair", queries=64, keys=65), dtype)
    problem["gate"].zero_()
    outputs, gradients = run(problem, backend=backend)
    assert all(x.eq(0).all() for x in outputs)
    assert all(x.isfinite().all() for x in gradients if x is not None)
    for power in (1.0, 1.3, 8.0):
        problem = cast(make_problem(gate="pair", queries=64, keys=65), dtype)
        problem["mask"] = torch.where(torch.rand(2, 1, 64, 65) < 0.5, 1e4, -1e4).to(dtype)
        outputs, gradients = run(problem, backend=backend, power=power)
        assert all(x.isfinite().all() for x in [*outputs, *gradients] if x is not None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gate", ["item", "mlp"])
def test_half_precision_is_as_exact_as_eager(backend, dtype, gate):
    """At most twice the error of the same formula evaluated in the half type throughout."""
    problem = make_problem(gate=gate, queries=65, keys=97, width=32, value_width=32)
    exact = run(cast(cast(problem, dtype), torch.float64), backend="reference", return_mass=False)
    ours = run(problem, dtype=dtype, backend=backend, return_mass=False)
    ready, inputs = leaves(cast(problem, dtype))
    query, key, value = ready["qkv"]
    weights = torch.softmax(query @ key.transpose(-1, -2) * 32**-0.5, -1)
    eager = (weights * ready["gate"].dense()) @ value
    assert ours[0][0].dtype == dtype
    close = (eager.double() - exact[0][0]).abs().max()
    assert (ours[0][0].double() - exact[0][0]).abs().max() <= 2 * close
    g = torch.Generator().manual_seed(3)
    d_out = torch.randn(eager.shape, generator=g, dtype=torch.float64).to(dtype)
    theirs = torch.autograd.grad((eager * d_out).sum(), inputs)
    for actual, naive, expected in zip(ours[1], theirs, exact[1], strict=True):
        error = (naive.double() - expected).abs().max()
        assert (actual.double() - expected).abs().max() <= 2 * error + 1e-3 * expected.abs().max()


def test_slices_of_a_nan_buffer(backend):
    dtype = TOLERANCE[backend][0]

    def embed(x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dim() < 2:
            return x
        out = torch.full([2 * size + 3 for size in x.shape], float("nan"), dtype=x.dtype)
        view = out[tuple(slice(1, 2 * size + 1, 2) for size in x.shape)]
        return view.copy_(x)

    for gate in GATES:
        problem = cast(make_problem(gate=gate, bias="keys"), dtype)
        query, key, value = problem["qkv"]
        plain = evidence_attention(
            query, key, value, gate=problem["gate"], log_precision=problem["log_precision"], backend=backend
        )
        of = problem["gate"]
        if dataclasses.is_dataclass(of):
            of = dataclasses.replace(of, **{f.name: embed(getattr(of, f.name)) for f in dataclasses.fields(of)})
        strided = evidence_attention(
            *map(embed, problem["qkv"]), gate=embed(of), log_precision=embed(problem["log_precision"]), backend=backend
        )
        torch.testing.assert_close(strided.context, plain.context)


# ------------------------------------------------------------------------------------------------ as a torch operator


@pytest.mark.parametrize(
    ("gate", "power"),
    [*((gate, 1.3) for gate in GATES), ("item", 1.0), *(slow(gate, 1.0) for gate in GATES if gate != "item")],
)
def test_opcheck(backend, gate, power):
    """Schema, autograd registration and the shapes for `torch.compile`, by torch's own checker."""
    from warrant_hf.modeling import attention_fused
    from warrant_hf.modeling.attention_gates import GATE_CLASSES

    dtype = TOLERANCE[backend][0]
    problem, _ = leaves(cast(make_problem(gate=gate), dtype))
    of = problem["gate"]
    kind, tensors = ("none", ()) if of is None else ("tensor", (of,))
    if isinstance(of, GATE_CLASSES):
        kind, tensors = of.kind, of.tensors()
    arguments = (
        *problem["qkv"], None, None, list(tensors), None, None, kind, getattr(of, "leak", 0.0), 0.3, power, False, 0.0,
        True, backend,
    )  # fmt: skip
    torch.library.opcheck(attention_fused._attention, arguments)


@pytest.mark.parametrize("gate", GATES)
def test_compiles_without_graph_breaks(gate):
    torch._dynamo.reset()
    problem = make_problem(gate=gate, mask="keys", dtype=torch.float32)

    def call(query, key, value, gate, mask):
        return evidence_attention(query, key, value, gate=gate, mask=mask, power=1.1, backend="blockwise")[:2]

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    ready, inputs = leaves(problem)
    results = []
    for function in (compiled, call):
        outputs = function(*ready["qkv"], ready["gate"], ready["mask"])
        results.append([*outputs, *torch.autograd.grad(sum(x.square().sum() for x in outputs), inputs)])
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [5, 300])
def test_compiles_with_dropout(queries):
    torch._dynamo.reset()
    problem = make_problem(gate="item", queries=queries, keys=queries, dtype=torch.float32)

    def call(query, key, value, gate):
        return evidence_attention(query, key, value, gate=gate, dropout=0.3).context

    results = []
    for function in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
        torch.manual_seed(0)
        results.append(function(*problem["qkv"], problem["gate"]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_exports_as_the_reference():
    class Module(torch.nn.Module):
        def forward(self, query, key, value, values, items):
            return evidence_attention(query, key, value, gate=ItemGate(values, items), power=1.1).context

    problem = make_problem(gate="item", queries=300, keys=900, dtype=torch.float32)
    arguments = (*problem["qkv"], problem["gate"].values, problem["gate"].items)
    exported = torch.export.export(Module(), arguments)
    assert "warrant_hf" not in str(exported.graph)
    torch.testing.assert_close(exported.module()(*arguments), Module()(*arguments), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------ choice of backend


def test_large_problems_take_a_fused_backend(monkeypatch):
    taken = []
    for name, module in FUSED_BACKENDS.items():

        def spy(*given, name=name, original=module.forward):
            taken.append(name)
            return original(*given)

        monkeypatch.setattr(module, "forward", spy)
    small, large = make_problem(gate="pair"), make_problem(gate="pair", queries=600, keys=600, dtype=torch.float32)
    evidence_attention(*small["qkv"], gate=small["gate"])
    assert not taken
    evidence_attention(*large["qkv"], gate=large["gate"])
    assert len(taken) == 1 and taken[0] in ("cpp", "blockwise")
    evidence_attention(*large["qkv"], gate=large["gate"], return_support=True)  # at p = 1: the reference
    evidence_attention(*large["qkv"], gate=torch.ones(2, 600))  # scaled_dot_product_attention
    assert len(taken) == 1
    evidence_attention(*large["qkv"], gate=large["gate"], dropout=0.1)
    assert taken[1:] == ["blockwise"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_weights": True}, "gives no weights and no support at or near power 1; use backend='reference'."),
        ({"return_support": True}, "gives no weights and no support at or near power 1; use backend='reference'."),
        ({"return_support": True, "power": 1.001}, "at or near power 1"),
        ({"dropout": 0.5, "backend": "triton"}, "backend 'triton' cannot do this: "),
        ({"dropout": 1.0}, "dropout is 1.0; pass a number from 0 to below 1."),
    ],
)
def test_a_named_backend_says_what_it_cannot_do(options, message):
    with pytest.raises(ValueError) as info:
        evidence_attention(*make_problem()["qkv"], **{"backend": "blockwise", **options})
    assert message in str(info.value) and str(info.value).endswith(".")


def broken(kind, **changes):
    return dataclasses.replace(make_problem(gate=kind)["gate"], **changes)


@pytest.mark.parametrize(
    ("gate", "error", "message"),
    [
        (3, TypeError, "gate is a int; pass a torch.Tensor, one of ItemGate, PairwiseGate, LowRankGate, or None."),
        (broken("item", values=torch.ones(2, 3, 5, ITEMS)), ValueError, "ItemGate.values has shape [2, 3, 5, 3]"),
        (broken("item", items=torch.zeros(2, 7)), TypeError, "ItemGate.items is torch.float32; pass int64 items."),
        (broken("item", items=torch.zeros(2, 6).long()), ValueError, "expected [B | 1, K] = [2 | 1, 7]."),
        (broken("mlp", weight=torch.ones(4)), ValueError, "weight has shape [4]; expected [R] with R = 5."),
        (broken("mlp", offset=0.0), TypeError, "PairwiseGate.offset is a float; pass a torch.Tensor."),
        (broken("mlp", leak=1.0), ValueError, "PairwiseGate.leak is 1.0; pass a number from 0 to below 1."),
        (broken("low_rank", key=torch.ones(1, 1, 6, 5)), ValueError, "LowRankGate.key has shape [1, 1, 6, 5]"),
        (broken("low_rank", query=torch.ones(1, 1, 5, 5).int()), TypeError, "LowRankGate.query has dtype torch.int32"),
    ],
)
def test_gates_that_do_not_fit(gate, error, message):
    with pytest.raises(error) as info:
        evidence_attention(*make_problem()["qkv"], gate=gate)
    assert message in str(info.value)
