"""When does permission help? EvidenceWorld, one cause changed at a time.

    python -m training.experiments.causes --out runs/causes

One encoder, trained with every gate open on the default world, is frozen under everybody. Each condition changes one
setting of the world, of the training labels, or between training and evaluation; `open`, `pair`, `normalized` and
`attention_adapter` are trained on it from the same start with the same budget, five seeds each, at the learning rate
that had the smallest log loss on held-out rows of the default world. Finished conditions are skipped.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.progress import Progress

from warrant_hf.data.candidates import build_candidates, seeded_random, without_evidence
from warrant_hf.data.evidence_world import EvidenceWorld
from warrant_hf.evaluation.metrics import evidence_metrics
from warrant_hf.evaluation.report import write_json, write_text
from warrant_hf.modeling import AutoModelForEvidenceSelection
from warrant_hf.recipes import Recipe, train_rows

from . import statistics
from .cached_states import CachedStates
from .contestants import CONTESTANTS
from .experiment_report import cell, machine, table
from .grid import RECIPES, Lists
from .readout_training import fresh_selector, predict_cached, train_readout

NAMES = ("open", "pair", "normalized", "attention_adapter")
SEEDS = (0, 1, 2, 3, 4)
RATES = (1e-3, 3e-3, 9e-3)
BASE_ROWS, TRAIN_ROWS, TUNE_ROWS, EVAL_ROWS = 400, 300, 100, 200
BASE_CHANGES = {
    "model.variant": "open",
    "data.size": None,
    "data.draws": 2,
    "training.save_strategy": "no",
    "training.disable_tqdm": True,
}
METRICS = {"support_mrr": "MRR", "auprc": "AUPRC", "abstention": "abstention, best score", "ece": "calibration error"}


@dataclass(frozen=True)
class Condition:
    """What differs from the default world.

    Args:
        world: arguments of `EvidenceWorld`, for training and evaluation.
        evaluated: more of them, for evaluation only: a shift.
        noise: share of the training labels that are turned over.
        lists: changes of `Lists`.
    """

    world: dict = field(default_factory=dict)
    evaluated: dict = field(default_factory=dict)
    noise: float = 0.0
    lists: dict = field(default_factory=dict)


# Lists whose evidence goes missing come from the world here, and not from the draws of the training lists.
_WHOLE = {"none_rate": 0.0, "one_rate": 0.0}
CAUSES = {
    "share of questions without all their evidence": {
        f"{rate:.0%}": Condition({"missing_rate": rate}, lists=_WHOLE) for rate in (0.0, 0.25, 0.5, 0.75)
    },
    "golds a question (hops)": {str(hops): Condition({"hops": (hops,)}) for hops in (1, 2, 3)},
    "hard distractors of seven": {str(hard): Condition({"hard": hard}) for hard in (0, 2, 4, 7)},
    "training labels turned over": {f"{noise:.0%}": Condition(noise=noise) for noise in (0.0, 0.1, 0.2, 0.3)},
    "share without evidence at evaluation (25 % in training)": {
        f"{rate:.0%}": Condition({"missing_rate": 0.25}, {"missing_rate": rate}, lists=_WHOLE)
        for rate in (0.0, 0.5, 0.9)
    },
}


class Study:
    def __init__(self, out: Path):
        self.out = out
        folder = out / "base"
        if not (folder / "config.json").is_file():
            recipe = Recipe.from_yaml(RECIPES / "hotpotqa_minilm.yaml", BASE_CHANGES)
            rows = list(EvidenceWorld(seed=1).generate(BASE_ROWS))
            model = train_rows(recipe, rows, output_dir=out / "base_training").model
            model.save_pretrained(folder)
            model.processor.save_pretrained(folder)
        self.base = AutoModelForEvidenceSelection.from_pretrained(folder)

    def data(self, condition: Condition):
        """(cached states, training rows, tuning rows, evaluation lists, the same with their evidence replaced)."""
        world = EvidenceWorld(seed=2, **condition.world)
        train = list(world.generate(TRAIN_ROWS + TUNE_ROWS))
        rows = list(EvidenceWorld(seed=3, **condition.world | condition.evaluated).generate(EVAL_ROWS))
        full = [build_candidates(row, size=None, hard=world.hard, seed="eval") for row in rows]
        emptied = [without_evidence(row, shown, seed="eval") for row, shown in zip(rows, full) if any(row.labels)]
        cached = CachedStates(self.base)
        for listed in (train, full, [row for row in emptied if row is not None]):
            cached.add(listed)
        noisy = [_turned_over(row, condition.noise) for row in train[:TRAIN_ROWS]]
        return cached, noisy, train[TRAIN_ROWS:], full, [row for row in emptied if row is not None]

    def rates(self) -> dict[str, float]:
        path = self.out / "rates.json"
        if not path.is_file():
            cached, train, tune, _, _ = self.data(Condition())
            items, found = Lists(size=None, draws=2).items(train, 100), {}
            for name in NAMES:
                losses = {}
                for rate in RATES:
                    readout = self._trained(name, 100, rate, cached, items)
                    predictions = predict_cached(readout, cached, tune)
                    losses[rate] = evidence_metrics(predictions, bootstrap=0)["nll"]["value"]
                found[name] = min(losses, key=losses.get)
            write_json(path, found)
        return json.loads(path.read_text())

    def run(self, condition: Condition) -> dict[str, list[dict[str, float]]]:
        """Metrics of each contestant and seed."""
        cached, train, _, full, emptied = self.data(condition)
        rates, found = self.rates(), {name: [] for name in NAMES}
        for seed in SEEDS:
            items = Lists(size=None, draws=2, **condition.lists).items(train, seed)
            for name in NAMES:
                readout = self._trained(name, seed, rates[name], cached, items)
                metrics = evidence_metrics(
                    predict_cached(readout, cached, full), absent=predict_cached(readout, cached, emptied), bootstrap=0
                )
                values = {key: metrics[key]["value"] for key in ("support_mrr", "auprc", "ece")}
                values["abstention"] = metrics["abstention_auroc_max_score"]["value"]
                values["permission_auc"] = metrics["permission_auc"]["value"]
                found[name].append(values)
        return found

    def _trained(self, name, seed, rate, cached, items):
        readout = fresh_selector(self.base, CONTESTANTS[name].config, seed).readout
        return train_readout(readout, cached, items, rate=rate, batch_size=16, seed=seed)


def _turned_over(row, share):
    """The row with each label turned over with this probability, by a draw of the row's own."""
    if not share:
        return row
    rng = seeded_random("noise", row.id)
    candidates = [
        c.model_copy(update={"label": 1 - c.label if rng.random() < share else c.label}) for c in row.candidates
    ]
    return row.with_candidates(candidates)


