"""The Space itself: layout, events, endpoints, and how it is served."""

from __future__ import annotations

import gradio as gr

from . import about, batch, render
from .api import Api
from .examples import EXAMPLES
from .inputs import MAX_CHARACTERS, MAX_PASSAGES, MAX_QUESTION
from .page import Page
from .selectors import Selectors, named
from .style import CSS, THEME
from .uploads import FILE_TYPES, LEVELS, MAX_CANDIDATES, MAX_FILE, MAX_ROWS

TITLE = f"""
<header class="eg-page"><h1>Attention is not evidence</h1>
A question and some passages: which of them support an answer? Something is always read; whether it may count is
another question. Close a gate, and see.
{render.legend()}</header>
"""
ROW = '{"question": "…", "candidates": [{"title": "…", "text": "…", "label": 1}, {"text": "…", "label": 0}]}'
PASTE_HINT = "A blank line between passages. A first line that begins with “# ” is a title."

# Of handlers that run a model: together no more at a time than this, whichever they are.
_MODEL = {"concurrency_id": "model", "concurrency_limit": 2, "api_visibility": "private"}
_PLAIN = {"api_visibility": "private"}
_LONGEST_SESSION = 3600  # seconds that a session's last question, and files to download, are kept


def build(models) -> gr.Blocks:
    """The page around one model, or a mapping of names to models; see `launch` for how it must be served."""
    selectors = Selectors(named(models))
    with gr.Blocks(
        title="Evidence gates", analytics_enabled=False, delete_cache=(_LONGEST_SESSION, _LONGEST_SESSION)
    ) as blocks:
        api = Api(selectors)
        # Before the events of the page, whose names would be taken for theirs otherwise.
        for endpoint in (api.select, api.revoke, api.intervene, api.compare):
            gr.api(endpoint, api_name=endpoint.__name__, concurrency_id="model", concurrency_limit=2)
        page = Page(selectors, blocks.GRADIO_CACHE)
        # What was asked last, as the server knows it, and the number of what the browser shows.
        asked = [gr.State(None, time_to_live=_LONGEST_SESSION), gr.Number(0, visible=False)]
        opened = gr.State("Select", time_to_live=_LONGEST_SESSION)
        gr.HTML(TITLE)
        with gr.Tabs() as tabs:
            with gr.Tab("Select"):
                inputs, ranked, start = _select(page, selectors)
            with gr.Tab("Look inside"):
                looked, inside_about = _inside(page, asked)
            with gr.Tab("Intervene"):
                edited, intervene_about = _intervene(page, asked)
            with gr.Tab("Compare") as tab:
                views, compared = _compare(page, selectors, asked, tab)
            with gr.Tab("Batch"):
                _batch(page, selectors)
            with gr.Tab("About"):
                _about(selectors)
        tabs.select(page.opened, None, opened, queue=False, show_progress="hidden", **_PLAIN)
        shown = [*asked, *ranked, *looked, inside_about, intervene_about, *compared, *edited]
        for event in (*start, blocks.load):
            event(page.rank, inputs, shown, **_MODEL).success(
                page.compare, [*asked, *views, opened], compared, show_progress="hidden", **_MODEL
            )
    return blocks.queue(max_size=32, default_concurrency_limit=2, api_open=False)


def launch(
    models,
    *,
    host: str | None = None,
    port: int | None = None,
    browser: bool = False,
    block: bool = True,
    mcp: bool = False,
) -> gr.Blocks:
    """Serve the page.

    Args:
        models: a model, or the allow-list as a mapping of names to models.
        host (`str`, *optional*): `None` leaves the address to Gradio's environment variables, as Spaces need it.
        mcp (`bool`): serve the endpoints as tools of the Model Context Protocol too; needs the package `mcp`.
    """
    blocks = build(models)
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        prevent_thread_lock=not block,
        share=False,
        strict_cors=True,
        show_error=False,
        allowed_paths=[],
        max_file_size=MAX_FILE,
        ssr_mode=False,
        mcp_server=mcp,
        css=CSS,
        theme=THEME,
    )
    return blocks


