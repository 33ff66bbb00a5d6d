"""A server under load: documents a second and waiting times, and whether every request gets its own right answer.

    python training/benchmarks/serving_load.py --data DEV --out training/benchmarks/results/serving
    python training/benchmarks/serving_load.py --data DEV --out runs/serving --part soak --requests 1000

`load` puts the default checkpoint and a pairwise cross-encoder of sentence-transformers on the same encoder (its head
untrained, which does not change its speed) behind the same server code, each in a process of its own, and has 1, 8
and 32 clients send lists of 8 and 40 candidates, each client its next request as soon as it has its answer. Rounds of
the two are interleaved. `encoders` times nothing but the two encoders, on the tokens that they read for one request:
the ratio that would be left if all else were free. `windows` times `rank` for different lengths of the windows that
candidates share, and different sizes of the groups in which windows are read. `soak` sends many requests, one in five
of them bad, and compares each answer with that of `rank` in this process. Clients share the cores with the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
SERVERS = ("selector", "cross_encoder")
ENCODER_LISTS, ENCODER_ROUNDS = 20, 9
WINDOWS, GROUPS = (256, 384, 512), (512, 1024, 2048, 8192)
# What is sent besides good requests: the body, and the status that is its answer.
BAD = (
    (b"{", 400),
    (b'{"query": "a", "texts": ["b", NaN]}', 400),
    (b'{"query": "a", "texts": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", 400),
    (b'{"query": "a", "texts": []}', 422),
    (b'{"query": " ", "texts": ["b"]}', 422),
    (b'{"query": "a", "texts": ["b", 3]}', 422),
    (b'{"query": "a", "texts": ["\\ud800"]}', 422),
    (b'{"query": "a", "texts": ["b"], "top": 1}', 422),
    (b" " * 3_000_000, 413),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("all", "load", "encoders", "windows", "soak"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round, before its last answers")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--candidates", type=int, nargs="+", default=[8, 40])
    parser.add_argument("--requests", type=int, default=5_000, help="of the soak")
    arguments = parser.parse_args()
    if arguments.part in ("all", "load"):
        load(arguments)
    if arguments.part in ("all", "encoders"):
        encoders(arguments)
    if arguments.part in ("all", "windows"):
        windows(arguments)
    if arguments.part in ("all", "soak"):
        soak(arguments)


# The servers.


class CrossEncoderRanker:
    """A cross-encoder with as much of `rank_batch` as the route /rerank needs."""

    def __init__(self):
        from sentence_transformers.cross_encoder import CrossEncoder

        from warrant_hf.modeling.base_weights import find_backbone

        self._model = CrossEncoder(find_backbone(ENCODER), num_labels=1, max_length=512, local_files_only=True)

    @property
    def encoder(self):
        return self._model.model.base_model

    def rank_batch(self, questions, passages, **settings):
        import torch

        pairs = [(question, text) for question, listed in zip(questions, passages) for text in listed]
        # All pairs of a batch in one call, so that the library can put pairs of similar length together.
        logits = self._model.predict(pairs, batch_size=64, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        scores = iter(np.asarray(logits, dtype=float).tolist())
        results = []
        for listed in passages:
            evidence = [
                {"index": at, "text": text, "score": score, "probability": 1 / (1 + np.exp(-score))}
                for (at, text), score in zip(enumerate(listed), scores)
            ]
            results.append({"evidence": sorted(evidence, key=lambda item: -item["score"]), "notes": []})
        return results


def _serve(name, pipe):
    from warrant_hf.commands.loading import load_model
    from warrant_hf.serving import ServingLimits, create_app
    from warrant_hf.serving.server import in_passing, listen, run

    limits = ServingLimits(request_seconds=300)
    with listen("127.0.0.1", 0) as bound:
        ranker = in_passing(CrossEncoderRanker if name == "cross_encoder" else lambda: load_model(None))
        pipe.send(bound.getsockname()[1])
        run(create_app(ranker, name=name, limits=limits), bound, limits)


@contextmanager
def serving(names):
    """Name -> address of a server for each name, in processes of their own."""
    context, processes, urls = multiprocessing.get_context("spawn"), [], {}
    try:
        for name in names:
            here, there = context.Pipe()
            processes.append(context.Process(target=_serve, args=(name, there), daemon=True))
            processes[-1].start()
            there.close()
            urls[name] = f"http://127.0.0.1:{here.recv()}"
        yield urls
    finally:
        for process in processes:
            process.terminate()
            process.join(60)


# What is sent.


def lists(path, size):
    """`(question, texts)` of real questions: the candidates of a row, and those of the next rows up to `size`."""
    from warrant_hf.data.readers import read_rows
    from warrant_hf.modeling.processing_evidence import full_text

    rows = read_rows(path, limit=200)
    texts = [[full_text(candidate.to_dict()) for candidate in row.candidates] for row in rows]
    return [
        (row.question, list(itertools.islice(itertools.chain(*texts[at:], *texts[:at]), size)))
        for at, row in enumerate(rows)
    ]


async def _closed_loop(url, requests, clients, seconds):
    """Waiting times, and the time in all, of clients that send one request after another until `seconds` are over."""
    waits, began, bodies = [], time.perf_counter(), itertools.cycle(requests)
    async with _client(url, clients) as client:

        async def run():
            while time.perf_counter() - began < seconds:
                question, texts = next(bodies)
                sent = time.perf_counter()
                response = await client.post("/rerank", json={"query": question, "texts": texts})
                response.raise_for_status()
                assert len(response.json()) == len(texts)
                waits.append(time.perf_counter() - sent)

        await asyncio.gather(*(run() for _ in range(clients)))
    return waits, time.perf_counter() - began


def _client(url, clients):
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    return httpx.AsyncClient(base_url=url, timeout=600, limits=limits)


def _resident(url):
    """Resident memory of the server's process, MiB."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes ")) / 2**20


