"""`warrant-hf evaluate`: score labelled rows with and without their evidence, and write the metrics."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

from .. import __version__
from ..data.candidates import build_candidates, without_evidence
from ..data.readers import read_rows
from ..data.schema import DataError
from ..evaluation.metrics import evidence_metrics
from ..evaluation.predict import predict
from ..evaluation.predictions import count_predictions
from ..evaluation.report import metrics_table_markdown, write_json, write_text
from ..whole_file import check_target
from .loading import load_model
from .terminal import progress


def run(
    *,
    data: Path,
    json_out: Path,
    markdown_out: Path | None,
    model: str | None,
    level: str,
    size: str,
    limit: int | None,
    seed: int,
    batch_size: int,
) -> None:
    if size != "all" and not (size.isdecimal() and int(size) > 0):
        raise ValueError(f"--size is {size!r}; give a number of candidates from 1 up, or all.")
    for out in filter(None, (json_out, markdown_out)):
        check_target(out, create_folder=True)  # known before hours of scoring, not after
    whole = read_rows(data, level=level, limit=limit)
    rows = [build_candidates(row, size=None if size == "all" else int(size), seed=seed) for row in whole]
    times = Counter(row.id for row in rows)
    repeated = [name for name, count in times.items() if count > 1]
    if repeated:
        raise DataError(f"{data}: the id {repeated[0]!r} occurs {times[repeated[0]]} times; make the ids unique.")
    emptied = [without_evidence(full, row, seed=seed) for full, row in zip(whole, rows, strict=True)]
    emptied = [row for row in emptied if row is not None]

    selector = load_model(model)
    with progress() as bar:
        task = bar.add_task("lists", total=len(rows) + len(emptied))
        advance = partial(bar.advance, task)
        predictions = predict(selector, rows, batch_size, advance)
        absent = predict(selector, emptied, batch_size, advance)
    metrics = evidence_metrics(predictions, absent=absent or None, expected_ids=[row.id for row in rows], seed=seed)
    counts = count_predictions(predictions)
    config = {
        "model": model or "default checkpoint",
        "variant": selector.config.variant,
        "permission_supervision": selector.config.permission_supervision,
        "data": data.name,
        "level": level,
        "size": size,
        "limit": limit,
        "seed": seed,
        "batch_size": batch_size,
        "questions": counts["n"],
        "candidates": counts["candidates"],
        "lists_without_evidence": len(absent),
        "warrant_hf": __version__,
    }
    write_json(json_out, {"metrics": metrics, "n": counts["n"], "config": config})
    table = metrics_table_markdown(metrics, f"Evidence selection on {data.name}", config)
    if markdown_out is not None:
        write_text(markdown_out, table)
    print(table, end="")