def _select(page, selectors):
    first_question, first_passages = next(iter(EXAMPLES.values()))
    with gr.Row():
        with gr.Column(scale=1, min_width=320):
            model = gr.Dropdown(list(selectors.names), value=selectors.names[0], label="Model")
            question = gr.Textbox(first_question, label="Question", max_length=MAX_QUESTION, max_lines=4)
            passages = gr.Dataframe(
                _rows(first_passages),
                headers=["title", "text"],
                datatype="str",
                type="array",
                column_count=2,
                column_widths=["28%", "58%"],
                wrap=True,
                show_row_numbers=True,
                interactive=True,
                max_height=420,
                label=f"Passages (up to {MAX_PASSAGES}, {MAX_CHARACTERS:,} characters)",
                elem_id="eg-passages",
            )
            gr.HTML(
                '<p class="eg-note">Double-click a cell to write; its menu ⋮ adds and deletes rows.</p>', padding=False
            )
            button = gr.Button("Rank", variant="primary")
            examples = gr.Examples(
                [[asked, _rows(listed)] for asked, listed in EXAMPLES.values()],
                inputs=[question, passages],
                example_labels=list(EXAMPLES),
                cache_examples=False,
                api_visibility="private",
            )
            with gr.Accordion("Paste many passages", open=False):
                text = gr.Textbox(
                    label="Passages as text", info=PASTE_HINT, lines=6, max_lines=14, max_length=MAX_CHARACTERS
                )
                paste = gr.Button("Put them into the table")
            with gr.Accordion("Load a row from a file", open=False):
                file = gr.File(label="JSONL, HotpotQA, 2WikiMultihopQA or MuSiQue", file_types=FILE_TYPES, height=120)
                number = gr.Number(1, label="Row", precision=0, minimum=1, maximum=MAX_ROWS)
                load = gr.Button("Put the row into the table")
                loaded = gr.Markdown()
        with gr.Column(scale=1, min_width=320):
            ranked = [gr.HTML(padding=False) for _ in range(4)]
    paste.click(page.paste, text, passages, **_PLAIN)
    load.click(page.load, [file, number], [question, passages, loaded], **_PLAIN)
    start = (button.click, question.submit, examples.load_input_event.then)
    return [model, question, passages], ranked, start


def _inside(page, asked):
    about_it = gr.HTML()
    words, heat = gr.HTML(), gr.HTML()
    button = gr.Button("Make files: heatmap as PNG and SVG, result as JSON")
    files = gr.File(label="Files", file_count="multiple", interactive=False, visible=False)
    button.click(page.files, asked, files, **_MODEL)
    return [words, heat, files], about_it


def _intervene(page, asked):
    about_it = gr.HTML()
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            gr.HTML(
                '<h2 class="eg-title">Permission of each passage</h2>Each slider starts where the model has put it. '
                "Move one or close a gate, and read what follows."
            )
            sliders = [
                gr.Slider(0, 1, step=0.001, visible=False, label=f"Passage {at}", elem_classes="eg-slider", buttons=[])
                for at in range(1, MAX_PASSAGES + 1)
            ]
            closed = gr.CheckboxGroup([], label="Close the gate of")
            with gr.Accordion("Change the input: mask, duplicate, swap", open=False):
                masked = gr.CheckboxGroup([], label="Mask from the input")
                copied = gr.CheckboxGroup([], label="Add a copy of")
                swapped = gr.CheckboxGroup([], label="Swap two")
            reset = gr.Button("Reset")
        with gr.Column(scale=3, min_width=320):
            gr.HTML('<h2 class="eg-title">What changed</h2>')
            told, table, gauge = gr.HTML(), gr.HTML(), gr.HTML()
            answer = gr.Button("Answer before and after", visible=False)
            answers = gr.HTML()
    settings = [*asked, closed, masked, copied, swapped, *sliders]
    views = [told, table, gauge]
    everything = [*sliders, closed, masked, copied, swapped, answer, answers, *views]
    # A number beyond the ends, typed into the box of a slider, would be refused before any handler hears of it.
    ends = (
        f"(...v) => v.map((x, i) => i < {len(settings) - len(sliders)} ? x : Math.min(1, Math.max(0, Number(x) || 0)))"
    )
    live = {"show_progress": "hidden", "trigger_mode": "always_last", **_MODEL}
    closed.input(page.close, settings, [*sliders, *views], js=ends, **live)
    moved = [widget.input for widget in (masked, copied, swapped, *sliders)]
    gr.on(moved, page.change, settings, [closed, *views], js=ends, **live)
    reset.click(page.reset, asked, everything, **_MODEL)
    answer.click(page.answers, settings, answers, js=ends, **_MODEL)
    return everything, about_it