# The parts.


def load(arguments):
    from comparison_runs import machine

    from warrant_hf.evaluation.report import write_json, write_text

    cells = list(itertools.product(arguments.candidates, arguments.clients))
    measured = {name: {cell: [] for cell in cells} for name in SERVERS}
    memory = {name: [] for name in SERVERS}
    sent = {size: lists(arguments.data, size) for size in arguments.candidates}
    with serving(SERVERS) as urls:
        for name, url in urls.items():  # warm up
            asyncio.run(_closed_loop(url, sent[arguments.candidates[-1]], 4, 2.0))
        for number in range(arguments.rounds):
            for cell in cells:
                for name in sorted(urls, reverse=number % 2 == 0):
                    size, clients = cell
                    waits, seconds = asyncio.run(_closed_loop(urls[name], sent[size], clients, arguments.seconds))
                    p50, p95 = np.quantile(waits, [0.5, 0.95])
                    figures = {"rate": size * len(waits) / seconds, "p50": p50, "p95": p95, "requests": len(waits)}
                    measured[name][cell].append({key: float(value) for key, value in figures.items()})
                    memory[name].append(_resident(urls[name]))
    columns = ["candidates", "clients", "selector: documents/s", "p50, s", "p95, s", "cross-encoder: documents/s"]
    columns += ["p50, s", "p95, s", "ratio of documents/s, within rounds [least, most]"]
    rows, lines = [], [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for size, clients in cells:
        rounds = {name: measured[name][size, clients] for name in SERVERS}
        ratios = [ours["rate"] / theirs["rate"] for ours, theirs in zip(*rounds.values(), strict=True)]
        medians = {
            name: {key: float(np.median([figures[key] for figures in found])) for key in ("rate", "p50", "p95")}
            for name, found in rounds.items()
        }
        shown = [f"{m['rate']:.0f} | {m['p50']:.3f} | {m['p95']:.3f}" for m in medians.values()]
        spread = f"{np.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        lines.append(f"| {size} | {clients} | {' | '.join(shown)} | {spread} |")
        rows.append({"candidates": size, "clients": clients, "rounds": rounds, "medians": medians, "ratios": ratios})
    flat = {
        name: {"first round": max(found[: len(cells)]), "peak": max(found), "last": found[-1]}
        for name, found in memory.items()
    }
    rounds = f"Medians of {arguments.rounds} interleaved rounds."
    lines += ["", f"{rounds} Resident memory of the servers, taken after each cell:", ""]
    lines += [
        f"* {name}: at most {found['first round']:.0f} MiB in the first round, {found['peak']:.0f} MiB in all, "
        f"{found['last']:.0f} MiB at the end."
        for name, found in flat.items()
    ]
    facts = {"machine": machine(), "rounds": arguments.rounds, "seconds a round": arguments.seconds}
    write_json(arguments.out / "load.json", facts | {"cells": rows, "resident MiB": flat})
    write_text(arguments.out / "load.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def encoders(arguments):
    import torch
    from comparison_runs import machine

    from warrant_hf.commands.loading import load_model
    from warrant_hf.evaluation.report import write_json, write_text

    rankers = {"selector": load_model(None), "cross_encoder": CrossEncoderRanker()}
    parts = {"selector": rankers["selector"].backbone, "cross_encoder": rankers["cross_encoder"].encoder}
    lines = ["| candidates | selector: tokens with padding | s | cross-encoder: tokens with padding | s | ratio |"]
    lines, cells = [*lines, "|---" * 6 + "|"], []
    for size in arguments.candidates:
        sent = lists(arguments.data, size)[:ENCODER_LISTS]
        calls = {name: _calls(rankers[name], parts[name], sent) for name in SERVERS}
        tokens = {name: sum(_tokens(*call) for call in calls[name]) / len(sent) for name in SERVERS}
        seconds = {name: [] for name in SERVERS}
        with torch.no_grad():
            for number in range(-1, ENCODER_ROUNDS):  # the first one warms up
                for name in sorted(SERVERS, reverse=number % 2 == 0):
                    began = time.perf_counter()
                    for given, named in calls[name]:
                        parts[name](*given, **named)
                    if number >= 0:
                        seconds[name].append((time.perf_counter() - began) / len(sent))
        ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
        shown = [f"{tokens[name]:.0f} | {np.median(seconds[name]):.4f}" for name in SERVERS]
        spread = f"{np.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        lines.append(f"| {size} | {' | '.join(shown)} | {spread} |")
        cells.append({"candidates": size, "tokens": tokens, "seconds": seconds, "ratios": ratios})
    lines += ["", f"Mean of {ENCODER_LISTS} requests, median of {ENCODER_ROUNDS} interleaved rounds [least, most]."]
    write_json(arguments.out / "encoders.json", {"machine": machine(), "cells": cells})
    write_text(arguments.out / "encoders.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def windows(arguments):
    from comparison_runs import machine

    from warrant_hf.commands.loading import load_model
    from warrant_hf.evaluation.report import write_json, write_text
    from warrant_hf.modeling import modeling_evidence

    selector = load_model(None)
    used = selector.processor.window_length, modeling_evidence._CPU_TOKENS
    cells = []
    for size in arguments.candidates:
        sent = lists(arguments.data, size)[:ENCODER_LISTS]
        # One list at a time in windows of any length; then many lists at a time, in groups of any size.
        settings = [(length, used[1], 1) for length in WINDOWS] + [(used[0], tokens, len(sent)) for tokens in GROUPS]
        seconds = {setting: [] for setting in settings}
        for number in range(-1, ENCODER_ROUNDS):  # the first one warms up
            for setting in settings[:: 1 if number % 2 else -1]:
                selector.processor.window_length, modeling_evidence._CPU_TOKENS, together = setting
                began = time.perf_counter()
                for at in range(0, len(sent), together):
                    selector.rank_batch(*zip(*sent[at : at + together], strict=True), batch_size=together)
                if number >= 0:
                    seconds[setting].append((time.perf_counter() - began) / len(sent))
        for setting, found in seconds.items():
            selector.processor.window_length = setting[0]
            packed = [selector.processor.encode([question], [texts])[0].input_ids for question, texts in sent]
            figures = {
                "windows": np.mean([len(ids) for ids in packed]),
                "tokens": np.mean([ids.size for ids in packed]),
            }
            figures = {key: float(value) for key, value in figures.items()}
            names = dict(zip(("window", "group", "lists"), setting, strict=True))
            cells.append({"candidates": size, **names, **figures, "seconds": found})
    heads = ["candidates", "tokens in a window, at most", "tokens in a group", "lists at a time", "windows of a list"]
    heads += ["tokens of a list, with padding", "s a list [least, most]"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in cells:
        spread = f"{np.median(cell['seconds']):.4f} [{min(cell['seconds']):.4f}, {max(cell['seconds']):.4f}]"
        named = f"{cell['candidates']} | {cell['window']} | {cell['group']} | {cell['lists']}"
        lines.append(f"| {named} | {cell['windows']:.2f} | {cell['tokens']:.0f} | {spread} |")
    lines += ["", f"{ENCODER_LISTS} lists, median of {ENCODER_ROUNDS} interleaved rounds."]
    write_json(arguments.out / "windows.json", {"machine": machine(), "cells": cells})
    write_text(arguments.out / "windows.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def _calls(ranker, part, sent):
    """What `part` of a ranker is called with while it ranks."""
    calls = []
    hook = part.register_forward_pre_hook(lambda module, *call: calls.append(call), with_kwargs=True)
    for question, texts in sent:
        ranker.rank_batch([question], [texts])
    hook.remove()
    return calls


def _tokens(given, named):
    return int((given[0] if given else named["input_ids"]).numel())


def soak(arguments):
    from comparison_runs import machine

    from warrant_hf.commands.loading import load_model
    from warrant_hf.evaluation.report import write_json, write_text

    good = [(question, texts[: 1 + at % 4]) for at, (question, texts) in enumerate(lists(arguments.data, 4))]
    model = load_model(None)
    expected = [
        {item["index"]: item["probability"] for item in model.rank(question, texts)["evidence"]}
        for question, texts in good
    ]
    counts, memory = Counter(), []

    async def send(client, number):
        at = number % len(good)
        if number % 5 == 4:
            content, status = BAD[number // 5 % len(BAD)]
            response = await client.post("/rerank", content=content, headers={"Content-Type": "application/json"})
            right = response.status_code == status and response.json().keys() == {"error", "error_type"}
        else:
            response = await client.post("/rerank", json={"query": good[at][0], "texts": good[at][1]})
            found = {item["index"]: item["score"] for item in response.json()} if response.is_success else {}
            right = found.keys() == expected[at].keys() and all(
                abs(score - expected[at][index]) <= 1e-5 for index, score in found.items()
            )
        counts[f"status {response.status_code}"] += 1
        counts["right" if right else "wrong"] += 1

    async def run(url):
        numbers = iter(range(arguments.requests))
        async with _client(url, 16) as client:

            async def worker():
                for number in numbers:
                    try:
                        await send(client, number)
                    except httpx.TransportError as error:
                        counts["lost"] += 1
                        counts[type(error).__name__] += 1
                    if number % max(1, arguments.requests // 20) == 0:
                        memory.append(await asyncio.to_thread(_resident, url))

            await asyncio.gather(*(worker() for _ in range(16)))

    with serving(SERVERS[:1]) as urls:
        began = time.perf_counter()
        asyncio.run(run(urls["selector"]))
        seconds = time.perf_counter() - began
    statuses = ", ".join(f"{count:,} × {name[-3:]}" for name, count in sorted(counts.items()) if "status" in name)
    quarter = max(1, len(memory) // 4)
    text = (
        f"{arguments.requests:,} requests of 16 clients in {seconds:.0f} s, one in five bad: "
        f"**{counts['wrong']} wrong, {counts['lost']} lost** ({statuses}). "
        "An answer is right when its probabilities are those of `rank` to 1e-5. Resident memory: at most "
        f"{max(memory[:quarter]):.0f} MiB in the first quarter, {max(memory[-quarter:]):.0f} MiB in the last.\n"
    )
    facts = {"machine": machine(), "requests": arguments.requests, "seconds": seconds}
    write_json(arguments.out / "soak.json", facts | {"counts": counts, "resident MiB": memory})
    write_text(arguments.out / "soak.md", text)
    print(text)


if __name__ == "__main__":
    main()
