"""Two ways to use a selector in an application of your own: `rank`, in the form of sentence-transformers, and
`context`, which leaves only what supports an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .scoring import SCORES, check_choice

UNITS = ("sentence", "passage")
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def rank(
    model, query: str, documents: Sequence, top_k: int | None = None, return_documents: bool = False
) -> list[dict[str, Any]]:
    """What `CrossEncoder.rank` of sentence-transformers gives, by a selector.

    Args:
        model: the selector.
        query (`str`), documents (`list` of `str` or `{"text", "title"?}`).
        top_k (`int`, *optional*): how many to return; all when not given.
        return_documents (`bool`): add the `text` of each.

    Returns:
        `[{"corpus_id", "score", "text"?}]`, the best first; the score is the probability.

    Raises:
        ValueError: as `rank` of the selector.
    """
    evidence = model.rank(query, documents, top_k=top_k)["evidence"]
    return [
        {"corpus_id": item["index"], "score": item["probability"]}
        | ({"text": item["text"]} if return_documents else {})
        for item in evidence
    ]


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """`(start, end)` of each sentence; between two there is only white space.

    Raises:
        ModuleNotFoundError: sentencex is not installed.
    """
    try:
        import sentencex
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "sentencex is not installed; run: pip install 'warrant-hf[context]'", name=error.name
        ) from error
    # A separator of more than one byte, such as U+2028, can make sentencex panic; only the places are taken from it.
    plain, spans, start = _WIDE_SPACE.sub("\n", text), [], 0
    for piece in sentencex.segment(language, plain):
        end = start + len(piece)
        if plain[start:end] != piece:
            raise RuntimeError(f"sentencex has changed the text at character {start}; use unit='passage'.")
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
        start = end
    if text[start:].strip():
        raise RuntimeError(f"sentencex has left out the text from character {start}; use unit='passage'.")
    return spans


def context(
    model,
    question: str,
    passages: str | Sequence,
    *,
    threshold: float = 0.5,
    unit: str = "sentence",
    language: str = "en",
) -> dict[str, Any]:
    """The parts of the passages that support an answer, where they stand, in reading order.

    Args:
        model: the selector.
        question (`str`).
        passages (`str`, or `list` of `str` or `{"text", "title"?, ...}`): one long text, or several. A title is read
            with each sentence of its passage.
        threshold (`float`): the probability from which a part is kept.
        unit (`str`): `"sentence"` decides about each sentence, `"passage"` about each passage as a whole.
        language (`str`): code of the language whose rules find the sentences.

    Returns:
        `{"text", "kept", "left_out", "answerability", "notes"}`. `text` is what was kept, with a space between
        neighbours in a passage, ` … ` where something was left out, and a line break between passages. Each of `kept`
        has `passage` (position in the input), `start` and `end` (characters, so that `text[start:end]` of that
        passage's text is its `text`), `probability`, `attention`, `permission`, `effective`; `left_out` counts the
        others. Notes name a part by its number in reading order.

    Raises:
        ValueError: a value out of range, an empty question, or a passage without text.
        ModuleNotFoundError: sentences are wanted, and sentencex is not installed.
    """
    check_choice(None, threshold)
    if threshold is None:
        raise ValueError("threshold is None; give a probability from 0 to 1.")
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; choose 'sentence' or 'passage'.")
    passages = [passages] if isinstance(passages, str) else list(passages)
    if unit == "passage":
        result = model.rank(question, passages)
        parts = [(at, 0, len(_text(given))) for at, given in enumerate(passages)]
    else:
        parts = []
        for at, given in enumerate(passages):
            text = _text(given)
            if not isinstance(text, str) or not text.strip():
                model.rank(question, passages)  # complains about it in its own words
            parts += [(at, *span) for span in split_sentences(text, language)]
        result = model.rank(question, [_part(passages[at], start, end) for at, start, end in parts])
    found = {item["index"]: item for item in result["evidence"] if item["probability"] >= threshold}
    kept, lines = [], []
    for number in sorted(found):
        at, start, end = parts[number]
        text = _text(passages[at])[start:end]
        follows = kept and kept[-1]["passage"] == at
        lines += ["\n" if kept and not follows else "", *([" " if number - 1 in found else " … "] if follows else [])]
        lines.append(text)
        scores = {name: found[number][name] for name in SCORES}
        kept.append({"passage": at, "start": start, "end": end, "text": text, **scores})
    return {
        "text": "".join(lines),
        "kept": kept,
        "left_out": len(parts) - len(kept),
        "answerability": result["answerability"],
        "notes": result["notes"],
    }


def _text(given: Any) -> Any:
    return given.get("text") if isinstance(given, dict) else given


def _part(given: str | dict, start: int, end: int) -> str | dict:
    text = _text(given)[start:end]
    return {**given, "text": text} if isinstance(given, dict) else text


__all__ = ["context", "rank", "split_sentences"]
