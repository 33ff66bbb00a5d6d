"""The Space itself: layout, events, two endpoints (`/select`, `/revoke`), and how it is served."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from typing import Any

import gradio as gr

from . import render
from .examples import EXAMPLES, as_text
from .inputs import (
    MAX_CHARACTERS,
    MAX_PASSAGES,
    MAX_QUESTION,
    Passages,
    read_closed,
    read_passage_list,
    read_passages,
    read_question,
)

INTRODUCTION = """
# Evidence gates

Which passages support an answer? **Attention** says how strongly a passage was read, **permission** how strongly it
may count, and their product, the **effective mass**, is all that its score is made of. Close a gate and that term is
gone. A permission is not an access control: a closed passage is still read. It just does not count.
"""

PASSAGES_HINT = "A blank line between passages. A first line that begins with “# ” is a title."


class _Ranker:
    """Checks what visitors send and ranks it; answers that were given lately are remembered."""

    def __init__(self, model):
        self._model = model
        self.rank = lru_cache(maxsize=64)(self._rank)

    def _rank(self, question: str, passages: Passages, closed: tuple[int, ...] = ()) -> dict:
        listed = [{"text": text, **({} if title is None else {"title": title})} for title, text in passages]
        return _or_sentence(lambda: self._model.rank(question, listed, revoke=list(closed), return_tokens=True))

    def select(self, question: str, passages: list) -> dict:
        """Rank passages by the support they give. `passages`: texts or {text, title}."""
        return _without_tokens(self.rank(*_checked(question, passages)))

    def revoke(self, question: str, passages: list, closed: list) -> dict:
        """Rank again with gates closed. `closed`: positions of passages, from 0. Gives {before, after}."""
        question, passages = _checked(question, passages)
        with_gates_closed = _or_sentence(read_closed, closed, passages)
        return {
            "before": _without_tokens(self.rank(question, passages)),
            "after": _without_tokens(self.rank(question, passages, with_gates_closed)),
        }

    def show(self, question: str, text: str, measure: str):
        """Everything the page shows about a new question, and fresh gates to close."""
        result = self.rank(*_checked(question, text))
        gates = gr.CheckboxGroup(choices=render.choices(result), value=[])
        return gates, *_views(result, None, measure)

    def show_closed(self, question: str, text: str, closed: list, measure: str):
        """The same with gates closed; what was before stands beside it."""
        question, passages = _checked(question, text)
        positions = _or_sentence(read_closed, closed, passages)
        before = self.rank(question, passages) if positions else None
        return _views(self.rank(question, passages, positions), before, measure)


def build(model) -> gr.Blocks:
    """The page around a model; see `launch` for the options it must be served with."""
    ranker = _Ranker(model)
    with gr.Blocks(title="Evidence gates", analytics_enabled=False) as blocks:
        gr.Markdown(INTRODUCTION)
        first_question, first_passages = next(iter(EXAMPLES.values()))
        with gr.Row():
            with gr.Column(scale=2):
                question = gr.Textbox(first_question, label="Question", max_length=MAX_QUESTION)
                passages = gr.Textbox(
                    as_text(first_passages),
                    label=f"Passages (up to {MAX_PASSAGES})",
                    info=PASSAGES_HINT,
                    lines=14,
                    max_lines=24,
                    max_length=MAX_CHARACTERS,
                )
                button = gr.Button("Rank", variant="primary")
                examples = gr.Examples(
                    [[asked, as_text(listed)] for asked, listed in EXAMPLES.values()],
                    inputs=[question, passages],
                    example_labels=list(EXAMPLES),
                    cache_examples=False,
                    api_visibility="private",
                )
            with gr.Column(scale=3):
                gauge = gr.HTML(container=True, padding=True)
                bars = gr.HTML(container=True, padding=True)
                gates = gr.CheckboxGroup(choices=[], label="Close the gate of")
                measure = gr.Radio(list(render.MEASURES), value="effective", label="Colour the words by")
                words = gr.HighlightedText(
                    label="What was read, what may count", elem_id="eg-words", show_inline_category=False
                )
                with gr.Accordion("The result as data", open=False):
                    data = gr.JSON(show_label=False)
        views = [gauge, bars, words, data]
        asked, page = [question, passages, measure], [gates, *views]
        hidden = {"api_visibility": "undocumented"}
        button.click(ranker.show, asked, page, api_name="show", **hidden)
        question.submit(ranker.show, asked, page, api_visibility="private")
        blocks.load(ranker.show, asked, page, api_visibility="private")
        examples.load_input_event.then(ranker.show, asked, page, api_visibility="private")
        closed = [question, passages, gates, measure]
        gates.input(ranker.show_closed, closed, views, api_name="show_closed", **hidden)
        measure.input(ranker.show_closed, closed, views, api_visibility="private")
        gr.api(ranker.select, api_name="select")
        gr.api(ranker.revoke, api_name="revoke")
    return blocks.queue(max_size=32, default_concurrency_limit=1, api_open=False)


def launch(
    model, *, host: str | None = None, port: int | None = None, browser: bool = False, block: bool = True
) -> gr.Blocks:
    """Serve the page. `host=None` leaves the address to Gradio's environment variables, as Spaces need it."""
    blocks = build(model)
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        prevent_thread_lock=not block,
        share=False,
        strict_cors=True,
        show_error=False,
        max_file_size="1mb",
        ssr_mode=False,
        css=render.CSS,
        theme=gr.themes.Soft(),
    )
    return blocks


def _views(result: dict, before: dict | None, measure: str):
    if measure not in render.MEASURES:
        raise gr.Error("The colour must be attention, permission or effective.", print_exception=False)
    return (
        render.gauge(result, before),
        render.bars(result, before),
        render.highlights(result, measure),
        _without_tokens(result),
    )


def _checked(question: Any, passages: Any) -> tuple[str, Passages]:
    read = read_passages if isinstance(passages, str) else read_passage_list
    return _or_sentence(read_question, question), _or_sentence(read, passages)


def _or_sentence(read, *values):
    """`read(*values)`, with its complaint shown to the visitor. The message is shown as HTML, so it is escaped."""
    try:
        return read(*values)
    except ValueError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from None


def _without_tokens(result: dict) -> dict:
    evidence = [{key: value for key, value in item.items() if key != "tokens"} for item in result["evidence"]]
    return {**result, "evidence": evidence}
