"""The command line: names, options and exit codes. What a command does is in `warrant_hf.commands`.

This module stands outside the package because `import warrant_hf` registers our classes with transformers and so pays
for torch (seconds). Here nothing heavy is imported before a command really runs: `warrant-hf --help` and a mistyped
option answer at once.

Exit codes: 0 done; 2 the input or an option is wrong (one sentence on stderr); 3 a replay found differences; 1 an
unexpected error; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.core import TyperGroup

# Modules that not every installation has -> the extra that brings them.
_EXTRAS = {
    "gradio": "space",
    "mcp": "mcp",
    "yaml": "train",
    "datasets": "train",
    "pyarrow": "train",
    "matplotlib": "experiments",
    "scipy": "experiments",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}


class _Group(TyperGroup):
    """Turns what a command raises into one sentence and an exit code, unless --debug asks for the traceback."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except Exception as error:
            belongs_to_typer = hasattr(error, "exit_code") or isinstance(error, typer.Abort)
            if belongs_to_typer or ctx.params.get("debug"):
                raise
            sentence = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, BrokenPipeError):
                # The reader (`| head`) has left. Python would complain once more when it flushes stdout at exit.
                sys.stdout = None
                raise typer.Exit(1) from None
            absent = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
            if absent in _EXTRAS:
                sentence = f"{absent} is not installed; run: pip install 'warrant-hf[{_EXTRAS[absent]}]'"
                typer.echo(f"Error: {sentence}", err=True)
                raise typer.Exit(2) from None
            if isinstance(error, OSError) and error.strerror and error.filename:
                sentence = f"{error.filename} cannot be used ({error.strerror}); check the path and its permissions."
            if isinstance(error, (ValueError, OSError)):
                typer.echo(f"Error: {sentence}", err=True)
                raise typer.Exit(2) from None
            name = type(error).__name__
            typer.echo(f"Unexpected {name}: {sentence} (warrant-hf --debug … shows the traceback)", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which passages support an answer: how strongly each was read, and how strongly it may count.",
)


Model = Annotated[
    str | None,
    typer.Option(
        help="Folder or Hub id of an evidence selector; without it, the checkpoint that ships with warrant-hf."
    ),
]
Rows = Annotated[
    Path, typer.Option(metavar="FILE", help="Labelled rows: our JSONL, HotpotQA, 2Wiki, MuSiQue, world:N.")
]
Level = Annotated[Literal["sentence", "passage"], typer.Option(help="Unit of evidence in the multi-hop formats.")]
Size = Annotated[str, typer.Option(metavar="N|all", help="Candidates a question.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Read the first N rows only.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Questions scored together.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"warrant-hf {version('warrant-hf')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def select(
    question: Annotated[str | None, typer.Option("--question", "-q", help="The question.")] = None,
    passage: Annotated[
        list[str] | None,
        typer.Option("--passage", "-p", help="One or more passages; the option can be repeated."),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PASSAGE]...", help="Further passages.", show_default=False),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Passages from a file: text (one a line), .json or .jsonl."),
    ] = None,
    jsonl: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="IN OUT", help="Score the rows of a JSONL file (plain or .gz) into another one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line a question.")] = False,
    revoke: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Revoke this passage (counted from 0); the option can be repeated."),
    ] = None,
    revoke_by: Annotated[
        Literal["gate", "mask"],
        typer.Option(help="gate: it is read but may not count. mask: as if it were left out."),
    ] = "gate",
    top_k: Annotated[int | None, typer.Option(min=1, help="Print the best K only.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append a record for each passage to this ledger (JSON lines)."),
    ] = None,
    model: Model = None,
    batch_size: BatchSize = 8,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="With --jsonl: keep finished parts in OUT.parts, and go on from those there."),
    ] = False,
) -> None:
    """Rank passages by the support they give: attention, permission and effective mass of each.

    Without --question or --jsonl, rows {"question": …, "candidates": […]} are read from standard input.
    """
    from warrant_hf.commands.select import run

    run(
        question=question,
        passages=[*(passage or []), *(more or [])],
        passages_file=passages,
        jsonl=jsonl,
        as_json=as_json,
        revoke=revoke or [],
        revoke_by=revoke_by,
        top_k=top_k,
        ledger=ledger,
        model=model,
        batch_size=batch_size,
        resume=resume,
    )


