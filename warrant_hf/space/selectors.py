"""The allow-list of models, and what the page asks of one: a result as of `rank`, with permissions of one's choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from .inputs import Passages

#: What `answer` generates at most, in tokens.
MAX_ANSWER = 32
_OPEN = ", all gates open"
_REMEMBERED = 128  # results a model keeps at hand: a page asks for the same one again and again

Permissions = tuple[float | None, ...]  # one per passage; None is the learned permission


class Selector:
    """One model behind the page. Results are remembered and shared: do not change them."""

    def __init__(self, name: str, model):
        self.name, self.model = name, model
        self.answers = hasattr(model, "answer")
        self.has_permission = model.readout.variant.path
        self.rank = lru_cache(maxsize=_REMEMBERED)(self._rank)
        self.answer = lru_cache(maxsize=_REMEMBERED)(self._answer)

    def _rank(self, question: str, passages: Passages, permissions: Permissions = ()) -> dict:
        """What `rank` returns, tokens included; with `permissions`, what `permission_override` makes of it.

        Raises:
            ValueError: as in `rank`, or permissions for a model that has none.
        """
        if not _any_set(permissions):
            return self.model.rank(question, listed(passages), return_tokens=True)
        inputs = self._overridden(question, passages, permissions)
        with torch.no_grad():
            output = self.model(**inputs)
        evidence = []
        for item in self._rank_learned(question, passages)["evidence"]:
            at = item["index"]
            score = float(output.logits[0, at])
            read = {name: float(output[name][0, at]) for name in ("attention", "permission", "effective")}
            item = {**item, "score": score, "probability": sigmoid(score), **read}
            if permissions[at] is not None:
                item["revoked"] = permissions[at] == 0
                item["tokens"] = [{**token, "permission": permissions[at]} for token in item["tokens"]]
            evidence.append(item)
        evidence.sort(key=lambda item: (-item["score"], item["index"]))
        return {
            **self._rank_learned(question, passages),
            "evidence": [{**item, "rank": rank} for rank, item in enumerate(evidence, start=1)],
            "mass": float(output.mass[0]),
            "answerability": sigmoid(float(output.answerability_logits[0])),
        }

    def _rank_learned(self, question, passages):
        return self.rank(question, passages)

    def _answer(self, question: str, passages: Passages, permissions: Permissions = ()) -> str:
        """The answer in words of a reader that generates one.

        Raises:
            ValueError: as in `answer`.
        """
        if not _any_set(permissions):
            return self.model.answer(question, listed(passages), max_new_tokens=MAX_ANSWER)["answer"]
        tokens = self.model.generate(**self._overridden(question, passages, permissions), max_new_tokens=MAX_ANSWER)
        return self.model.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0].strip()

    def _overridden(self, question, passages, permissions):
        """What `forward` and `generate` take, `permission_override` included."""
        if not self.has_permission:
            raise ValueError(f"{self.name} has no permission to change; choose a model with one, or mask passages.")
        inputs = self.model.processor([question], [listed(passages)]).to(self.model.device)
        values = [math.nan if value is None else value for value in permissions]
        override = torch.tensor([values], dtype=torch.float32, device=self.model.device)
        return {**inputs, "permission_override": override}


class Selectors:
    """The allow-list, made at start; visitors choose from its names and can add nothing to it.

    Args:
        models: name -> model; the first is the one a visitor meets.
    """

    def __init__(self, models: Mapping[str, object]):
        if not models:
            raise ValueError("models is empty; give at least one.")
        self._by_name = {name: Selector(name, model) for name, model in models.items()}
        self.names = tuple(self._by_name)
        self.views = tuple(
            view for name, known in self._by_name.items() for view in (name, name + _OPEN)[: 1 + known.has_permission]
        )

    def __getitem__(self, name) -> Selector:
        if not isinstance(name, str) or name not in self._by_name:
            raise ValueError(f"model must be one of: {', '.join(self.names)}.")
        return self._by_name[name]

    def view(self, view, question: str, passages: Passages) -> dict:
        """The result of a model, or of the same model with every permission set to 1."""
        if not isinstance(view, str) or view not in self.views:
            raise ValueError(f"model must be one of: {'; '.join(self.views)}.")
        if view.endswith(_OPEN):
            return self[view.removesuffix(_OPEN)].rank(question, passages, (1.0,) * len(passages))
        return self[view].rank(question, passages)


def named(models) -> dict[str, object]:
    """An allow-list from a mapping, or from one model, which is called by the last part of its name or path."""
    if isinstance(models, Mapping):
        return dict(models)
    return {Path(str(models.name_or_path)).name or "model": models}


def listed(passages: Passages) -> list[dict]:
    """Passages as `rank` takes them."""
    return [{"text": text, **({} if title is None else {"title": title})} for title, text in passages]


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def _any_set(permissions: Permissions) -> bool:
    return any(value is not None for value in permissions)
