"""A selector as a ranker component of Haystack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .scoring import check_choice, passage, ranked, selector, with_scores

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "haystack-ai is not installed; run: pip install 'warrant-hf[haystack]'", name=error.name
    ) from error


@component
class WarrantRanker:
    """Ranks documents by the support they give; a document's score becomes its probability.

    The meta of a document stays, and `probability`, `attention`, `permission` and `effective` join it, with the
    `answerability` of the whole list, by which a pipeline can abstain (a key of yours with such a name becomes
    `input_probability`, …). The documents that were given are not changed. A `title` in the meta is read with the
    text. A document that is empty or white space is not read: it comes last, with the four scores 0.

    Args:
        model: a selector, its folder or Hub id, the address of a server (`warrant-hf serve`), or `None` for the
            default checkpoint.
        top_k (`int`, *optional*): how many to keep; all when not given.
        threshold (`float`, *optional*): the probability below which a document is left out.

    Raises:
        ValueError: a value out of range, or, when running, a query without text, or a document whose content is
            `None`.
    """

    def __init__(self, model: Any = None, top_k: int | None = None, threshold: float | None = None):
        check_choice(top_k, threshold, "top_k")
        self.model, self.top_k, self.threshold = model, top_k, threshold
        self._selector = None

    def warm_up(self) -> None:
        """Loads the selector; the first `run` does it too."""
        if self._selector is None:
            self._selector = selector(self.model)

    def to_dict(self) -> dict[str, Any]:
        """The component for a pipeline's file.

        Raises:
            ValueError: its model is an object; a file can hold a folder or a Hub id only.
        """
        if self.model is not None and not isinstance(self.model, str):
            raise ValueError("model is a loaded selector, which a file cannot hold; give its folder or its Hub id.")
        return default_to_dict(self, model=self.model, top_k=self.top_k, threshold=self.threshold)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WarrantRanker:
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None, threshold: float | None = None):
        """`{"documents": [...]}` in rank order; `top_k` and `threshold` replace those of the component."""
        top_k = self.top_k if top_k is None else top_k
        threshold = self.threshold if threshold is None else threshold
        check_choice(top_k, threshold, "top_k")
        self.warm_up()
        passages = [passage(document.content, document.meta) for document in documents]
        kept = []
        for item in ranked(self._selector, query, passages, top_k, threshold):
            document = documents[item["index"]]
            kept.append(replace(document, meta=with_scores(document.meta, item), score=item["probability"]))
        return {"documents": kept}


__all__ = ["WarrantRanker"]
