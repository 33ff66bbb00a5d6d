"""Tables of `reader_comparison.py`: means over seeds, and paired differences with bootstrap intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from comparison_report import difference, over_seeds, read_predictions

from warrant_hf.evaluation.metrics import compare_runs, evidence_metrics
from warrant_hf.evaluation.report import write_json, write_text

RANKING = ("support_mrr", "recall_at_2", "evidence_f1", "permission_auc", "ece")
ABSTENTION = ("abstention_auroc", "abstention_auroc_max_score")
PAIRS = (
    ("encoder", "cross_encoder"),
    ("fid", "cross_encoder"),
    ("led", "cross_encoder"),
    ("fid", "encoder"),
    ("led", "encoder"),
)


def write_report(runs: dict[str, list[Path]], cosine: Path, out: Path) -> None:
    """Writes `report.md` and `report.json` for `{reader: [run folder per seed]}` and the untrained encoder."""
    settings = {reader: [_settings(folder) for folder in runs[reader]] for reader in runs}
    first = next(iter(settings.values()))[0]
    ranked = {reader: [read_predictions(folder, "eval") for folder in runs[reader]] for reader in runs}
    emptied = {reader: [read_predictions(folder, "abstention") for folder in runs[reader]] for reader in runs}
    rows = first["rows"]
    lines = [
        "# Three readers and a cross-encoder on the weights of MiniLM-L6",
        "",
        f"HotpotQA, all ten passages of a question: {rows['train']} training and n = {rows['dev']} dev questions; "
        f"abstention on {rows['abstention']} of them, lists of eight with and without evidence.",
        f"Machine: {json.dumps(first['machine'])}. The commands stand at the head of `reader_comparison.py`.",
        "",
        "| reader | seeds | learning rate | trainable | train s | eval s | " + " | ".join(RANKING + ABSTENTION) + " |",
        "|---" * (6 + len(RANKING) + len(ABSTENTION)) + "|",
    ]
    if (cosine / "eval.jsonl.gz").is_file():
        values = [evidence_metrics(read_predictions(cosine, "eval"), bootstrap=0)]
        cells = [over_seeds(values, metric) for metric in RANKING] + ["–"] * len(ABSTENTION)
        lines.append("| cosine, untrained | 1 | – | 0 | – | – | " + " | ".join(cells) + " |")
    for reader, facts in settings.items():
        values = [evidence_metrics(run, bootstrap=0) for run in ranked[reader]]
        refused = [evidence_metrics(run, bootstrap=0) for run in emptied[reader]]
        cells = [over_seeds(values, metric) for metric in RANKING]
        cells += [over_seeds(refused, metric) for metric in ABSTENTION]
        seconds = [f"{np.mean([fact[name] for fact in facts]):.0f}" for name in ("train_seconds", "eval_seconds")]
        start = f"| {reader} | {len(facts)} | {facts[0]['rate']:g} | {facts[0]['parameters']:,} | "
        lines.append(start + " | ".join(seconds + cells) + " |")
    lines += [
        "",
        "Mean over seeds ± standard deviation over seeds. `–`: there is no such number. Seconds of training and "
        "scoring are those of a machine with other work: two runs side by side, one thread each.",
        "",
        "| paired difference | " + " | ".join(RANKING + ABSTENTION) + " |",
        "|---" * (1 + len(RANKING) + len(ABSTENTION)) + "|",
    ]
    differences = {}
    against = [(reader, "cosine") for reader in runs if reader != "cross_encoder"]
    if (cosine / "eval.jsonl.gz").is_file():
        ranked["cosine"], emptied["cosine"] = [read_predictions(cosine, "eval")], []
    for a, b in (*PAIRS, *against):
        if a in ranked and b in ranked:
            found = compare_runs(ranked[a], ranked[b], bootstrap=2000)
            if emptied[a] and emptied[b]:
                found |= {
                    k: v for k, v in compare_runs(emptied[a], emptied[b], bootstrap=2000).items() if k in ABSTENTION
                }
            differences[f"{a} - {b}"] = found
            cells = [difference(found.get(metric)) for metric in RANKING + ABSTENTION]
            lines.append(f"| {a} − {b} | " + " | ".join(cells) + " |")
    lines += ["", "Differences of seed means with 95 % intervals from 2,000 paired resamples of the questions.", ""]
    write_text(out / "report.md", "\n".join(lines))
    write_json(out / "report.json", {"runs": settings, "differences": differences})
    print("\n".join(lines))


def _settings(folder):
    """What a run was: its base by name, and not where that lay."""
    settings = json.loads((folder / "run.json").read_text())
    for field in ("base_model", "start_from"):
        if settings["recipe"].get(field):
            settings["recipe"][field] = Path(settings["recipe"][field]).name
    return settings
