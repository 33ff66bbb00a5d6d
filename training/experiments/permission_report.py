"""The report of a grid: every contestant, every comparison with its two kinds of uncertainty, and the claims."""

from __future__ import annotations

import numpy as np
import pandas as pd

from warrant_hf.evaluation.metrics import compare_replicates, replicate_runs
from warrant_hf.evaluation.report import write_json, write_text

from . import statistics
from .claims import claim_rows
from .contestants import CONTESTANTS
from .experiment_report import machine, table

METRICS = {
    "support_mrr": "MRR",
    "hit_at_1": "R@1",
    "evidence_f1": "F1 at gold count",
    "auprc": "AUPRC",
    "permission_auc": "permission AUC",
    "abstention_auroc": "abstention, mass",
    "abstention_auroc_max_score": "abstention, best score",
    "ece": "calibration error, lists with and without evidence",
}
#: Endpoints whose p are adjusted together, per comparison.
ENDPOINTS = ("support_mrr", "evidence_f1", "auprc", "abstention_auroc", "abstention_auroc_max_score", "ece")
#: With what the contestants are compared, and which of them (all: `None`).
REFERENCES = {
    "open": None,
    "pair": None,
    "marker_open": ("marker_path", "marker_label_supervised"),
    "base": ("pair", "open"),
    "role_pair": ("role_adapter", "role_query", "role_normalized", "role_mlp"),
}
RESAMPLES = 1000
MASS_IS_CONSTANT = 1e-5  # a mass that is 1 by construction varies by rounding, which orders nothing
KINDS = ("gold", "hard", "random")
SET_NAMES = {"eval": "Evaluation data", "transfer": "Transfer data, not trained on"}


def write_report(experiment) -> None:
    """Writes `results.parquet`, `report.md`, `report.json` and, with matplotlib, `differences.png`."""
    results = experiment.results()
    diverged = [run for run in results if "failed" in run]
    results = [run for run in results if "failed" not in run]
    if not results:
        raise ValueError(f"{experiment.out} holds no finished run; train first.")
    frame = pd.DataFrame(
        {"contestant": run["contestant"], "seed": run["seed"], "set": name, "metric": metric, "value": value}
        for run in results
        for name, metrics in run["metrics"].items()
        for metric, value in metrics.items()
    )
    frame.to_parquet(experiment.out / "results.parquet", index=False)
    lines = _head(experiment, results)
    lines += [f"- `{run['contestant']}`, seed {run['seed']}, has no result: {run['failed']}." for run in diverged]
    lines, data = [*lines, *[""] * bool(diverged)], {"machine": results[0]["machine"], "sets": {}}
    for name in experiment.sets:
        section, data["sets"][name] = _section(experiment, results, name)
        lines += section
    claims = claim_rows(data["sets"]["eval"])
    data["claims"] = claims
    lines += ["## The papers' claims", ""]
    header = ("claim", "paper", "its own seeds", "ours", "verdict")
    lines += [*table(header, [[claim[column] for column in header] for claim in claims]), ""]
    write_text(experiment.out / "report.md", "\n".join(lines))
    write_json(experiment.out / "report.json", data)
    _figure(data["sets"]["eval"], experiment.out / "differences.png")


def _head(experiment, results):
    grid = experiment.grid
    seeds = sorted({run["seed"] for run in results})
    at_edge = sorted({run["contestant"] for run in results if run["rate"] in (min(grid.rates), max(grid.rates))})
    return [
        "# What permission does, measured",
        "",
        f"Machine and versions: {machine()}.",
        f"Base: {grid.base.recipe} with {grid.base.changes}, trained on rows {grid.base.rows}; its encoder is "
        + ("trained on with every contestant." if experiment.unfreeze else "frozen, and its states are cached."),
        f"Contestants: {len(experiment.train_rows)} training questions, lists {grid.lists.model_dump()}, batches of "
        f"{grid.batch_size}, one pass; learning rates {grid.rates}, chosen per contestant by the log loss on "
        f"{len(experiment.tune_rows)} held-out questions (seed {grid.tuning_seed}); seeds {seeds}. Same data, budget, "
        "dropout, initial gate and search for all, except that those that go on from a finished `open` have its "
        "training on top. A loss of labels on the gates only where a row says so. At an edge of the rates: "
        + ", ".join(f"`{name}`" for name in at_edge)
        + ".",
        "",
    ]


