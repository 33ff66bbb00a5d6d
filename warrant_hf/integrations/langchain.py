"""A selector as a document compressor of LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, PrivateAttr

from .scoring import check_choice, passage, ranked, selector, with_scores

try:
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "langchain-core is not installed; run: pip install 'warrant-hf[langchain]'", name=error.name
    ) from error


class WarrantCompressor(BaseDocumentCompressor):
    """Keeps the documents that support an answer, the best first.

    The metadata of a document stays, and `probability`, `attention`, `permission` and `effective` join it, with the
    `answerability` of the whole list, by which a chain can abstain (a key of yours with such a name becomes
    `input_probability`, …). The documents that were given are not changed. A `title` in the metadata is read with the
    text. A document that is empty or white space is not read: it comes last, with the four scores 0.

    Args:
        model: a selector, its folder or Hub id, the address of a server (`warrant-hf serve`), or `None` for the
            default checkpoint.
        top_n (`int`, *optional*): how many to keep; all when not given.
        threshold (`float`, *optional*): the probability below which a document is left out.

    Raises:
        ValueError: a value out of range, a field that there is not, or, when compressing, a query without text.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), extra="forbid")

    model: Any = None
    top_n: int | None = None
    threshold: float | None = None
    _selector: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        check_choice(self.top_n, self.threshold)
        self._selector = selector(self.model)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """The supporting documents in rank order."""
        passages = [passage(document.page_content, document.metadata) for document in documents]
        return [
            documents[item["index"]].model_copy(
                update={"metadata": with_scores(documents[item["index"]].metadata, item)}
            )
            for item in ranked(self._selector, query, passages, self.top_n, self.threshold)
        ]


__all__ = ["WarrantCompressor"]
