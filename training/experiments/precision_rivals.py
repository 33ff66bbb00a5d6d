"""PFA and its rivals: error, the six tests, losses, and, on sensors, the boundary cases.

    python training/experiments/precision_rivals.py --out training/experiments/results
    python training/experiments/precision_rivals.py --out training/experiments/results --world statements

Three to five minutes of one core each. All models have equal width, data, optimiser and steps; each one's learning
rate is chosen from one grid, on lists of its own, with a seed that is not reported. Sparsemax and entmax need the
package entmax (pip install 'warrant-hf[experiments]'); without it they are left out, and the report says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
import torch
from precision_boundaries import BOUNDARIES
from precision_rival_models import RIVALS
from precision_worlds import WORLDS
from scipy import stats

from warrant_hf.evaluation.report import write_json, write_text
from warrant_hf.precision import check_precision_contract, fit_precision_model

TUNING_SEED = 100
STEPS = 400


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2, 3, 4))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--world", choices=WORLDS, default="sensors")
    arguments = parser.parse_args()
    if len(arguments.seeds) < 2:
        parser.error("--seeds has one seed; give two or more, for an interval.")
    torch.set_num_threads(1)
    started = time.process_time()
    has_entmax = importlib.util.find_spec("entmax") is not None
    names = [name for name, row in RIVALS.items() if has_entmax or not row[3]]

    world = WORLDS[arguments.world]()
    data = world.data(TUNING_SEED)
    rates = {}
    for name in names:
        rates[name] = min(world.rates, key=lambda rate: _choosing_error(name, world, data, rate, arguments.steps))
    runs, models = {name: [] for name in names}, []
    for seed in arguments.seeds:
        data = world.data(seed)
        for name in names:
            model = _train(name, world, data, rates[name], seed, arguments.steps)
            runs[name].append(_measure(model, data[2]))
            if name == "pfa":
                models.append(model)
    with torch.no_grad():
        known = BOUNDARIES if arguments.world == "sensors" else {}
        boundaries = {title: function(models) for title, function in known.items()}
    seconds = time.process_time() - started
    payload = {
        "config": {
            "world": world.title,
            "seeds": list(arguments.seeds),
            "steps": arguments.steps,
            "train_lists": world.train,
            "test_lists": world.test,
            "learning_rates": rates,
            "entmax": has_entmax,
            "cpu_seconds": round(seconds),
        },
        "rivals": {name: _summary(name, runs) for name in names},
        "boundaries": {
            title: {setting: {m: _over_seeds(v) for m, v in ms.items()} for setting, ms in table.items()}
            for title, table in boundaries.items()
        },
    }
    text = _markdown(payload)
    name = "precision_rivals" if arguments.world == "sensors" else f"precision_rivals_{arguments.world}"
    write_json(arguments.out / f"{name}.json", payload)
    write_text(arguments.out / f"{name}.md", text)
    print(text)


def _train(name, world, data, rate, seed, steps):
    train, held_out, _ = data
    kind, bound, loss, _, _ = RIVALS[name]
    torch.manual_seed(seed)
    model = world.make(kind, bound, train)
    return fit_precision_model(model, train, held_out, loss=loss, steps=steps, learning_rate=rate, seed=seed)


def _choosing_error(name, world, data, rate, steps):
    model = _train(name, world, data, rate, TUNING_SEED, steps)
    with torch.no_grad():
        return float((model.predict(data[1]) - data[1].target).square().mean())


def _measure(model, pairs):
    report = check_precision_contract(model, pairs)
    with torch.no_grad():
        error = float((model.predict(pairs.base) - pairs.base.target).square().mean())
        equal = float((model.predict(pairs.homoscedastic) - pairs.homoscedastic.target).square().mean())
        log_precision, noise = model.log_precision(pairs.base), -pairs.base.variance.log()
        rank = stats.spearmanr(log_precision.flatten(), noise.flatten()).statistic if log_precision.std() else np.nan
        # A bias has no level of its own. What remains after the best one is its error of shape.
        level = ((pairs.base.reading - pairs.base.truth).square() * log_precision.exp()).mean().log()
        shifted = _Shifted(model, -level)
        shape = check_precision_contract(shifted, pairs, resamples=2)["calibration"].value
    return {
        "mse": error,
        "mse_equal_noise": equal,
        "calibration": report["calibration"].value,
        "calibration_free_level": shape,
        "rank_correlation": float(rank),
        "failed": list(report.failed),
        "label": report.label,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


class _Shifted:
    """A model with a constant added to its log-precisions, which moves no weight."""

    def __init__(self, model, constant):
        self.relevance, self.predict = model.relevance, model.predict
        self.log_precision = lambda batch: model.log_precision(batch) + constant


def _summary(name, runs):
    mine, pfa = runs[name], runs["pfa"]
    measures = ("mse", "mse_equal_noise", "calibration", "calibration_free_level", "rank_correlation")
    failed = sorted({test for run in mine for test in run["failed"]})
    return {
        "definition": RIVALS[name][4],
        "parameters": mine[0]["parameters"],
        **{measure: _over_seeds([run[measure] for run in mine]) for measure in measures},
        "mse_minus_pfa": _over_seeds([run["mse"] - other["mse"] for run, other in zip(mine, pfa, strict=True)]),
        "failed": {test: sum(test in run["failed"] for run in mine) for test in failed},
        "earned": sum(run["label"] == "precision" for run in mine),
        "runs": mine,
    }


def _over_seeds(values):
    """Mean with Student's 95 % interval; one value, or equal ones, have none."""
    values = np.asarray(values, dtype=float)
    low = high = np.nan
    if len(values) > 1 and values.std() > 0:
        low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return {"value": float(values.mean()), "low": float(low), "high": float(high)}


