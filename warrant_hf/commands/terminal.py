"""What people see in a terminal: the evidence table and progress on stderr."""

from __future__ import annotations

import unicodedata

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def printable(text: str) -> str:
    """Text on one line that cannot drive the terminal: control characters and bidi overrides become U+FFFD.

    Right-to-left letters, combining marks and emoji joiners stay.
    """
    overrides = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cs") or char in overrides else char
        for char in " ".join(text.split())
    )


def progress() -> Progress:
    """A progress bar on stderr, silent where stderr is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def print_evidence(result: dict) -> None:
    """The result of `rank` as a table. Attention and effective mass share one scale; permission runs from 0 to 1."""
    console = Console()
    evidence = result["evidence"]
    largest = max((item["attention"] for item in evidence if item["attention"] is not None), default=0.0)

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("support", justify="right")
    for name in ("attention", "permission", "effective"):
        table.add_column(name, no_wrap=True)
    table.add_column("passage", overflow="fold")
    for item in evidence:
        table.add_row(
            str(item["index"]),
            f"{item['probability']:.3f}",
            _bar(item["attention"], largest, "blue", console),
            _bar(item["permission"], 1.0, "green", console),
            _bar(item["effective"], largest, "magenta", console),
            _passage(item, 3 * max(console.width - 58, 20)),  # about three lines beside the other columns
        )
    console.print(Text(printable(result["question"]), style="bold"))
    console.print(table)
    mass = "" if result["mass"] is None else f"effective mass {result['mass']:.3f}, "
    console.print(f"{mass}answerability {result['answerability']:.3f}", highlight=False)
    for note in result.get("notes", ()):
        console.print(Text(printable(note), style="yellow"))


def _bar(value: float | None, largest: float, style: str, console: Console) -> Text:
    if value is None:
        return Text("–" if console.encoding.startswith("utf") else "-")
    eighths = round(8 * BAR_WIDTH * min(value / largest, 1.0)) if largest > 0 else 0
    if console.encoding.startswith("utf"):
        bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    else:
        bar = "#" * round(eighths / 8)
    return Text.assemble((bar.ljust(BAR_WIDTH), style), f" {value:.3f}")


def _passage(item: dict, length: int) -> Text:
    title, text = printable(item["title"] or ""), printable(item["text"])
    length = max(length - len(title), 20)
    shown = text if len(text) <= length else text[: length - 1] + "…"
    return Text.assemble(("revoked ", "red") if item["revoked"] else "", (title, "bold"), ": " if title else "", shown)