def write_report(out: Path, results: dict) -> None:
    lines = [
        "# When does permission help?",
        "",
        f"Machine and versions: {machine()}. `python -m training.experiments.causes`: EvidenceWorld, {TRAIN_ROWS} "
        f"training and {EVAL_ROWS} evaluation questions a condition, {len(SEEDS)} seeds, frozen encoder.",
        "",
        "Differences `pair` minus the other, means over seeds with Student's 95 % interval; in how many seeds it is "
        "above. Calibration error: lower is better.",
        "",
    ]
    for cause, levels in results.items():
        lines += [f"## {cause[0].upper()}{cause[1:]}", ""]
        rows = []
        for level, found in levels.items():
            own = {metric: np.mean([seed[metric] for seed in found["pair"]]) for metric in METRICS}
            auc = np.mean([seed["permission_auc"] for seed in found["pair"]])
            rows.append([level, "`pair` itself", *(f"{own[metric]:.3f}" for metric in METRICS), f"{auc:.3f}"])
            for name in NAMES:
                if name != "pair":
                    cells = [_difference(found["pair"], found[name], metric) for metric in METRICS]
                    rows.append(["", f"− `{name}`", *cells, ""])
        lines += [*table(("level", "", *METRICS.values(), "permission AUC"), rows), ""]
    write_text(out / "causes.md", "\n".join(lines))
    write_json(out / "causes.json", {"machine": machine(), "results": results})


def _difference(a, b, metric):
    found = statistics.paired_over_seeds([seed[metric] for seed in a], [seed[metric] for seed in b])
    return f"{cell(found)}; {found['up']}/{found['of']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/causes"))
    out = parser.parse_args().out
    study, results = Study(out), {}
    study.rates()
    with Progress() as progress:
        bar = progress.add_task("conditions", total=sum(map(len, CAUSES.values())))
        for number, (cause, levels) in enumerate(CAUSES.items()):
            for level, condition in levels.items():
                path = out / "conditions" / f"{number}-{level.rstrip('%')}.json"
                if not path.is_file():
                    write_json(path, study.run(condition))
                results.setdefault(cause, {})[level] = json.loads(path.read_text())
                progress.advance(bar)
    write_report(out, results)
    return 0


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sys.exit(main())
