"""A grid on its data: the base, the cached states, and one run after the other."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import PartialState
from rich.console import Console
from safetensors.torch import load_file, save_file

from warrant_hf.data.candidates import build_candidates, without_evidence
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.metrics import evidence_metrics
from warrant_hf.evaluation.predict import predict
from warrant_hf.evaluation.report import write_json
from warrant_hf.modeling import AutoModelForEvidenceSelection
from warrant_hf.recipes import train_rows

from .cached_states import CachedStates
from .contestants import CONTESTANTS
from .experiment_report import machine
from .grid import Grid
from .readout_training import fresh_selector, predict_cached, train_readout

EVAL_SEED = "eval"
console = Console(stderr=True)


class Experiment:
    """A grid, its data and its folder.

    Args:
        grid ([`Grid`]): what is run.
        out (`Path`): where; holds `base/`, `tuning/`, `runs/`.
        unfreeze (`bool`): train the encoder with each contestant instead of the readout on cached states.
    """

    def __init__(self, grid: Grid, out: Path, *, unfreeze: bool = False):
        self.grid, self.out, self.unfreeze = grid, out, unfreeze
        self._items: dict[int, list[dict]] = {}
        self._starts = {contestant.starts_from for contestant in CONTESTANTS.values()} - {None}
        rows = read_rows(_needed(grid.train, "train"))
        needed = max(grid.base.rows[1], grid.train_rows[1], grid.tune_rows[1])
        if needed > len(rows):
            raise ValueError(f"train has {len(rows)} rows, but the grid takes {needed}; give more.")
        self.base_rows, self.train_rows, self.tune_rows = (
            rows[slice(*span)] for span in (grid.base.rows, grid.train_rows, grid.tune_rows)
        )
        self.sets = {"eval": read_rows(_needed(grid.eval, "eval"))}
        if grid.transfer is not None:
            self.sets["transfer"] = read_rows(grid.transfer)

    # The base, and what is cached of it.

    def train_base(self):
        """The selector whose encoder all share."""
        folder = self.out / "base"
        if not (folder / "done.json").is_file():
            started = time.perf_counter()
            recipe = self.grid.base.read()
            model = train_rows(recipe, self.base_rows, output_dir=self.out / "base_training").model
            model.save_pretrained(folder)
            model.processor.save_pretrained(folder)
            write_json(folder / "done.json", {"seconds": time.perf_counter() - started, "recipe": recipe.model_dump()})

    @cached_property
    def base(self):
        return AutoModelForEvidenceSelection.from_pretrained(self.out / "base").to(PartialState().device)

    @cached_property
    def cached(self) -> CachedStates:
        cached, path = CachedStates(self.base), self.out / "base" / "states.safetensors"
        if path.is_file():
            cached.load(path)
        full, emptied = zip(*(self.lists(rows) for rows in (*self.sets.values(), self.tune_rows)))
        wanted = [self.train_rows, *full, *emptied]
        done, total = 0, sum(map(len, wanted))
        with console.status("encoding") as status:
            for rows in wanted:

                def advance(count):
                    nonlocal done
                    done += count
                    status.update(f"encoding: {done} of {total} lists")

                cached.add(rows, advance=advance)
        if done:
            cached.save(path)
        return cached

    def items(self, seed: int) -> list[dict]:
        """What a training run of this seed sees; the last are remembered, as the runs of a seed follow each other."""
        if seed not in self._items:
            self._items = {seed: self.grid.lists.items(self.train_rows, seed)}
        return self._items[seed]

    def lists(self, rows):
        """Evaluation lists with their evidence, and with other distractors in its place."""
        settings = {"hard": self.grid.lists.hard, "seed": EVAL_SEED}
        full = [build_candidates(row, size=self.grid.lists.size, **settings) for row in rows]
        emptied = [without_evidence(row, shown, **settings) for row, shown in zip(rows, full)]
        return full, [row for row in emptied if row is not None]

    # Runs.

    def folder(self, name: str, seed: int, rate: float) -> Path:
        stage = "tuning" if seed == self.grid.tuning_seed else "runs"
        return self.out / stage / f"{name}-seed{seed}-rate{rate:g}"

    def rates(self) -> dict[str, float]:
        """The tuned rate of each contestant whose tuning is finished."""
        found = {name: self._best_rate(name) for name in self.names()}
        return {name: rate for name, rate in found.items() if rate is not None}

    def _best_rate(self, name):
        """The rate with the smallest log loss of a candidate on the tuning rows; a run that diverged has none."""
        losses = {}
        for rate in self.grid.rates:
            path = self.folder(name, self.grid.tuning_seed, rate) / "run.json"
            if not path.is_file():
                return None
            losses[rate] = json.loads(path.read_text())["metrics"].get("tune", {}).get("nll", float("inf"))
        return min(losses, key=losses.get)

    def names(self) -> list[str]:
        """Contestants, those that others go on from first; the encoder has to be frozen for those that go on."""
        names = sorted(self.grid.contestants, key=lambda name: CONTESTANTS[name].starts_from is not None)
        return [name for name in names if CONTESTANTS[name].starts_from is None] if self.unfreeze else names

    def stages(self) -> list[list[tuple[str, int, float]]]:
        """Runs (contestant, seed, rate) in four stages; those of a stage do not wait for each other.

        Later stages are known only when the earlier ones are finished, so ask again then.
        """
        rates, tuning = self.rates(), self.grid.tuning_seed
        first = [name for name in self.names() if CONTESTANTS[name].starts_from is None]
        then = [name for name in self.names() if name not in first]
        stages = []
        for names in (first, then):
            stages.append([(name, tuning, rate) for name in names for rate in self.grid.rates])
        for names in (first, then):
            stages.append([(name, seed, rates[name]) for seed in self.grid.seeds for name in names if name in rates])
        return [[job for job in stage if not (self.folder(*job) / "run.json").is_file()] for stage in stages]

    def run_one(self, name: str, seed: int, rate: float) -> None:
        """Trains one contestant and writes what it predicts; nothing is left of a run that was interrupted."""
        started = time.perf_counter()
        folder, tuning = self.folder(name, seed, rate), seed == self.grid.tuning_seed
        sets = {"tune": self.tune_rows} if tuning else self.sets
        train = self._train_whole if self.unfreeze else self._train_on_cached
        try:
            predict_rows, moving, state = train(name, seed, rate)
        except FloatingPointError as error:
            facts = {"contestant": name, "seed": seed, "rate": rate, "failed": str(error)}
            write_json(folder / "run.json", facts | {"metrics": {}})
            return
        seconds, metrics, frames = time.perf_counter() - started, {}, []
        for set_name, rows in sets.items():
            full, emptied = self.lists(rows)
            predictions, absent = predict_rows(full), predict_rows(emptied)
            values = evidence_metrics(predictions, absent=absent, bootstrap=0)
            metrics[set_name] = {metric: value["value"] for metric, value in values.items()}
            for is_emptied, listed in ((False, predictions), (True, absent)):
                frame = pd.DataFrame([asdict(prediction) for prediction in listed])
                frames.append(frame.assign(set=set_name, emptied=is_emptied))
        folder.mkdir(parents=True, exist_ok=True)
        pd.concat(frames, ignore_index=True).to_parquet(folder / "predictions.parquet", index=False)
        if name in self._starts:
            save_file({key: value.contiguous() for key, value in state.items()}, folder / "readout.safetensors")
        result = {"contestant": name, "seed": seed, "rate": rate, "trained_parameters": moving, "seconds": seconds}
        write_json(folder / "run.json", result | {"metrics": metrics, "machine": machine()})

    def _train_on_cached(self, name, seed, rate):
        contestant = CONTESTANTS[name]
        selector = fresh_selector(self.base, self.grid.config | contestant.config, seed)
        readout = selector.readout.to(PartialState().device)
        if contestant.starts_from is not None:
            readout.load_state_dict(self._finished(contestant.starts_from, seed))
        readout = train_readout(
            readout,
            self.cached,
            self.items(seed),
            rate=rate,
            batch_size=self.grid.batch_size,
            seed=seed,
            trains=contestant.trains,
        )
        moving = sum(p.numel() for p in readout.parameters() if p.requires_grad)
        return lambda rows: predict_cached(readout, self.cached, rows), moving, readout.state_dict()

    def _finished(self, name, seed):
        """Weights of a finished readout; while rates are tuned, of the run with the contestant's best rate."""
        rate = self._best_rate(name)
        path = None if rate is None else self.folder(name, seed, rate) / "readout.safetensors"
        if path is None or not path.is_file():
            raise ValueError(f"{name!r} with seed {seed} is not finished, and others go on from it; run it first.")
        return load_file(path)

    def _train_whole(self, name, seed, rate):
        recipe = self.grid.base.read()
        config = recipe.model | self.grid.config | CONTESTANTS[name].config
        lists = self.grid.lists.model_dump()
        data = recipe.data.model_copy(update=lists)
        training = recipe.training | {"learning_rate": rate, "save_strategy": "no", "disable_tqdm": True}
        recipe = recipe.model_copy(update={"model": config, "data": data, "training": training, "seed": seed})
        model = train_rows(recipe, self.train_rows, output_dir=self.folder(name, seed, rate) / "training").model.eval()
        moving = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return lambda rows: predict(model, rows, 16), moving, {}

    # What is finished.

    def results(self) -> list[dict]:
        """`run.json` of every finished run at its contestant's rate."""
        found = []
        for name, rate in self.rates().items():
            for seed in self.grid.seeds:
                path = self.folder(name, seed, rate) / "run.json"
                if path.is_file():
                    found.append(json.loads(path.read_text()))
        return found

    def predictions(self, name: str, seed: int, set_name: str, *, emptied: bool) -> list[dict]:
        """Rows of `predictions.parquet`."""
        frame = pd.read_parquet(self.folder(name, seed, self.rates()[name]) / "predictions.parquet")
        frame = frame[(frame["set"] == set_name) & (frame["emptied"] == emptied)]
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        return [{key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in row.items()} for row in rows]


def _needed(source, name):
    if source is None:
        raise ValueError(f"{name} is not given, and the grid names none; add --{name}.")
    return source