def _section(experiment, results, set_name):
    runs = {}
    for run in results:
        runs.setdefault(run["contestant"], []).append(run)
    predictions = {
        name: [
            experiment.predictions(name, run["seed"], set_name, emptied=False)
            + experiment.predictions(name, run["seed"], set_name, emptied=True)
            for run in listed
        ]
        for name, listed in runs.items()
    }
    replicates = {name: replicate_runs(listed, bootstrap=RESAMPLES) for name, listed in predictions.items()}
    for name, listed in runs.items():
        for run, rows in zip(listed, predictions[name]):  # the run itself has it for lists with evidence only
            run["metrics"][set_name]["ece"] = float(replicate_runs([rows], bootstrap=0).values["ece"][0])
            masses = [row["mass"] for row in rows if row["mass"] is not None]
            if masses and np.ptp(masses) < MASS_IS_CONSTANT:
                run["metrics"][set_name].pop("abstention_auroc", None)
                replicates[name].values.pop("abstention_auroc", None)
    questions = len(set(next(iter(replicates.values())).ids))
    title = f"## {SET_NAMES[set_name]} (n = {questions} questions)"
    lines, data = [title, "", "Mean ± standard deviation over seeds.", ""], {"questions": questions}
    lines += [*_contestants(runs, set_name, data), "", *_gates(runs, set_name, data), ""]
    for reference, compared in REFERENCES.items():
        if reference in runs:
            names = [name for name in runs if name != reference and (compared is None or name in compared)]
            lines += [*_comparisons(names, runs, predictions, replicates, set_name, reference, data), ""]
    return lines, data


def _contestants(runs, set_name, data):
    rows = []
    for name, listed in runs.items():
        values = data.setdefault("contestants", {})[name] = {
            "summary": CONTESTANTS[name].summary,
            "trained_parameters": listed[0]["trained_parameters"],
            "rate": listed[0]["rate"],
            "seeds": {run["seed"]: run["metrics"][set_name] for run in listed},
        }
        cells = [_spread([run["metrics"][set_name].get(metric) for run in listed]) for metric in METRICS]
        facts = [f"`{name}`", values["summary"], f"{values['trained_parameters']:,}", f"{values['rate']:g}"]
        rows.append([*facts, len(listed), *cells])
    return table(("", "what it is", "trained", "rate", "seeds", *METRICS.values()), rows)


def _gates(runs, set_name, data):
    """Permission, attention and effective mass by kind, and the spread of the gates over seeds."""
    rows = []
    for name, listed in runs.items():
        metrics = [run["metrics"][set_name] for run in listed]
        if "permission_gold" not in metrics[0]:
            continue
        cells = [
            " / ".join(f"{np.mean([m.get(f'{what}_{kind}', np.nan) for m in metrics]):.3f}" for kind in KINDS)
            for what in ("permission", "attention", "effective")
        ]
        gap = [m["permission_gold"] - m.get("permission_hard", np.nan) for m in metrics]
        data["contestants"][name]["gate_gap"] = gap
        rows.append([f"`{name}`", *cells, ", ".join(f"{value:+.3f}" for value in gap)])
    header = ("gold / hard / random", "permission", "attention", "effective mass", "permission gold − hard, by seed")
    return ["Means over candidates of a kind and over seeds:", "", *table(header, rows)]


