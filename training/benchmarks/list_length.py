"""Do scores keep their meaning when the list grows? Ranking and calibration at 2, 8, 41 and 100 candidates.

    python training/benchmarks/list_length.py --data DEV --out runs/list-length [--model M]

A list of 2 is one gold and its hardest distractor, lists of 8 and "all" are those of `build_candidates`, a list of
100 is "all" filled up with sentences of other questions. Candidates keep their input format; nothing is retrained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from warrant_hf.commands.loading import load_model
from warrant_hf.data.candidates import build_candidates, seeded_random, shuffled
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.metrics import evidence_metrics
from warrant_hf.evaluation.predict import predict
from warrant_hf.evaluation.report import write_json, write_text

SIZES = (2, 8, None, 100)
METRICS = ("support_mrr", "hit_at_1", "auprc", "permission_auc", "ece", "brier")
SEED = "eval"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    rows, model = read_rows(arguments.data, limit=arguments.limit), load_model(arguments.model)
    lines = ["| candidates a list | share of golds | mean probability | " + " | ".join(METRICS) + " |"]
    lines.append("|---" * (len(METRICS) + 3) + "|")
    results = {}
    for size in SIZES:
        lists = [resized(row, size, rows) for row in rows]
        predictions = predict(model, lists, 8)
        metrics = evidence_metrics(predictions)
        count = sum(len(p.labels) for p in predictions)
        golds = sum(sum(p.labels) for p in predictions) / count
        mean = sum(sum(p.probabilities) for p in predictions) / count
        results[str(size or "all")] = {
            "candidates": count / len(lists),
            "golds": golds,
            "mean": mean,
            "metrics": metrics,
        }
        shown = (f"{m['value']:.3f} [{m['low']:.3f}, {m['high']:.3f}]" for m in map(metrics.get, METRICS))
        lines.append(f"| {count / len(lists):.1f} | {golds:.3f} | {mean:.3f} | " + " | ".join(shown) + " |")
    write_json(arguments.out / "list_length.json", {"n": len(rows), "model": arguments.model, "sizes": results})
    write_text(arguments.out / "list_length.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def resized(row, size, rows):
    """The row with `size` candidates (`None`: all of its own), every draw fixed by the row's id."""
    if size == 2:
        full = build_candidates(row, size=None, hard=1, seed=SEED)
        golds = [candidate for candidate in full.candidates if candidate.kind == "gold"][:1]
        return full.with_candidates(golds + [candidate for candidate in full.candidates if candidate.kind == "hard"])
    if size != 100:
        return build_candidates(row, size=size, seed=SEED)
    rng = seeded_random("list-length", row.id)
    others = shuffled([other for other in rows if other.id != row.id], rng)
    extra = [candidate for other in others[:4] for candidate in other.candidates if not candidate.label]
    extra = [candidate.model_copy(update={"kind": "random", "label": 0}) for candidate in extra]
    kept = build_candidates(row, size=None, seed=SEED).candidates
    return row.with_candidates(shuffled([*kept, *extra[: max(size - len(kept), 0)]], rng))


if __name__ == "__main__":
    main()
