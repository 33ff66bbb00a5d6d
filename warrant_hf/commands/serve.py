"""`warrant-hf serve`: a selector behind HTTP, in the forms that rerankers' clients speak."""

from __future__ import annotations

import ipaddress

import typer

from .loading import load_model

DEFAULT_NAME = "warrant-hf/default"


def run(*, model: str | None, host: str, port: int, api_key: str | None, **bounds) -> None:
    """Serves until SIGTERM or SIGINT; `bounds` are fields of `ServingLimits`."""
    from ..serving import ServingLimits, create_app
    from ..serving.server import in_passing, listen
    from ..serving.server import run as serve

    limits = ServingLimits(**bounds)
    with listen(host, port) as bound:
        selector = in_passing(lambda: load_model(model))
        selector.processor  # noqa: B018 (read now: a broken one is no surprise for the first client)
        app = create_app(selector, name=model or DEFAULT_NAME, limits=limits, api_key=api_key, facts=_facts(selector))
        address, number = bound.getsockname()[:2]
        if api_key is None and not ipaddress.ip_address(address).is_loopback:
            typer.echo(f"Warning: {address} can be reached from elsewhere, and there is no --api-key.", err=True)
        shown = f"[{address}]" if ":" in address else address
        typer.echo(f"Serving {model or DEFAULT_NAME} on http://{shown}:{number} (Ctrl+C stops)", err=True)
        serve(app, bound, limits)


def _facts(selector) -> dict:
    from .. import __version__

    return {
        "version": __version__,
        "model_dtype": str(selector.dtype).removeprefix("torch."),
        "max_input_length": min(selector.processor.max_length, selector.processor.tokenizer.model_max_length),
        "variant": selector.config.variant,
    }