@app.command()
def train(
    config: Annotated[Path, typer.Option(metavar="YAML", help="The recipe.")],
    train: Annotated[
        Path, typer.Option(metavar="FILE", help="Labelled rows to train on; world:N for N generated questions.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the checkpoints and the trained model; without it, runs/<name of the recipe>.",
            show_default=False,
        ),
    ] = None,
    eval: Annotated[Path | None, typer.Option(metavar="FILE", help="Rows to measure on.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Overrides the recipe's seed.")] = None,
    bf16: Annotated[
        bool | None,
        typer.Option("--bf16/--fp32", help="Overrides the recipe's precision.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any field of the recipe; repeatable."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in DIR.")] = False,
) -> None:
    """Fine-tune an evidence selector by a recipe."""
    from warrant_hf.commands.train import run

    run(
        config=config,
        train_file=train,
        eval_file=eval,
        output=output or Path("runs") / config.stem,
        seed=seed,
        bf16=bf16,
        overrides=set_ or [],
        resume=resume,
    )


@app.command()
def evaluate(
    data: Rows,
    json: Annotated[Path, typer.Option(metavar="OUT", help="Where the metrics go, as JSON.")],
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Where the metrics go as a Markdown table."),
    ] = None,
    model: Model = None,
    level: Level = "sentence",
    size: Size = "8",
    limit: Limit = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of candidate lists and bootstrap.")] = 0,
    batch_size: BatchSize = 8,
) -> None:
    """Measure an evidence selector on labelled rows, with an interval for each metric."""
    from warrant_hf.commands.evaluate import run

    run(
        data=data,
        json_out=json,
        markdown_out=markdown,
        model=model,
        level=level,
        size=size,
        limit=limit,
        seed=seed,
        batch_size=batch_size,
    )


@app.command()
def calibrate(
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Labelled rows that the selector was not trained on, in any format.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New folder for the calibrated selector; without it, a report.")
    ] = None,
    model: Model = None,
    level: Level = "sentence",
    size: Annotated[int, typer.Option(min=1, help="Candidates a question.")] = 8,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of candidate lists and intervals.")] = 0,
    batch_size: BatchSize = 8,
) -> None:
    """Make the answerability a probability: fit its two numbers on lists with and without their evidence."""
    from warrant_hf.commands.calibrate import run

    run(
        data=data,
        output=output,
        model=model,
        level=level,
        size=size,
        limit=limit,
        seed=seed,
        batch_size=batch_size,
    )


@app.command()
def diagnose(
    data: Rows,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for diagnosis.json, diagnosis.md and heatmap.png.")],
    model: Model = None,
    utility: Annotated[
        Literal["gold_log_probability", "negative_loss", "listwise", "answerability"],
        typer.Option(help="What a passage is worth is measured in this."),
    ] = "negative_loss",
    top_k: Annotated[int, typer.Option(min=1, max=12, help="Shapley values of the K most attended passages.")] = 8,
    level: Level = "sentence",
    size: Size = "8",
    limit: Limit = None,
    cases: Annotated[int, typer.Option(min=1, max=100, help="Questions in the heatmap, drawn at random.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of candidate lists, draws and intervals.")] = 0,
    batch_size: BatchSize = 8,
) -> None:
    """Take a selector's decisions apart: what each passage is worth, and what its permission does.

    Shapley values, zeroed evidence, deletion and insertion, means by kind, heatmaps; each with an interval.
    """
    from warrant_hf.commands.diagnose import run

    run(
        data=data,
        out=out,
        model=model,
        utility=utility,
        top_k=top_k,
        level=level,
        size=size,
        limit=limit,
        cases=cases,
        seed=seed,
        batch_size=batch_size,
    )


@app.command()
def push(
    model: Annotated[str, typer.Argument(help="Folder of an evidence selector.")],
    repository: Annotated[str, typer.Argument(help="Where to: NAME or ORGANISATION/NAME on the Hub.")],
    private: Annotated[bool | None, typer.Option("--private/--public", help="Of a new repository.")] = None,
    code: Annotated[
        bool, typer.Option(help="Upload the modeling code too, for those who do not have this package.")
    ] = True,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
) -> None:
    """Upload a selector to the Hub, with its processor and its card.

    The token is that of `hf auth login` or of the environment variable HF_TOKEN.
    """
    from warrant_hf.commands.push import run

    run(model=model, repository=repository, private=private, with_code=code, message=message)


