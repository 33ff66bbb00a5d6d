"""What the page does when a visitor does something: from values of widgets to values of widgets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from . import batch, compare, figure, inside, intervene, render, uploads
from .inputs import MAX_PASSAGES, read_passages, read_question, read_table
from .refusals import or_sentence, refusal
from .selectors import Selectors
from .sessions import Asked, Sessions, of_what_is_shown

_DIGITS = 3  # of a slider, as many as the table shows


class Page:
    """The handlers. `asked`, the state of a session, is what was ranked last.

    Args:
        selectors: the allow-list.
        cache: folder of files to download; Gradio serves it, and empties it from time to time.
    """

    def __init__(self, selectors: Selectors, cache: str):
        self._selectors, self._cache = selectors, cache
        self.sessions = Sessions()
        self._stopping: set[str] = set()
        self._filters: dict[str, list[str]] = {}  # of the sessions that have a batch running

    # Select and look inside.

    def rank(self, model, question, rows, request: gr.Request):
        """A new question: everything that shows it, and interventions undone."""
        number = self.sessions.next()
        asked = Asked(
            number,
            or_sentence(self._selectors.__getitem__, model).name,
            or_sentence(read_question, question),
            or_sentence(read_table, rows),
        )
        result = or_sentence(self._selectors[model].rank, asked.question, asked.passages)
        calibration = self._selectors[model].calibration
        about = _about(asked)
        shown = [render.headline(result), render.gauge(result, calibration=calibration), render.cards(result)]
        looked = [inside.highlights(result), inside.heatmap(result), gr.File(None, visible=False)]
        everything = [asked, number, about, *shown, *looked, about, about, "", "", *self._as_learned(asked)]
        return everything if self.sessions.show(request, number) else gr.skip()

    @of_what_is_shown
    def files(self, asked):
        """Heatmap and result as files."""
        model, question, passages = asked.list
        result = self._selectors[model].rank(question, passages)
        pictures = {} if result["mass"] is None else {
            f"heatmap.{kind}": figure.heatmap_file(result, kind) for kind in ("png", "svg")
        }  # fmt: skip
        return self._files({**pictures, "evidence.json": figure.result_file(result)})

    # Inputs.

    def paste(self, text):
        """Pasted passages as rows."""
        return _rows(or_sentence(read_passages, text))

    def load(self, path, number):
        """A row of a file as question and passages."""
        question, passages, count = or_sentence(uploads.read_row, path, number)
        return question, _rows(passages), f"Row {int(number)} of {count} is in the table."

    # Intervene.

    @of_what_is_shown
    def reset(self, asked):
        """Sliders at the learned permissions, everything else unchanged."""
        return self._as_learned(asked)

    def _as_learned(self, asked):
        model, _, passages = asked.list
        selector = self._selectors[model]
        learned, names = self._learned(asked), render.numbered_names(passages)
        sliders = [
            gr.Slider(label=names[at], value=learned[at], visible=selector.has_permission)
            if at < len(passages)
            else gr.Slider(visible=False)
            for at in range(MAX_PASSAGES)
        ]
        # Each box says what it does: to a screen reader the four groups have no names.
        groups = [
            gr.CheckboxGroup(
                choices=[(f"{verb} {name}", at) for at, name in enumerate(names)], value=[], visible=shown
            )
            for verb, shown in {"Close": selector.has_permission, "Mask": True, "Copy": True, "Swap": True}.items()
        ]
        answers = gr.Button(visible=selector.answers)
        return [*sliders, *groups, answers, "", *self._changed(asked, [], [], [], [], learned)]

    @of_what_is_shown
    def close(self, asked, closed, masked, copied, swapped, *sliders):
        """Gates ticked or unticked: their sliders follow."""
        learned = self._learned(asked)
        values = [
            0 if at in closed else learned[at] if value == 0 and at < len(learned) else value
            for at, value in enumerate(sliders)
        ]
        return [*values, *self._changed(asked, closed, masked, copied, swapped, values)]

    @of_what_is_shown
    def change(self, asked, closed, masked, copied, swapped, *sliders):
        """Anything else changed: the ticks of closed gates follow the sliders."""
        learned = self._learned(asked)
        closed = [at for at, value in enumerate(learned) if sliders[at] == 0 and (at in closed or value != 0)]
        return [closed, *self._changed(asked, closed, masked, copied, swapped, sliders)]

    @of_what_is_shown
    def answers(self, asked, closed, masked, copied, swapped, *sliders):
        """What a reader that generates says before and after."""
        model, question, passages = asked.list
        edit = or_sentence(partial(self._edit, asked, closed, masked, copied, swapped, sliders))
        order = edit.order()
        changed = tuple(passages[at] for at, _ in order)
        permissions = tuple(None if copy else edit.permissions[at] for at, copy in order)
        selector = self._selectors[model]
        said = {
            "Answer before": or_sentence(selector.answer, question, passages),
            "Answer after": or_sentence(selector.answer, question, changed, permissions),
        }
        parts = (
            f'<section><h2 class="eg-title">{when}</h2><p>{render.user_text(text or "(no words)")}</p></section>'
            for when, text in said.items()
        )
        return f'<div class="eg-answers">{"".join(parts)}</div>'

    def _changed(self, asked, closed, masked, copied, swapped, sliders):
        model, question, passages = asked.list
        try:
            edit = self._edit(asked, closed, masked, copied, swapped, sliders)
            outcome = intervene.apply(self._selectors[model], question, passages, edit)
        except ValueError as error:
            # Where the change would stand: the ticks stay as they are, and numbers beside them would be of others.
            return refusal(error), "", ""
        names = render.numbered_names(passages)
        calibration = self._selectors[model].calibration
        gauge = render.gauge(outcome["after"], outcome["before"], calibration)
        return intervene.told(outcome, edit, names), intervene.table(outcome, names), gauge

    def _edit(self, asked, closed, masked, copied, swapped, sliders):
        # A slider where it was put stands for the learned permission, with all its digits.
        permissions = [
            0.0 if at in closed else None if sliders[at] == value else sliders[at]
            for at, value in enumerate(self._learned(asked))
        ]
        pair = swapped if len(swapped) != 1 else []  # the other one is still to be ticked
        return intervene.read_edit(asked.passages, permissions, masked, copied, pair)

    def _learned(self, asked):
        model, question, passages = asked.list
        evidence = sorted(self._selectors[model].rank(question, passages)["evidence"], key=lambda item: item["index"])
        return [round(item["permission"] or 0.0, _DIGITS) for item in evidence]

    # Compare.

    @of_what_is_shown
    def compare(self, asked, first, second, tab="Compare"):
        """Two views of the allow-list side by side, where the tab that is open is this one."""
        if tab != "Compare":
            return gr.skip()
        _, question, passages = asked.list
        results = [or_sentence(self._selectors.view, view, question, passages) for view in (first, second)]
        behind = [self._selectors.behind(view) for view in (first, second)]
        table = compare.side_by_side(
            *results,
            (first, second),
            tuple(selector.calibration for selector in behind),
            only_gates=behind[0] is behind[1] and first != second,
        )
        return _about(asked), table

    def opened(self, event: gr.SelectData):
        """The name of the tab that is open."""
        return event.value

    # Batch.

    def batch(self, model, path, level, chosen, request: gr.Request):
        """Ranks the rows of a file, one at a time."""
        session = str(request.session_hash)
        # First of all nothing is left of the batch before, which another file may have given.
        yield None, "", gr.Dataframe([], visible=False), gr.File(None, visible=False), gr.Button(interactive=False)
        selector = or_sentence(self._selectors.__getitem__, model)
        rows = or_sentence(uploads.read_batch, path, level)
        name = Path(path).name
        self._stopping.discard(session)
        self._filters[session] = chosen
        progress = batch.run(selector, rows, lambda: session in self._stopping)
        nothing = batch.Batch(len(rows))
        yield nothing, _progress(name, nothing), gr.skip(), gr.skip(), gr.Button(interactive=True)
        try:
            while (done := or_sentence(next, progress, None)) is not None:
                files = gr.File(visible=False)
                if done.ledger:
                    files = self._files({"table.csv": batch.table_file(done), "ledger.jsonl": done.ledger})
                over = done.stopped or bool(done.ledger)
                table = gr.Dataframe(batch.filtered(done, self._filters[session]), visible=True)
                yield done, _progress(name, done), table, files, gr.Button(interactive=not over)
        finally:
            progress.close()
            self._stopping.discard(session)
            self._filters.pop(session, None)

    def stop(self, request: gr.Request):
        """Stops the batch of this session after the question that is being read."""
        self._stopping.add(str(request.session_hash))
        return gr.Button(interactive=False)

    def filter(self, done, chosen, request: gr.Request):
        """The rows of the batch that pass the filters, those of a running one from now on too."""
        if str(request.session_hash) in self._filters:
            self._filters[str(request.session_hash)] = chosen
        return or_sentence(batch.filtered, done, chosen)

    def _files(self, contents):
        return gr.File([save_bytes_to_cache(data, name, self._cache) for name, data in contents.items()], visible=True)


def _about(asked: Asked) -> str:
    return render.asked(asked.question, len(asked.passages), asked.model)


def _progress(name: str, done: batch.Batch) -> str:
    share = f'<progress max="{done.total}" value="{len(done.rows)}" aria-label="Questions read"></progress>'
    return f'<p role="status">{share} {render.user_text(name)}: {done.told()} {done.summary()}</p>'


def _rows(passages):
    return [[title or "", text] for title, text in passages]
