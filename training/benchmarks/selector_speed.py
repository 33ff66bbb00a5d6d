"""Questions a second: a selector against a pairwise cross-encoder on the same encoder, in one process, interleaved.

    python training/benchmarks/selector_speed.py --data DEV --selector DIR --cross-encoder DIR --out runs/speed

Both score the same 8-candidate lists in fp32 on one thread, at batch sizes of 1 and 16 questions. A round times one
chunk of questions with each; the ratio is taken within a round. Peak memory is that of a process
in which each loads and scores alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np

ROUNDS, CHUNK = 11, 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--selector", required=True)
    parser.add_argument("--cross-encoder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    from comparison_runs import machine

    from warrant_hf.evaluation.report import write_json, write_text

    lists = _lists(arguments.data)
    scorers = {"selector": _selector(arguments.selector), "cross_encoder": _peer(arguments.cross_encoder)}
    lines = [
        "| questions a batch | selector, questions/s | cross-encoder, questions/s | ratio [quartiles] |",
        "|---|---|---|---|",
    ]
    results = {"machine": machine(), "rounds": ROUNDS, "questions a round": CHUNK, "batches": {}}
    for batch in (1, 16):
        seconds = {name: [] for name in scorers}
        for number in range(-1, ROUNDS):  # round -1 warms up
            start = (number * CHUNK) % (len(lists) - CHUNK)
            for name in sorted(scorers, reverse=number % 2 == 0):
                began = time.perf_counter()
                for at in range(start, start + CHUNK, batch):
                    scorers[name](lists[at : at + batch])
                if number >= 0:
                    seconds[name].append(time.perf_counter() - began)
        rates = {name: CHUNK / np.array(values) for name, values in seconds.items()}
        ratio = np.quantile(rates["selector"] / rates["cross_encoder"], [0.25, 0.5, 0.75])
        medians = {name: float(np.median(values)) for name, values in rates.items()}
        results["batches"][batch] = medians | {"ratio": ratio.tolist()}
        lines.append(
            f"| {batch} | {medians['selector']:.1f} | {medians['cross_encoder']:.1f} | "
            f"{ratio[1]:.2f} [{ratio[0]:.2f}, {ratio[2]:.2f}] |"
        )
    for name, target in (("selector", arguments.selector), ("cross_encoder", arguments.cross_encoder)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results[f"{name} peak MiB"] = pool.apply(_peak, (name, target, arguments.data))
    peaks = [results[f"{name} peak MiB"] for name in ("selector", "cross_encoder")]
    lines += [
        "",
        f"Peak memory of a process that loads and scores, batches of 16: {peaks[0]:.0f} and {peaks[1]:.0f} MiB.",
    ]
    write_json(arguments.out / "speed.json", results)
    write_text(arguments.out / "speed.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def _lists(path):
    from warrant_hf.data.candidates import build_candidates
    from warrant_hf.data.readers import read_rows

    return [build_candidates(row, size=8, seed="eval") for row in read_rows(path)]


def _selector(target):
    import torch

    from warrant_hf.commands.loading import load_model
    from warrant_hf.evaluation.predict import predict

    torch.set_num_threads(1)
    model = load_model(None if target == "default" else target)
    return lambda rows: predict(model, rows, len(rows))


def _peer(target):
    import torch
    from cross_encoder_peer import predict_peer
    from sentence_transformers.cross_encoder import CrossEncoder

    torch.set_num_threads(1)
    model = CrossEncoder(target, max_length=512, local_files_only=True)
    return lambda rows: predict_peer(model, rows)


def _peak(name, target, data):
    score = {"selector": _selector, "cross_encoder": _peer}[name](target)
    lists = _lists(data)[:CHUNK]
    for at in range(0, CHUNK, 16):
        score(lists[at : at + 16])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