def _compare(page, selectors, asked, tab):
    about_it = gr.HTML()
    with gr.Row():
        first, second = (
            gr.Dropdown(list(selectors.views), value=selectors.views[min(at, len(selectors.views) - 1)], label=side)
            for at, side in enumerate("AB")
        )
    gr.HTML('<p class="eg-note">With all gates open every permission is 1, and attention alone decides.</p>')
    table = gr.HTML()
    views, compared = [first, second], [about_it, table]
    gr.on([tab.select, first.input, second.input], page.compare, [*asked, *views], compared, **_MODEL)
    return views, compared


def _batch(page, selectors):
    gr.HTML(
        f"<p>A file of questions, each with its candidates: up to {MAX_ROWS} rows, {MAX_CANDIDATES} candidates each, "
        f"and {MAX_FILE // 1_000_000} MB. A row is one line of JSON:</p><p class='eg-text'><code>{ROW}</code></p>"
        "<p>Labels may be left out. With k passages labelled as evidence, it is missed if one of them is not among "
        "the first k.</p><p>The file <code>ledger.jsonl</code> records every decision: one line of JSON for each "
        "passage of each question, with its scores, its rank and the model that gave them.</p>"
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            model = gr.Dropdown(list(selectors.names), value=selectors.names[0], label="Model")
            file = gr.File(label="JSONL, HotpotQA, 2WikiMultihopQA or MuSiQue", file_types=FILE_TYPES, height=140)
            level = gr.Radio(list(LEVELS), value=LEVELS[0], label="HotpotQA, 2WikiMultihopQA, MuSiQue: rank each")
            run = gr.Button("Run", variant="primary")
            stop = gr.Button("Stop", variant="stop", interactive=False)
        with gr.Column(scale=3, min_width=320):
            progress = gr.HTML()
            filters = gr.CheckboxGroup(list(batch.FILTERS), label="Only rows with")
            table = gr.Dataframe(
                headers=list(batch.HEADERS),
                datatype="str",
                type="array",
                interactive=False,
                wrap=True,
                label="Questions",
                visible=False,
                column_widths=[50, 210, 140, 115, 115, 95, 100, 110, 120, 240],
            )
            files = gr.File(label="Files: table and ledger", file_count="multiple", interactive=False, visible=False)
    done = gr.State(None, time_to_live=_LONGEST_SESSION)
    run.click(
        page.batch,
        [model, file, level, filters],
        [done, progress, table, files, stop],
        concurrency_id="batch",
        concurrency_limit=1,
        show_progress="hidden",
        **_PLAIN,
    )
    stop.click(page.stop, None, stop, queue=False, **_PLAIN)
    filters.input(page.filter, [done, filters], table, **_PLAIN)


def _about(selectors):
    gr.HTML(about.OPERATOR)
    gr.Markdown(about.MEANING)
    for name in selectors.names:
        model = selectors[name].model
        gr.Markdown(f"## Measured: {name}")
        gr.HTML(about.results(model))
        address, text = about.link(model), about.card(model)
        if address:
            gr.Markdown(f"[Model card of {name}]({address})")
        if text:
            with gr.Accordion(f"Model card of {name}", open=False):
                gr.Markdown(text)


def _rows(passages):
    return [[passage["title"], passage["text"]] for passage in passages]
