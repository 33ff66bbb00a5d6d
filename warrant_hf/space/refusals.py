"""What a visitor is told when something cannot be done."""

from __future__ import annotations

from html import escape

import gradio as gr


def or_sentence(work, *values):
    """`work(*values)`, with its complaint shown to the visitor. The page shows it as HTML, so it is escaped."""
    try:
        return work(*values)
    except ValueError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from None


def refusal(error: ValueError) -> str:
    """A complaint as part of the page."""
    return f'<p class="eg-headline" role="status">{escape(str(error))}</p>'
