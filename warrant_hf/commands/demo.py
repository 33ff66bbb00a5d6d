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
    from ..space.app import launch

    selector = load_model(model)
    try:
        launch(selector, host=host, port=port, browser=browser)
    except OSError as error:  # of Gradio, which speaks of its own arguments
        wanted = "any port from 7860" if port is None else f"port {port}"
        raise ValueError(f"cannot listen on {host}, {wanted}; give another --port or --host.") from error
