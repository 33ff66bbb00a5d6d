"""What weights of 8 bits cost: an encoder selector as ONNX in float32 and in 8 bits, on the same candidate lists.

    python training/benchmarks/quantisation.py --data DEV.jsonl.gz --limit 100 --out training/benchmarks/results

Writes quantisation.json and quantisation.md: metrics with intervals, paired differences, sizes, seconds a question.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from warrant_hf.commands.loading import load_model
from warrant_hf.data.candidates import build_candidates
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.metrics import compare_runs, evidence_metrics
from warrant_hf.evaluation.predictions import Prediction
from warrant_hf.evaluation.report import write_json, write_text
from warrant_hf.export import OnnxSelector, export_onnx, largest_difference

FILES = {"float32": "model.onnx", "8 bits": "model_int8.onnx"}
METRICS = ("support_mrr", "hit_at_1", "evidence_f1", "auprc", "permission_auc", "ece")
SEED = "eval"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    lists = [build_candidates(row, seed=SEED) for row in read_rows(arguments.data, limit=arguments.limit)]
    model, results, runs = load_model(arguments.model), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(model, folder, int8=True)
        for name, file in FILES.items():
            selector = OnnxSelector(folder, file, threads=arguments.threads)
            selector([lists[0].question], [passages_of(lists[0])])  # the first call prepares
            start = time.perf_counter()
            runs[name] = [predicted(selector, row) for row in lists]
            results[name] = {
                "mib": (Path(folder) / file).stat().st_size / 2**20,
                "seconds": (time.perf_counter() - start) / len(lists),
                "largest_difference": largest_difference(model, folder, file),
                "metrics": evidence_metrics(runs[name]),
            }
    difference = compare_runs([runs["8 bits"]], [runs["float32"]])
    facts = {
        "n": len(lists),
        "model": arguments.model or "default checkpoint",
        "data": arguments.data.name,
        "threads": arguments.threads,
        "machine": platform.machine(),
        "onnxruntime": version("onnxruntime"),
    }
    write_json(arguments.out / "quantisation.json", facts | {"graphs": results, "difference": difference})
    text = report(facts, results, difference)
    write_text(arguments.out / "quantisation.md", text)
    print(text, end="")


def passages_of(row):
    return [candidate.to_passage() for candidate in row.candidates]


def predicted(selector, row):
    """One question at a time: in a batch, an 8-bit activation has its scale from all of them."""
    scores = selector([row.question], [passages_of(row)])
    logits = scores["logits"][0].astype(np.float64)
    permission = scores.get("permission")
    return Prediction(
        id=row.id,
        scores=logits,
        labels=row.labels,
        kinds=row.kinds,
        probabilities=1 / (1 + np.exp(-logits)),
        permission=None if permission is None else permission[0],
    )


def report(facts, results, difference):
    header = ("graph", "MiB", "s a question", "largest difference of a score", *METRICS)
    lines = [
        "# Weights of 8 bits",
        "",
        f"{facts['model']} on {facts['n']} questions of {facts['data']}, 8 candidates each, one question at a time, "
        f"onnxruntime {facts['onnxruntime']} on {facts['threads']} thread(s) of {facts['machine']}. 95 % bootstrap "
        "intervals over questions. Seconds depend on what else the machine does: compare them within the table only.",
        "",
        "| " + " | ".join(header) + " |",
        "|---" * len(header) + "|",
    ]
    for name, result in results.items():
        numbers = f"{result['mib']:.1f} | {result['seconds']:.4f} | {result['largest_difference']:.1e}"
        shown = (shown_interval(result["metrics"].get(metric), ".3f") for metric in METRICS)
        lines.append(f"| {name} | {numbers} | " + " | ".join(shown) + " |")
    shown = (shown_interval(difference.get(metric), "+.4f") for metric in METRICS)
    lines += ["| 8 bits − float32, paired | | | | " + " | ".join(shown) + " |", ""]
    return "\n".join(lines)


def shown_interval(entry, form):
    return "–" if entry is None else f"{entry['value']:{form}} [{entry['low']:{form}}, {entry['high']:{form}}]"


if __name__ == "__main__":
    main()
