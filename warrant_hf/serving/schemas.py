"""What clients send: one model for each family of routes. Unknown fields are refused, so that none is ignored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ..modeling.processing_evidence import full_text


def _with_words(value: str) -> str:
    if not value.strip():
        raise ValueError("give a text that is not empty")
    return value


def _as_passage(value: Any) -> str | dict:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError("give a text, or an object with the field text")
    if not text.strip():
        raise ValueError("give it words, or leave it out")
    if isinstance(value, dict) and not isinstance(value.get("title"), str | None):
        raise ValueError("its title has to be a text; correct it, or leave it out")
    return value


Words = Annotated[str, AfterValidator(_with_words)]
Passage = Annotated[
    Any,
    BeforeValidator(_as_passage),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"text": {"type": "string"}, "title": {"type": "string"}},
                    "required": ["text"],
                },
            ]
        }
    ),
]


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    candidates: ClassVar[str]  # name of the list that holds the candidates

    def asked(self) -> tuple[str, list]:
        """Question and candidates."""
        raise NotImplementedError

    @property
    def characters(self) -> int:
        question, candidates = self.asked()
        return len(question) + sum(len(full_text(candidate)) for candidate in candidates)


class RerankRequest(_Request):
    """`POST /rerank`, as text-embeddings-inference takes it."""

    candidates: ClassVar = "texts"

    query: Words
    texts: list[Words] = Field(min_length=1)
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    return_text: bool = False
    truncate: bool | None = Field(
        False, description="Take a query that is longer than the model reads; texts are always read to their ends."
    )
    truncation_direction: Literal["right", "Right"] = Field("right", description="A long query is cut at its end.")

    def asked(self):
        return self.query, self.texts


class RerankDocumentsRequest(_Request):
    """`POST /v1/rerank` and `/v2/rerank`, as Cohere and Jina take it."""

    candidates: ClassVar = "documents"

    query: Words
    documents: list[Passage] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1, description="Return the best only.")
    return_documents: bool | None = False
    model: str | None = Field(None, description="Taken and not used: a server has one model.")
    max_tokens_per_doc: int | None = Field(None, description="Taken and not used: documents are read to their ends.")
    max_chunks_per_doc: int | None = Field(None, description="Taken and not used: documents are read to their ends.")

    def asked(self):
        return self.query, self.documents


class SelectRequest(_Request):
    """`POST /select`: the arguments of `rank`."""

    candidates: ClassVar = "passages"

    question: Words
    passages: list[Passage] = Field(min_length=1)
    revoke: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="Passages, counted from 0, whose permission is withdrawn."
    )
    revoke_by: Literal["gate", "mask"] = "gate"
    top_k: int | None = Field(None, ge=1, description="Return the best only.")
    return_tokens: bool = Field(False, description="Attention and permission of each token too.")

    def asked(self):
        return self.question, self.passages
