"""What the three readers cost: time and peak memory of one request against its length.

    python training/convert_bert.py sentence-transformers/all-MiniLM-L6-v2 MODELS/minilm-fid --to encoder-decoder
    python training/convert_bert.py sentence-transformers/all-MiniLM-L6-v2 MODELS/minilm-led --to led
    python training/benchmarks/reader_costs.py --models MODELS --out training/benchmarks/results/reader_costs

One question with 5 to 200 passages of 120 tokens (common words; what they say does not matter to the cost), and
for the long-input reader up to its 16k tokens. Each case runs in a process of its own (a fork, on Linux), so that its
peak of resident memory is its own; the readers take turns in each round, and the median over rounds is reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from comparison_runs import machine

from warrant_hf import AutoModelForEvidenceSelection

READERS = {"encoder": "sentence-transformers/all-MiniLM-L6-v2", "fid": "minilm-fid", "led": "minilm-led"}
PASSAGES = (5, 10, 20, 50, 100, 200)
TOKENS = 120
LONGEST = 16384
WORDS = "time year people way day man thing woman life child world school state family student group country".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with minilm-fid and minilm-led")
    parser.add_argument("--out", type=Path, help="without .json and .md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passages", type=int, nargs="+", default=PASSAGES)
    _all(parser.parse_args())


def _measure(arguments, reader, count):
    torch.set_num_threads(arguments.threads)
    name = READERS[reader]
    folder = arguments.models / name
    model = AutoModelForEvidenceSelection.from_backbone(str(folder) if folder.is_dir() else name).eval()
    question = "Which of these people was in the school of that country?"
    text = [" ".join(WORDS[(at + word) % len(WORDS)] for word in range(TOKENS - 1)) for at in range(count)]
    model.rank(question, text[:2])  # what is set up once
    before = _peak()
    started = time.perf_counter()
    result = model.rank(question, text)
    seconds = time.perf_counter() - started
    encoded = model.processor.encode([question], [text])[0]
    assert len(result["evidence"]) == count
    return {
        "reader": reader,
        "passages": count,
        "windows": len(encoded.input_ids),
        "tokens": int((encoded.segment_ids >= 0).sum()),
        "seconds": seconds,
        "peak_gib": _peak(),
        "before_gib": before,
    }


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB


def _all(arguments):
    cases, longest = {}, (LONGEST - 64) // TOKENS
    jobs = [(reader, count) for count in arguments.passages for reader in READERS]
    if tuple(arguments.passages) == PASSAGES:
        jobs.append(("led", longest))
    for turn in range(arguments.rounds):
        for reader, count in jobs:
            # This process never computes, so that the threads of a fork start fresh.
            with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
                case = pool.submit(_measure, arguments, reader, count).result()
            cases.setdefault((reader, count), []).append(case)
            print(f"round {turn + 1}: {case}", flush=True)
    rows = []
    for listed in cases.values():
        seconds = sorted(case["seconds"] for case in listed)
        row = {key: listed[0][key] for key in ("reader", "passages", "windows", "tokens")}
        row |= {"seconds": statistics.median(seconds), "fastest": seconds[0], "slowest": seconds[-1]}
        rows.append(row | {"peak_gib": max(case["peak_gib"] for case in listed)})
    facts = {"machine": machine() | {"threads": arguments.threads}, "rounds": arguments.rounds, "rows": rows}
    lines = [
        "# Cost of one request, by reader",
        "",
        f"MiniLM-L6, fp32, passages of {TOKENS} tokens, median of {arguments.rounds} rounds (fastest, slowest).",
        f"Machine: {json.dumps(facts['machine'])}. The command stands at the head of `reader_costs.py`.",
        "",
        "| passages | reader | windows | tokens | seconds | peak resident memory, GiB |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        spread = f"{row['seconds']:.2f} ({row['fastest']:.2f}, {row['slowest']:.2f})"
        cells = [
            row["passages"],
            row["reader"],
            row["windows"],
            f"{row['tokens']:,}",
            spread,
            f"{row['peak_gib']:.2f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    print("\n".join(lines))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{arguments.out}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        Path(f"{arguments.out}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
