"""The claims about permission, run again so that they could fail: a grid of contestants on one frozen encoder.

    python -m training.experiments.run --grid smoke
    python -m training.experiments.run --grid hotpotqa --train TRAIN --eval DEV --transfer 2WIKI
    accelerate launch --num_processes 2 --cpu -m training.experiments.run --grid hotpotqa ...    # runs side by side

Trains the base, tunes each contestant's learning rate, trains contestants x seeds, writes `results.parquet`,
`report.md`, `report.json` and a figure to `--out`. What is finished is skipped, so an interrupted call goes on. Each
process takes its share of the runs, on its own device. `--unfreeze` trains the encoder with every contestant.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch
import transformers
from accelerate import PartialState
from rich.console import Console
from rich.progress import Progress

from .experiment import Experiment
from .grid import Grid

console = Console(stderr=True)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", required=True, help="a name in training/experiments/grids, or a YAML file")
    parser.add_argument("--out", type=Path, help="folder of the results; runs/<grid> when not given")
    for name in ("train", "eval", "transfer"):
        parser.add_argument(f"--{name}", help="data, instead of the grid's")
    parser.add_argument("--unfreeze", action="store_true", help="train the encoder with every contestant")
    parser.add_argument("--report-only", action="store_true", help="write the report of what is finished")
    given = parser.parse_args(arguments)
    try:
        grid = Grid.read(given.grid)
        grid = grid.model_copy(
            update={name: getattr(given, name) for name in ("train", "eval", "transfer") if getattr(given, name)}
        )
        experiment = Experiment(grid, given.out or Path("runs") / Path(given.grid).stem, unfreeze=given.unfreeze)
        run(experiment, train=not given.report_only)
    except (ValueError, OSError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        return 2
    return 0


def run(experiment: Experiment, *, train: bool = True) -> None:
    """Everything that is not finished, then the report, in the first process."""
    from .permission_report import write_report

    state = PartialState()
    if train:
        torch.set_num_threads(max(1, torch.get_num_threads() // state.num_processes))
        if not experiment.unfreeze:
            with state.main_process_first():
                experiment.train_base()
                experiment.cached  # noqa: B018 - the first process encodes, the others read its file
        for number in range(4):
            jobs = experiment.stages()[number]
            state.wait_for_everyone()  # all have seen the same runs missing
            with state.split_between_processes(jobs) as mine:
                _run_all(experiment, mine, number, quiet=not state.is_main_process)
            state.wait_for_everyone()
    if state.is_main_process:
        write_report(experiment)
    state.wait_for_everyone()


def _run_all(experiment, jobs, stage, quiet):
    title = ("learning rates", "learning rates of those that go on", "runs", "runs that go on")[stage]
    with Progress(console=console, disable=quiet or not jobs) as progress:
        bar = progress.add_task(title, total=len(jobs))
        for name, seed, rate in jobs:
            progress.update(bar, description=f"{title}: {name}")
            experiment.run_one(name, seed, rate)
            progress.advance(bar)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    sys.exit(main())
