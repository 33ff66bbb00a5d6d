"""What the comparisons share: learning rates tuned on one grid, runs as processes side by side, their folders."""

from __future__ import annotations

import gzip
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

TUNING_SEED = 100


def folder_of(out: Path, contestant: str, seed: int, rate: float) -> Path:
    return out / f"{contestant}-seed{seed}-rate{rate:g}"


def read_rates(out: Path) -> dict[str, float]:
    path = out / "learning_rates.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def tune(script: str, arguments, contestants, grid, data_files) -> None:
    """Trains each contestant once per rate and records the one with the best MRR on the held-out rows."""
    launch(script, arguments, [(name, TUNING_SEED, rate) for name in contestants for rate in grid], data_files, True)
    rates = {}
    for name in contestants:
        scores = {rate: _mrr(folder_of(arguments.out, name, TUNING_SEED, rate)) for rate in grid}
        rates[name] = max(scores, key=scores.get)
        print(name, {f"{rate:g}": round(score, 4) for rate, score in scores.items()}, "->", rates[name])
    known = read_rates(arguments.out)
    (arguments.out / "learning_rates.json").write_text(json.dumps(known | rates, indent=2) + "\n")


def run(script: str, arguments, contestants, data_files) -> None:
    """Trains contestants x seeds at their rates; what is finished is skipped."""
    rates = read_rates(arguments.out)
    missing = [name for name in contestants if name not in rates]
    if missing:
        sys.exit(f"learning_rates.json has no rate for {missing[0]}; run tune first.")
    jobs = [(name, seed, rates[name]) for seed in arguments.seeds for name in contestants]
    launch(script, arguments, jobs, data_files, False)


def launch(script: str, arguments, jobs, data_files: dict[str, Path | None], tuning: bool) -> None:
    """Each run is a process of its own, `script one ...`: one thread each, and nothing of one leaks into another."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

    def start(job):
        name, seed, rate = job
        folder = folder_of(arguments.out, name, seed, rate)
        if (folder / "run.json").is_file():
            return
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, script, "one", "--out", str(arguments.out)]
        command += ["--variants", name, "--seeds", str(seed), "--rate", repr(rate)]
        for option, path in data_files.items():
            if path is not None:
                command += [f"--{option}", str(path)]
        with open(folder / "log.txt", "w") as log:
            done = subprocess.run(command + ["--tuning"] * tuning, env=environment, stdout=log, stderr=log)
        state = "done" if done.returncode == 0 else "FAILED, see log.txt"
        print(f"{name} seed {seed} rate {rate:g}: {state}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(start, jobs))


def finished_runs(out: Path, contestants, seeds) -> dict[str, list[Path]]:
    """Folders of the finished runs at the tuned rates, by contestant."""
    rates, runs = read_rates(out), {}
    for name in contestants:
        folders = [folder_of(out, name, seed, rates[name]) for seed in seeds if name in rates]
        done = [folder for folder in folders if (folder / "run.json").is_file()]
        if done:
            runs[name] = done
    return runs


def write_predictions(path: Path, predictions) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for prediction in predictions:
            file.write(json.dumps(asdict(prediction)) + "\n")


def machine() -> dict:
    import torch
    import transformers

    name = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"cpu": name, "threads": torch.get_num_threads()} | versions


def _mrr(folder: Path) -> float:
    from comparison_report import read_predictions

    from warrant_hf.evaluation.metrics import evidence_metrics

    if not (folder / "run.json").is_file():
        return float("-inf")
    return evidence_metrics(read_predictions(folder, "eval"), bootstrap=0)["support_mrr"]["value"]
