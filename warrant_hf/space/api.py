"""What programs may call: four endpoints with checked input, in plain JSON."""

from __future__ import annotations

from typing import Any

from . import intervene
from .inputs import Passages, read_passage_list, read_passages, read_positions, read_question
from .refusals import or_sentence
from .selectors import Selector, Selectors


class Api:
    """The endpoints. `passages` is a list of texts or of `{"text", "title"?}`; positions count from 0."""

    def __init__(self, selectors: Selectors):
        self._selectors = selectors

    def select(self, question: str, passages: list) -> dict:
        """Rank passages by the support they give to an answer, with attention, permission and effective mass of each.

        Args:
            question: The question.
            passages: Texts, or objects with text and title.
        """
        question, passages = checked(question, passages)
        return without_tokens(or_sentence(self._first.rank, question, passages))

    def revoke(self, question: str, passages: list, closed: list) -> dict:
        """Rank again with gates closed, as revoke of Python does: {"before": ..., "after": ...}.

        Args:
            question: The question.
            passages: Texts, or objects with text and title.
            closed: Positions of the passages whose gate is closed, from 0.
        """
        question, passages = checked(question, passages)
        positions = or_sentence(read_positions, closed, len(passages))
        permissions = tuple(0.0 if at in positions else None for at in range(len(passages)))
        return {
            "before": without_tokens(or_sentence(self._first.rank, question, passages)),
            "after": without_tokens(or_sentence(self._first.rank, question, passages, permissions)),
        }

    def intervene(
        self,
        question: str,
        passages: list,
        permissions: list,
        masked: list,
        duplicated: list,
        swapped: list,
        model: str,
    ) -> dict:
        """Set permissions, mask, duplicate and swap passages; tells the effect on each logit and its additive parts.

        Args:
            question: The question.
            passages: Texts, or objects with text and title.
            permissions: One number from 0 to 1 per passage, null for the learned permission; [] keeps all.
            masked: Positions of passages to leave out of the input.
            duplicated: Positions of passages to add once more at the end.
            swapped: Two positions to swap, or [].
            model: A name of the allow-list; the answer to any other names them.
        """
        question, passages = checked(question, passages)
        edit = or_sentence(intervene.read_edit, passages, permissions, masked, duplicated, swapped)
        outcome = or_sentence(
            intervene.apply, or_sentence(self._selectors.__getitem__, model), question, passages, edit
        )
        return {
            "before": without_tokens(outcome["before"]),
            "after": without_tokens(outcome["after"]),
            "changes": [{key: change[key] for key in ("index", "copy", "effect")} for change in outcome["changes"]],
        }

    def compare(self, question: str, passages: list, first: str, second: str) -> dict:
        """The results of two models, or of two variants of one, on the same input: {"first": ..., "second": ...}.

        Args:
            question: The question.
            passages: Texts, or objects with text and title.
            first: A name of the allow-list, or one with ", all gates open" behind it.
            second: Another of them.
        """
        question, passages = checked(question, passages)
        views = {"first": first, "second": second}
        return {
            side: without_tokens(or_sentence(self._selectors.view, view, question, passages))
            for side, view in views.items()
        }

    @property
    def _first(self) -> Selector:
        return self._selectors[self._selectors.names[0]]


def checked(question: Any, passages: Any) -> tuple[str, Passages]:
    """Question and passages within the limits, or a sentence for the caller."""
    read = read_passages if isinstance(passages, str) else read_passage_list
    return or_sentence(read_question, question), or_sentence(read, passages)


def without_tokens(result: dict) -> dict:
    """A result without its tokens, as programs get it."""
    evidence = [{key: value for key, value in item.items() if key != "tokens"} for item in result["evidence"]]
    return {**result, "evidence": evidence}
