"""`warrant-hf demo`: the Space on this machine, or one question's evidence in the terminal."""

from __future__ import annotations

from .loading import load_model
from .terminal import print_evidence


def run(*, text: bool, model: str | None, host: str, port: int | None, browser: bool) -> None:
    if text:
        from ..space.examples import COMPARISON

        print_evidence(load_model(model).rank(*COMPARISON))
        print("\nOpen the Space to close gates and ask questions of your own: warrant-hf demo")
        return
    try:
        from ..space.app import launch
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ValueError("gradio is not installed; run: pip install 'warrant-hf[space]'") from None
    launch(load_model(model), host=host, port=port, browser=browser)
