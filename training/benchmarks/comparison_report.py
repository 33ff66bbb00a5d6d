"""Tables of `selector_comparison.py`: means over seeds, and paired differences with bootstrap intervals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from warrant_hf.evaluation.metrics import compare_runs, evidence_metrics
from warrant_hf.evaluation.report import write_json, write_text

METRICS = (
    "support_mrr", "hit_at_1", "evidence_f1", "auprc", "gold_hard_auc", "permission_auc",
    "abstention_auroc", "abstention_auroc_max_score", "abstention_auroc_answerability", "ece",
)  # fmt: skip
PAIRS = (("pair", "cross_encoder"), ("pair", "open"), ("pair", "base"), ("base", "cross_encoder"))
SETS = {"eval": "HotpotQA dev", "transfer": "2WikiMultihopQA dev, not trained on"}


def read_predictions(folder: Path, name: str) -> list[dict]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_report(runs: dict[str, list[Path]], out: Path) -> None:
    """Writes `report.md` and `report.json` for `{variant: [run folder per seed]}`."""
    settings = {
        variant: [json.loads((folder / "run.json").read_text()) for folder in runs[variant]] for variant in runs
    }
    lines, data = ["# Evidence selection: comparison on one encoder", ""], {"runs": settings, "sets": {}}
    first = next(iter(settings.values()))[0]
    lines += [f"Machine: {json.dumps(first['machine'])}. Base model: {first['recipe']['base_model']}.", ""]
    for name, title in SETS.items():
        folders = {v: [f for f in runs[v] if (f / f"{name}.jsonl.gz").is_file()] for v in runs}
        folders = {variant: listed for variant, listed in folders.items() if listed}
        if not folders:
            continue
        predictions = {v: [read_predictions(folder, name) for folder in folders[v]] for v in folders}
        questions = len({row["id"] for row in next(iter(predictions.values()))[0]})
        lines += [f"## {title} (n = {questions} questions, 8 candidates a question)", ""]
        table, data["sets"][name] = _means(predictions, settings), {"questions": questions}
        lines += [
            *table,
            "",
            "Mean over seeds ± standard deviation over seeds. `–`: the variant has no such number.",
            "",
        ]
        lines += ["| paired difference | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
        for a, b in PAIRS:
            if a in predictions and b in predictions:
                compared = compare_runs(predictions[a], predictions[b], bootstrap=2000)
                data["sets"][name][f"{a} - {b}"] = compared
                lines.append(
                    f"| {a} − {b} | " + " | ".join(difference(compared.get(metric)) for metric in METRICS) + " |"
                )
        lines += [
            "",
            "Differences of seed means with 95 % intervals from 2,000 paired resamples of the questions.",
            "",
        ]
    write_text(out / "report.md", "\n".join(lines) + "\n")
    write_json(out / "report.json", data)
    print("\n".join(lines))


def _means(predictions, settings):
    lines = ["| variant | seeds | learning rate | trainable | train s | " + " | ".join(METRICS) + " |"]
    lines.append("|---" * (len(METRICS) + 5) + "|")
    for variant, runs in predictions.items():
        values = [evidence_metrics(run, bootstrap=0) for run in runs]
        cells = [over_seeds(values, metric) for metric in METRICS]
        facts = settings[variant]
        seconds = np.mean([fact["train_seconds"] for fact in facts])
        start = f"| {variant} | {len(runs)} | {facts[0]['rate']:g} | {facts[0]['parameters']:,} | {seconds:.0f} | "
        lines.append(start + " | ".join(cells) + " |")
    return lines


def over_seeds(values: list[dict], metric: str) -> str:
    """Mean ± standard deviation of a metric over the runs that have it."""
    found = [value[metric]["value"] for value in values if metric in value]
    if not found:
        return "–"
    return f"{np.mean(found):.4f} ± {np.std(found, ddof=1):.4f}" if len(found) > 1 else f"{found[0]:.4f}"


def difference(value):
    return "–" if value is None else f"{value['value']:+.4f} [{value['low']:+.4f}, {value['high']:+.4f}]"
