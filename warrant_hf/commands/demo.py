"""`warrant-hf demo`: the Space on this machine, or one question's evidence in the terminal."""

from __future__ import annotations

from importlib import import_module

from .loading import load_model
from .terminal import print_evidence


def run(*, text: bool, models: list[str], host: str, port: int | None, browser: bool, mcp: bool) -> None:
    if text:
        from ..space.examples import COMPARISON

        if mcp:
            raise ValueError("--text opens no Space, and so no tools for --mcp; leave one of them out.")
        if len(models) > 1:
            raise ValueError(f"--text takes one --model, and {len(models)} are given; leave the others out.")
        print_evidence(load_model(next(iter(models), None)).rank(*COMPARISON))
        print("\nOpen the Space to close gates and ask questions of your own: warrant-hf demo")
        return
    from ..space.app import launch

    if mcp:
        import_module("mcp")  # not installed? That is to be heard before models are loaded.
    listed = _allow_list(models) if models else load_model(None)
    try:
        launch(listed, host=host, port=port, browser=browser, mcp=mcp)
    except OSError as error:  # of Gradio, which speaks of its own arguments
        wanted = "any port from 7860" if port is None else f"port {port}"
        raise ValueError(f"cannot listen on {host}, {wanted}; give another --port or --host.") from error


def _allow_list(models: list[str]) -> dict[str, object]:
    """Name -> model, every name once."""
    from ..space.selectors import short

    named = {}
    for model in models:
        name = short(model)
        if name in named:
            raise ValueError(
                f"--model {named[name]} and --model {model} would both be called {name}, and visitors choose by that "
                "name; leave one out, or give it from a folder of another name."
            )
        named[name] = model
    return {name: load_model(model) for name, model in named.items()}
