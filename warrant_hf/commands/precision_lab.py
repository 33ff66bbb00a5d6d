"""`warrant-hf precision-lab`: the synthetic lab of the precision, as two tables, JSON, or a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..evaluation.report import write_json
from ..precision_lab import METHODS, calibration_table, check_plot_name, noise_ratio_table, plot_lab, signature
from ..whole_file import check_target

_SENTENCES = {
    "null": "no gain under equal noise, and harm from a noisy precision",
    "growth": "a gain that grows with the noise ratio",
    "grace": "a gain that shrinks with miscalibration and is not lost at once",
}


def run(*, seed: int, trials: int, plot: Path | None, json_out: Path | None) -> None:
    if plot is not None:
        import matplotlib  # noqa: F401 (absent: known before the work, not after)

        check_plot_name(plot)
    for out in filter(None, (plot, json_out)):
        check_target(out, create_folder=True)
    noise = noise_ratio_table(seed=seed, trials=trials)
    calibration = calibration_table(seed=seed, trials=trials)
    found = signature(noise, calibration)

    console = Console()
    console.print(f"Mean squared error, ± half a 95 % interval; seed {seed}, {trials} trials", highlight=False)
    table = _table("noise ratio", *(name.replace("_", " ") for name in METHODS))
    for row in noise:
        table.add_row(f"{row['noise_ratio']:g}", *(_cell(row[name]) for name in METHODS))
    console.print(table)
    console.print()
    table = _table("error in log-precision", "precision, noise ratio 8")
    for row in calibration:
        table.add_row(f"{row['log_precision_error']:g}", _cell(row["precision"]))
    console.print(table)
    console.print()
    for name, sentence in _SENTENCES.items():
        console.print(f"{'found' if found[name] else 'NOT FOUND'}: {sentence}", highlight=False)
    if json_out is not None:
        settings = {"seed": seed, "trials": trials}
        write_json(json_out, {"noise": noise, "calibration": calibration, "signature": found, "config": settings})
    if plot is not None:
        plot_lab(plot, noise, calibration)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cell(entry: dict[str, float]) -> str:
    return f"{entry['value']:.4f} ±{(entry['high'] - entry['low']) / 2:.4f}"
