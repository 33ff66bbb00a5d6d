"""Time and memory of the fused operator beside what PyTorch offers.

    python training/benchmarks/attention.py run --out training/benchmarks/results/attention_cpu.csv
    python training/benchmarks/attention.py plot training/benchmarks/results/attention_cpu.csv --out docs

Each round times every competitor of a case once, in turns, so that a busy moment meets all of them; a row holds the
median of the rounds, their quantiles and the median ratio to `sdpa` (no gate: the floor) within a round. Before any
number, outputs and gradients of ours are compared with the reference; a case that fails the comparison is reported and
not timed. Peak memory is measured alone, in a process of its own. `attention_gpu.py` runs the same on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.nn.functional as F

import warrant_hf
from warrant_hf.modeling.attention_fused import FUSED_BACKENDS
from warrant_hf.modeling.attention_gates import ItemGate, LowRankGate, PairwiseGate
from warrant_hf.modeling.attention_ops import evidence_attention

ROUNDS = 9
HEADS, WIDTH, ITEMS, HIDDEN = 12, 64, 16, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HEADLINE = {"gate": "item", "power": 1.0, "length": 2048, "dtype": "fp32"}
# One axis varies at a time around the headline.
CASES = [
    *({**HEADLINE, "length": n} for n in (256, 512, 1024, 2048, 4096)),
    *({**HEADLINE, "length": n, "dtype": "bf16"} for n in (256, 512, 1024, 2048)),
    *({**HEADLINE, "power": p} for p in (1.1, 2.0)),
    {**HEADLINE, "power": 1.1, "dtype": "bf16"},
    *({**HEADLINE, "gate": g, "length": n} for g, n in (("none", 2048), ("pair", 2048), ("low_rank", 2048))),
    {**HEADLINE, "gate": "none", "power": 1.1},
    *({**HEADLINE, "gate": "mlp", "length": 512, "dtype": d} for d in DTYPES),
]
LARGEST_ERROR = {"fp32": 2e-5, "bf16": 2e-2}  # relative root mean square
FIELDS = (
    "time commit version torch machine device threads gate power dtype batch heads length width items hidden pass "
    "competitor rounds median_ms q20_ms q80_ms ratio_to_sdpa ratio_q20 ratio_q80 peak_mib error"
).split()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    run = steps.add_parser("run")
    run.add_argument("--out", type=Path, required=True, help="CSV; rows are appended")
    run.add_argument("--device", default="cpu")
    run.add_argument("--threads", type=int, default=torch.get_num_threads())
    run.add_argument("--cases", type=int, nargs="*", help="numbers of cases; all by default")
    run.add_argument("--no-memory", action="store_true")
    memory = steps.add_parser("memory", help="peak of one competitor, as JSON; called by run")
    memory.add_argument("--spec", required=True)
    plot = steps.add_parser("plot")
    plot.add_argument("csv", type=Path)
    plot.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    {"run": _run, "memory": _memory, "plot": _plot}[given.step](given)


# ------------------------------------------------------------------------------------------------ the problem


def make_inputs(case, device="cpu", length=None, heads=HEADS):
    """query, key, value and the tensors of the gate, all leaves, and the output gradient."""
    n, dtype = length or case["length"], DTYPES[case["dtype"]]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    tensors = [normal(1, heads, n, WIDTH) for _ in range(3)]
    tensors += {
        "none": lambda: [],
        "item": lambda: [torch.sigmoid(normal(1, 1, n, ITEMS))],
        "pair": lambda: [torch.sigmoid(normal(1, 1, n, n))],
        "low_rank": lambda: [normal(1, 1, n, HIDDEN) / 8, normal(1, 1, n, HIDDEN), normal()],
        "mlp": lambda: [normal(1, 1, n, HIDDEN), normal(1, 1, n, HIDDEN), normal(HIDDEN) / 8, normal()],
    }[case["gate"]]()
    return [x.requires_grad_() for x in tensors], normal(1, heads, n, WIDTH)


def make_gate(case, tensors):
    items = (torch.arange(tensors[0].shape[2], device=tensors[0].device) * ITEMS // tensors[0].shape[2])[None]
    make = {
        "none": lambda: None,
        "pair": lambda values: values,
        "item": lambda values: ItemGate(values, items),
        "low_rank": lambda *of: LowRankGate(*of, leak=0.05),
        "mlp": lambda *of: PairwiseGate(*of, leak=0.05),
    }[case["gate"]]
    return make(*tensors[3:])


def eager(case, tensors):
    """The formula as one would write it."""
    query, key, value = tensors[:3]
    logits = (query * WIDTH**-0.5) @ key.transpose(-1, -2)
    if case["power"] == 1:
        weights = torch.softmax(logits, -1)
    else:
        logits = logits.float()
        weights = (logits - torch.logsumexp(logits * case["power"], -1, keepdim=True) / case["power"]).exp()
        weights = weights.to(value.dtype)
    gate = make_gate(case, tensors)
    if gate is not None:
        weights = weights * (gate if isinstance(gate, torch.Tensor) else gate.dense())
    return weights @ value


def sdpa(case, tensors):
    return F.scaled_dot_product_attention(*tensors[:3])


def sdpa_with_mask(case, tensors):
    n = tensors[0].shape[2]
    return F.scaled_dot_product_attention(*tensors[:3], attn_mask=_bias(n, tensors[0]))


def _bias(n, like, cache={}):
    if (n, like.dtype, like.device) not in cache:
        cache.clear()
        cache[n, like.dtype, like.device] = torch.zeros(1, 1, n, n, dtype=like.dtype, device=like.device)
    return cache[n, like.dtype, like.device]


def sdpa_per_item(case, tensors):
    """Exact without a kernel, forward only: one call an item, joined by their normalisers."""
    query, key, value, values = tensors
    step = query.shape[2] // ITEMS
    parts = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key[:, :, s : s + step], value[:, :, s : s + step]
        )
        for s in range(0, step * ITEMS, step)
    ]
    share = torch.stack([lse for _, lse in parts], -1).softmax(-1) * values
    return sum(out * share[..., m : m + 1] for m, (out, _) in enumerate(parts))


def ours(backend):
    def call(case, tensors):
        return evidence_attention(
            *tensors[:3], gate=make_gate(case, tensors), power=case["power"], return_mass=False, backend=backend
        ).context

    return call


def competitors(case, device, backward):
    """Name to function; the first is what ratios refer to."""
    found = {"sdpa": sdpa, "sdpa + mask": sdpa_with_mask, "eager": eager}
    if all(case[name] == HEADLINE[name] for name in HEADLINE):
        found["torch.compile(eager)"] = torch.compile(lambda case, tensors: eager(case, tensors), dynamic=False)
    if device == "cpu" and case["gate"] == "item" and case["power"] == 1 and not backward:
        found["sdpa per item"] = sdpa_per_item
    for name in FUSED_BACKENDS:
        try:
            tensors, _ = make_inputs(case, device, length=16, heads=1)
            ours(name)(case, tensors)
        except ValueError:
            continue
        found[f"ours, {name}"] = ours(name)
    return found


# ------------------------------------------------------------------------------------------------ measuring


def measure(function, case, tensors, d_out, backward):
    device = tensors[0].device
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    with torch.set_grad_enabled(backward):
        out = function(case, tensors)
    if backward:
        torch.autograd.grad(out, tensors, d_out, allow_unused=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def error_against_reference(name, function, case, device):
    """Largest relative root mean square over the output and all gradients, at the same length with two heads."""
    tensors, d_out = make_inputs(case, device, heads=2)
    results = []
    for call in (function, ours("reference")):
        of = tensors if call is function else [x.detach().float().requires_grad_() for x in tensors]
        out = call({**case}, of)
        results.append([out.detach(), *torch.autograd.grad(out, of, d_out.to(out.dtype))])
    return max(
        float((a.float() - e).square().mean().sqrt() / e.square().mean().sqrt().clamp(min=1e-12))
        for a, e in zip(*results)
    )


def _run(given):
    torch.set_num_threads(given.threads)
    environment = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "version": warrant_hf.__version__,
        "torch": torch.__version__,
        "machine": _machine(given.device),
        "device": given.device,
        "threads": given.threads,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    is_new = not given.out.exists()
    with open(given.out, "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for number, case in enumerate(CASES):
            if given.cases is not None and number not in given.cases:
                continue
            for row in _measure_case(case, given):
                writer.writerow(environment | row)
            file.flush()


def _measure_case(case, given):
    size = {"batch": 1, "heads": HEADS, "width": WIDTH, "items": ITEMS, "hidden": HIDDEN}
    print(f"\n{case}", flush=True)
    for backward in (False, True):
        functions, errors = competitors(case, given.device, backward), {}
        for name, function in list(functions.items()):
            if name.startswith("ours"):
                errors[name] = error_against_reference(name, function, case, given.device)
                if not errors[name] <= LARGEST_ERROR[case["dtype"]]:
                    print(f"  {name}: WRONG, relative error {errors[name]:.1e}; not timed")
                    del functions[name]
        tensors, d_out = make_inputs(case, given.device)
        times = {name: [] for name in functions}
        for name, function in functions.items():
            measure(function, case, tensors, d_out, backward)  # warm-up, compilation
        for number in range(ROUNDS):
            order = list(functions) if number % 2 else list(reversed(functions))
            for name in order:
                times[name].append(measure(functions[name], case, tensors, d_out, backward))
        for name, spent in times.items():
            ratios = [ours / floor for ours, floor in zip(spent, times["sdpa"])]
            # A process each: only where the picture shows it.
            wanted = backward and not given.no_memory and case == {**HEADLINE, "length": case["length"]}
            peak = _peak_of(name, case, given, backward) if wanted else ""
            row = {
                **case,
                **size,
                "pass": "forward+backward" if backward else "forward",
                "competitor": name,
                "rounds": ROUNDS,
                "peak_mib": peak,
                "error": f"{errors[name]:.2e}" if name in errors else "",
            }
            for prefix, values, end in (("", spent, "_ms"), ("ratio", ratios, "")):
                low, middle, high = _quantiles(values)
                keys = ("median_ms", "q20_ms", "q80_ms") if end else ("ratio_to_sdpa", "ratio_q20", "ratio_q80")
                row |= {key: round(x, 3) for key, x in zip(keys, (middle, low, high))}
            print(
                f"  {row['pass']:17s} {name:22s} {row['median_ms']:9.1f} ms  x{row['ratio_to_sdpa']:.2f}  {peak}",
                flush=True,
            )
            yield row
        gc.collect()


def _quantiles(values):
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return fifths[0], statistics.median(values), fifths[3]


def _peak_of(name, case, given, backward):
    if name.startswith("torch.compile"):
        return ""  # its peak would be that of the compiler
    spec = {"name": name, "case": case, "device": given.device, "threads": given.threads, "backward": backward}
    done = subprocess.run([sys.executable, __file__, "memory", "--spec", json.dumps(spec)], capture_output=True)
    return json.loads(done.stdout) if done.returncode == 0 else ""


def _memory(given):
    """Growth of the peak over what the process held before the call, in MiB."""
    spec = json.loads(given.spec)
    torch.set_num_threads(spec["threads"])
    case, device = spec["case"], spec["device"]
    function = competitors(case, device, spec["backward"])[spec["name"]]
    small, d_small = make_inputs(case, device, length=32)
    measure(function, case, small, d_small, spec["backward"])  # libraries and compiled code are loaded now
    tensors, d_out = make_inputs(case, device)
    if spec["name"] == "sdpa + mask":
        _bias(case["length"], tensors[0])
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        measure(function, case, tensors, d_out, spec["backward"])
        print(round((torch.cuda.max_memory_allocated() - before) / 2**20, 1))
        return
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    measure(function, case, tensors, d_out, spec["backward"])
    print(round((_status("VmHWM") - before) / 1024, 1))


def _status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}; use --no-memory on this system.")


def _machine(device):
    if device == "cuda":
        return torch.cuda.get_device_name()
    sys.path.insert(0, str(Path(__file__).parent))
    from comparison_runs import machine

    return machine()["cpu"]


def _commit():
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return done.stdout.strip()


# ------------------------------------------------------------------------------------------------ picture


def _plot(given):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with open(given.csv, newline="") as file:
        rows = list(csv.DictReader(file))
    newest = {}  # a later row of the same measurement replaces an earlier one
    for row in rows:
        newest[tuple(row[key] for key in ("gate", "power", "dtype", "length", "pass", "competitor"))] = row
    rows = [row for row in newest.values() if row["gate"] == "item" and float(row["power"]) == 1]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    colours = {"sdpa": "0.45", "eager": "#d55e00", "sdpa per item": "#cc79a7"}
    colours |= {"ours, cpp": "#0072b2", "ours, blockwise": "#56b4e9", "ours, triton": "#0072b2"}
    panels = (("fp32", "median_ms", "time, ms"), ("bf16", "median_ms", "time, ms"), ("fp32", "peak_mib", "peak, MiB"))
    for axis, (dtype, column, label) in zip(axes, panels):
        for name, colour in colours.items():
            points = sorted(
                (int(row["length"]), float(row[column]))
                for row in rows
                if row["competitor"] == name and row["dtype"] == dtype and row[column]
                and row["pass"] == "forward+backward"
            )  # fmt: skip
            if points:
                axis.plot(*zip(*points), marker="o", markersize=3, color=colour, label=name)
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label, title=f"{dtype}, forward + backward")
        axis.set_xticks([256, 512, 1024, 2048, 4096], ["256", "512", "1k", "2k", "4k"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    given.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out / f"{given.csv.stem}.png", dpi=130)


if __name__ == "__main__":
    main()