def _markdown(payload):
    config, seeds = payload["config"], len(payload["config"]["seeds"])
    lines = [f"# PFA and its rivals on {config['world']}", ""]
    lines += [f"- {name}: {value}" for name, value in config.items()]
    lines += ["", f"Means over {seeds} seeds (world, initialisation and order) with Student's 95 % interval."]
    if not config["entmax"]:
        lines += ["", "Sparsemax and entmax are left out: the package entmax is not installed."]
    header = "| model | definition | parameters | MSE | MSE − PFA | MSE, equal noise | earned |"
    lines += ["", "## Task error", "", header, "|---|---|---:|---:|---:|---:|---:|"]
    for name, row in payload["rivals"].items():
        shown = " | ".join(_cell(row[key]) for key in ("mse", "mse_minus_pfa", "mse_equal_noise"))
        lines.append(f"| {name} | {row['definition']} | {row['parameters']} | {shown} | {row['earned']} of {seeds} |")
    lines += ["", "`earned`: in how many seeds all six tests passed, so that the score may be called a precision.", ""]
    lines += ["## Mechanism", ""]
    lines += ["| model | calibration factor | after a free level | rank correlation with 1/variance | tests failed |"]
    lines += ["|---|---:|---:|---:|---|"]
    for name, row in payload["rivals"].items():
        failed = ", ".join(f"{test} ({count})" for test, count in row["failed"].items()) or "–"
        keys = ("calibration", "calibration_free_level", "rank_correlation")
        lines.append(f"| {name} | {' | '.join(_cell(row[key]) for key in keys)} | {failed} |")
    for title, table in payload["boundaries"].items():
        measures = list(next(iter(table.values())))
        lines += ["", f"## {title}", "", "| | " + " | ".join(measures) + " |", "|---" + "|---:" * len(measures) + "|"]
        lines += [f"| {name} | {' | '.join(_cell(row[m]) for m in measures)} |" for name, row in table.items()]
    return "\n".join(lines) + "\n"


def _cell(entry):
    if not np.isfinite(entry["value"]):
        return "–"
    if not np.isfinite(entry["low"]):
        return f"{entry['value']:.4f}"
    return f"{entry['value']:.4f} [{entry['low']:.4f}, {entry['high']:.4f}]"


if __name__ == "__main__":
    main()
