"""The Space as a visitor finds it: how soon the page is there, and how long a selection of 8 passages takes.

    python training/benchmarks/space_speed.py --data DEV --out training/benchmarks/results

The page is served on a loopback port by this process, and asked over HTTP as a browser asks: through the event of its
Rank button, which gives everything that the tabs show, tokens included. Each round is another question with 8
passages, so that no result is at hand. First paint counts from the call that starts the server, with the model in
memory: until the page's address answers and, where there are Playwright and a Chromium, until a browser has painted
the first thing, and until the first result stands in the page. Beside it, the same questions by `rank` alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shutil
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from comparison_runs import machine

from warrant_hf.commands.loading import load_model
from warrant_hf.data.candidates import build_candidates
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.report import write_json, write_text
from warrant_hf.space.app import launch

SIZE, WARM_UP = 8, 3
TARGETS = {"the first paint": 2.0, "selection": 0.4}  # seconds; of a selection, the median
# Milliseconds from the call of `goto` to the first contentful paint.
PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
    const found = list.getEntriesByName("first-contentful-paint");
    if (found.length) done(found[0].startTime);
}).observe({type: "paint", buffered: true}))"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="rows of HotpotQA with all their passages")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="folder or Hub id; without it, the default checkpoint")
    parser.add_argument("--rounds", type=int, default=40, help="selections that are timed")
    arguments = parser.parse_args()
    asked = questions(arguments.data, WARM_UP + arguments.rounds)
    model = load_model(arguments.model)
    with chromium() as page:
        began = time.perf_counter()
        blocks = launch(model, host="127.0.0.1", block=False)
        httpx.get(blocks.local_url).raise_for_status()
        seconds = {"the page answers": time.perf_counter() - began, "the first paint": None, "the first card": None}
        if page is not None:
            asked_at = time.perf_counter() - began
            page.goto(blocks.local_url)
            seconds["the first paint"] = asked_at + page.evaluate(PAINTED) / 1000
            page.locator(".eg-card").first.wait_for(timeout=120_000)
            seconds["the first card"] = time.perf_counter() - began
    with httpx.Client(base_url=blocks.local_url, timeout=120) as client:
        ask = rank_button(client, Path(model.name_or_path).name)
        through_page = [timed(ask, *question) for question in asked]
    alone = [timed(lambda *given: model.rank(*given, return_tokens=True), *question) for question in asked]
    blocks.close()
    report = {
        "machine": machine() | {"gradio": importlib.metadata.version("gradio")},
        "passages": SIZE,
        "n": arguments.rounds,
        "first paint": seconds,
        "selection": spread(through_page),
        "rank alone": spread(alone),
    }
    write_json(arguments.out / "space_speed.json", report)
    text = markdown(report)
    write_text(arguments.out / "space_speed.md", text)
    print(text)


def questions(path, count) -> list[tuple[str, list[dict]]]:
    """Different questions, each with 8 passages of its own row."""
    rows = {row.question: row for row in read_rows(path, level="passage")}
    rows = [row for row in rows.values() if len(row.candidates) >= SIZE]
    if len(rows) < count:
        raise SystemExit(f"{path} has {len(rows)} questions with {SIZE} passages; {count} are needed: lower --rounds.")
    built = (build_candidates(row, size=SIZE, seed="eval") for row in rows[:count])
    return [(row.question, [{"title": c.title or "", "text": c.text} for c in row.candidates]) for row in built]


@contextmanager
def chromium():
    """A blank page of a browser that has started, or `None`."""
    if importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
        path = next(filter(None, [*found, playwright.chromium.executable_path]))
        if not Path(path).exists():
            yield None
            return
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def rank_button(client, model):
    """`ask(question, passages)` as the page does it: join the queue, then listen until the event is over."""
    config = client.get("config").raise_for_status().json()
    (button,) = [c["id"] for c in config["components"] if c["type"] == "button" and c["props"]["value"] == "Rank"]
    (event,) = [d["id"] for d in config["dependencies"] if [button, "click"] in d["targets"]]

    session = uuid.uuid4().hex  # one for all, as a page has

    def ask(question, passages):
        rows = [[passage["title"], passage["text"]] for passage in passages]
        table = {"headers": ["title", "text"], "data": rows, "metadata": None}
        body = {"data": [model, question, table], "fn_index": event, "trigger_id": button, "session_hash": session}
        client.post("gradio_api/queue/join", json=body).raise_for_status()
        output = None
        with client.stream("GET", "gradio_api/queue/data", params={"session_hash": session}) as stream:
            for line in stream.iter_lines():
                message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("msg") == "process_completed":
                    output = message["output"]
        if output is None or "data" not in output:
            raise RuntimeError(f"The page gave no result: {output}.")

    return ask


def timed(work, *values) -> float:
    began = time.perf_counter()
    work(*values)
    return time.perf_counter() - began


def spread(seconds) -> dict:
    """Median and 95th percentile, without the first rounds, which warm up."""
    kept = np.array(seconds[WARM_UP:])
    return {"median": float(np.median(kept)), "p95": float(np.quantile(kept, 0.95))}


def markdown(report) -> str:
    first, selection = report["first paint"], report["selection"]
    lines = ["| | seconds | target |", "|---|---:|---:|"]
    for name, value in first.items():
        target = f"< {TARGETS[name]:g}" if name in TARGETS else ""
        lines.append(f"| from start until {name} | {'–' if value is None else f'{value:.2f}'} | {target} |")
    lines += [
        f"| selection of {SIZE} passages, median | {selection['median']:.3f} | < {TARGETS['selection']:g} |",
        f"| selection of {SIZE} passages, 95th percentile | {selection['p95']:.3f} | |",
        f"| of which `rank` with tokens, median | {report['rank alone']['median']:.3f} | |",
    ]
    about = report["machine"]
    return "\n".join(lines) + (
        f"\n\n{report['n']} different questions; {about['cpu']}, {about['threads']} threads, torch {about['torch']}, "
        f"gradio {about['gradio']}.\n"
    )


if __name__ == "__main__":
    main()
