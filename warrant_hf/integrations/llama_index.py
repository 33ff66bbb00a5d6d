"""A selector as a node postprocessor of LlamaIndex."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, PrivateAttr

from .scoring import ADDED, check_choice, passage, ranked, selector, with_scores

try:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "llama-index-core is not installed; run: pip install 'warrant-hf[llama-index]'", name=error.name
    ) from error


class WarrantPostprocessor(BaseNodePostprocessor):
    """Keeps the nodes that support an answer, the best first; a node's score becomes its probability.

    The metadata of a node stays, and `probability`, `attention`, `permission` and `effective` join it, with the
    `answerability` of the whole list, by which an application can abstain (a key of yours with such a name becomes
    `input_probability`, …). All five are hidden from language models and embeddings. The nodes that were given are not
    changed. A `title` in the metadata is read with the text. A node that is empty or white space is not read: it comes
    last, with the four scores 0.

    Args:
        model: a selector, its folder or Hub id, the address of a server (`warrant-hf serve`), or `None` for the
            default checkpoint.
        top_n (`int`, *optional*): how many to keep; all when not given.
        threshold (`float`, *optional*): the probability below which a node is left out.

    Raises:
        ValueError: a value out of range, a field that there is not, or, when processing, no query.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), extra="forbid")

    model: Any = None
    top_n: int | None = None
    threshold: float | None = None
    _selector: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        check_choice(self.top_n, self.threshold)
        self._selector = selector(self.model)

    @classmethod
    def class_name(cls) -> str:
        return "WarrantPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("query_bundle is None; give the query, by which the nodes are ranked.")
        passages = [passage(node.node.get_content(MetadataMode.NONE), node.node.metadata) for node in nodes]
        kept = []
        for item in ranked(self._selector, query_bundle.query_str, passages, self.top_n, self.threshold):
            node = nodes[item["index"]].node.model_copy()
            node.metadata = with_scores(node.metadata, item)
            # Whatever is not excluded becomes part of the prompt.
            for names in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
                excluded = getattr(node, names)
                setattr(node, names, [*excluded, *(name for name in ADDED if name not in excluded)])
            kept.append(NodeWithScore(node=node, score=item["probability"]))
        return kept


__all__ = ["WarrantPostprocessor"]