@app.command("precision-lab")
def precision_lab(
    seed: Annotated[int, typer.Option(min=0, help="Seed; 203 gives the paper's tables.")] = 203,
    trials: Annotated[int, typer.Option(min=2, max=1_000_000, help="Trials a condition.")] = 40_000,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw both tables, as an SVG file; needs matplotlib.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the tables go, as JSON.")] = None,
) -> None:
    """Attention with and without precision, where sources differ in noise and where they do not."""
    from warrant_hf.commands.precision_lab import run

    run(seed=seed, trials=trials, plot=plot, json_out=json)


@app.command()
def demo(
    text: Annotated[bool, typer.Option("--text", help="Print a built-in question's evidence and exit.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder or Hub id of an evidence selector; without it, the checkpoint that ships with warrant-hf. "
            "The option can be repeated: visitors choose among the models."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; without it, the first free one from 7860.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Offer the endpoints as tools of the Model Context Protocol too.")
    ] = False,
) -> None:
    """Open the Space: ask, look at attention and permission, close gates."""
    from warrant_hf.commands.demo import run

    run(text=text, models=model or [], host=host, port=port, browser=browser, mcp=mcp)


@app.command()
def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="WARRANT_HF_API_KEY",
            show_envvar=True,
            help="Bearer token that every request must bring; better set as the environment variable, which the list "
            "of processes does not show.",
        ),
    ] = None,
    max_candidates: Annotated[int, typer.Option(min=1, help="Candidates a request.")] = 1_000,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a request's texts.")] = 400_000,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 2 * 1024 * 1024,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that wait; the next one gets status 429.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up.")] = 60.0,
    batch_candidates: Annotated[int, typer.Option(min=1, help="Candidates read together.")] = 128,
    batch_wait_ms: Annotated[
        float, typer.Option(min=0.001, help="Milliseconds that a request waits for others to be read with it.")
    ] = 2.0,
) -> None:
    """Serve a selector over HTTP: /rerank (text-embeddings-inference), /v1/rerank, /v2/rerank (Cohere, Jina), /select.

    There is no authentication unless --api-key is given, and no encryption: before you listen on another address than
    127.0.0.1, set a key, and put a proxy with TLS in front.
    """
    from warrant_hf.commands.serve import run

    run(
        model=model,
        host=host,
        port=port,
        api_key=api_key,
        max_candidates=max_candidates,
        max_characters=max_characters,
        max_body_bytes=max_body_bytes,
        max_waiting=max_waiting,
        request_seconds=timeout,
        batch_candidates=batch_candidates,
        batch_wait_ms=batch_wait_ms,
    )


@app.command("export")
def export_model(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for model.onnx, processor, config and README.md.")],
    model: Model = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write model_int8.onnx, with weights of 8 bits.")] = False,
) -> None:
    """Write an encoder selector as ONNX; its scores are compared with the selector's before anything is kept."""
    from warrant_hf.commands.export import run

    run(out=out, model=model, int8=int8)


@app.command()
def env() -> None:
    """Versions of what matters, for a bug report."""
    from warrant_hf.commands.env import run

    run()


ledger_app = typer.Typer(
    no_args_is_help=True, help="Read the ledger that `select --ledger` writes: what stood behind each score."
)
app.add_typer(ledger_app, name="ledger")

LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="A ledger: JSON lines, or Parquet.")]


@ledger_app.command()
def replay(
    file: LedgerFile,
    texts: Annotated[
        Path | None,
        typer.Option(metavar="ROWS", help="Score again what is found in this file of rows, by digests of the texts."),
    ] = None,
    model: Model = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest difference that is none; without it, 1e-5 in the ledger, 1e-3 against the model.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Differences to print.")] = 20,
    batch_size: BatchSize = 8,
) -> None:
    """Compute again what follows from the records, and with --texts what the model gives.

    Exit code 3 when a record differs.
    """
    from warrant_hf.commands.ledger import replay_file

    if not replay_file(file, texts=texts, model=model, tolerance=tolerance, limit=limit, batch_size=batch_size):
        raise typer.Exit(3)


@ledger_app.command()
def export(
    file: LedgerFile,
    to: Annotated[Path, typer.Option(metavar="OUT", help="The Parquet file.")],
) -> None:
    """Write a ledger as Parquet."""
    from warrant_hf.commands.ledger import export_file

    export_file(file, to)


@ledger_app.command()
def show(
    file: LedgerFile,
    decision: Annotated[
        str | None, typer.Option(metavar="ID", help="This decision only; its first digits do.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The last N decisions.")] = 5,
) -> None:
    """Print decisions with their records."""
    from warrant_hf.commands.ledger import show_file

    show_file(file, decision=decision, limit=limit)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