def _comparisons(names, runs, predictions, replicates, set_name, reference, data):
    rows, found = [], data.setdefault("comparisons", {}).setdefault(reference, {})
    for name in names:
        over_questions = compare_replicates(replicates[name], replicates[reference])
        entry = found[name] = {}
        for metric in ENDPOINTS:
            pairs = _by_seed(runs, name, reference, set_name, metric)
            if not pairs or metric not in over_questions:
                continue
            seeds = statistics.paired_over_seeds(*zip(*pairs)) if len(pairs) > 1 else {"t_p": float("nan")}
            entry[metric] = {"questions": over_questions[metric], "seeds": seeds}
        adjusted = statistics.holm({metric: value["questions"]["p"] for metric, value in entry.items()})
        for metric, p in adjusted.items():
            entry[metric]["holm_p"] = p
        if "support_mrr" in entry:
            entry["support_mrr"]["both"] = _crossed(predictions[name], predictions[reference])
        rows.append([f"`{name}`", *(_difference(entry.get(metric)) for metric in ENDPOINTS), _verdict(entry)])
    header = (f"minus `{reference}`", *(METRICS[metric] for metric in ENDPOINTS), "MRR, seeds and questions crossed")
    note = (
        "Difference [95 % interval over questions, means of seeds]; seeds up of all; p over questions, Holm for the "
        "six columns. Last: interval when seeds and questions are both resampled, and what the size means. A "
        "mass that is 1 by construction orders no lists, so it has no abstention (–)."
    )
    return [note, "", *table(header, rows)]


def _by_seed(runs, name, reference, set_name, metric):
    values = [
        {run["seed"]: run["metrics"][set_name][metric] for run in runs[which] if metric in run["metrics"][set_name]}
        for which in (name, reference)
    ]
    return [(values[0][seed], values[1][seed]) for seed in values[0] if seed in values[1]]


def _crossed(runs_a, runs_b):
    """Reciprocal ranks, `[seeds, questions]`, resampled on both axes."""
    count = min(len(runs_a), len(runs_b))
    sides = [[_reciprocal_ranks(run) for run in runs[:count]] for runs in (runs_a, runs_b)]
    return statistics.crossed_bootstrap(np.array(sides[0]) - np.array(sides[1]), resamples=4000)


def _reciprocal_ranks(run):
    found = []
    for row in run:
        labels = np.asarray(row["labels"])
        if labels.any():
            order = np.argsort(-np.asarray(row["scores"]), kind="stable")
            found.append(1 / (1 + np.flatnonzero(labels[order])[0]))
    return found


def _spread(values):
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def _difference(entry):
    if entry is None:
        return "–"
    value, seeds = entry["questions"], entry["seeds"]
    up = f"; {seeds['up']}/{seeds['of']}" if "up" in seeds else ""
    return f"{value['value']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]{up}; p {entry['holm_p']:.3f}"


def _verdict(entry):
    if "both" not in entry.get("support_mrr", {}):
        return "–"
    both = entry["support_mrr"]["both"]
    is_null = both["low"] <= 0 <= both["high"]
    size = "not told apart" if is_null else statistics.tier(both["value"])
    return f"{both['value']:+.3f} [{both['low']:+.3f}, {both['high']:+.3f}], {size}"


def _figure(data, path):
    """Differences from `open` in ranking, seeds and questions resampled, and in saying no by the best score."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    compared = data.get("comparisons", {}).get("open", {})
    names = [name for name in compared if "support_mrr" in compared[name]]
    if not names:
        return
    figure, axes = plt.subplots(1, 2, figsize=(10, 0.32 * len(names) + 1.2), sharey=True, layout="constrained")
    for axis, metric in zip(axes, ("support_mrr", "abstention_auroc_max_score")):
        for at, name in enumerate(names):
            entry = compared[name][metric]
            entry = entry.get("both", entry["questions"])
            axis.plot([entry["low"], entry["high"]], [at, at], color="#0072B2", linewidth=2)
            axis.plot(entry["value"], at, "o", color="#0072B2")
        axis.axvline(0, color="#555555", linewidth=1)
        axis.set_xlabel(f"{METRICS[metric]}, minus open")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    title = (
        f"n = {data['questions']} questions; 95 % intervals over seeds and questions (left), over questions (right)"
    )
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
