"""What a session has last put on the page, so that nothing comes late of another question and stands beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from threading import Lock

import gradio as gr

from .inputs import Passages

_REMEMBERED = 10_000  # sessions; of those before them nothing is held to be late


@dataclass(frozen=True)
class Asked:
    """A question as it was ranked; `number` tells it from all others."""

    number: int
    model: str
    question: str
    passages: Passages

    @property
    def list(self) -> tuple[str, str, Passages]:
        return self.model, self.question, self.passages


class Sessions:
    """Numbers for questions in the order in which they were put, and the one that each session shows."""

    def __init__(self):
        self._numbers, self._shown, self._lock = count(1), OrderedDict(), Lock()

    def next(self) -> int:
        """A number for a question that is put now."""
        return next(self._numbers)

    def show(self, request: gr.Request, number: int) -> bool:
        """Whether a result may be shown: none of a later question of the session has been."""
        session = str(request.session_hash)
        with self._lock:
            may = number >= self._shown.get(session, 0)
            if may:
                self._shown[session] = number
                self._shown.move_to_end(session)
            while len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)
        return may

    def shows(self, request: gr.Request, number: int) -> bool:
        """Whether this is the question that the session shows."""
        return self._shown.get(str(request.session_hash), number) == number


def of_what_is_shown(handler: Callable) -> Callable:
    """A handler `(self, asked, *values)` as Gradio calls it, with the number of the question that the browser shows.

    The values of widgets come from the browser, `asked` from the server, and a new result reaches one before the
    other. Where the two are of different questions, or another was ranked meanwhile, nothing on the page is changed.
    """

    def run(self, asked: Asked | None, number: float | None, request: gr.Request, *values):
        if asked is None:
            raise gr.Error("Your session has ended: press Rank once more.", print_exception=False)
        if number != asked.number:
            return gr.skip()
        found = handler(self, asked, *values)
        return found if self.sessions.shows(request, asked.number) else gr.skip()

    run.__name__, run.__doc__ = handler.__name__, handler.__doc__
    return run
