"""The allow-list of models, and what the page asks of one: a result as of `rank`, with permissions of one's choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from operator import methodcaller
from pathlib import Path

import torch

from ..modeling.processing_evidence import full_text
from .inputs import Passages
from .zero_gpu import on_gpu

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
        #: `run(work)` is `work(model)`. Everything that needs the weights later on goes through it.
        self.run = on_gpu(lambda work: work(model))
        self.beta = model.readout.beta.item() if self.has_permission else None
        self._rank = lru_cache(maxsize=_REMEMBERED)(self._ranked)
        self._answer = lru_cache(maxsize=_REMEMBERED)(self._answered)

    @property
    def calibration(self) -> dict | None:
        """What the answerability of the model is calibrated on; `None` if it is not."""
        return self.model.config.answerability_calibration

    def rank(self, question: str, passages: Passages, permissions: Permissions = ()) -> dict:
        """What `rank` returns, tokens included; with `permissions`, what `permission_override` makes of it.

        Raises:
            ValueError: as in `rank`, or permissions for a model that has none.
        """
        return self._rank(question, passages, self._set(permissions))

    def answer(self, question: str, passages: Passages, permissions: Permissions = ()) -> str:
        """The answer in words of a reader that generates one.

        Raises:
            ValueError: as in `answer`, or permissions for a model that has none.
        """
        return self._answer(question, passages, self._set(permissions))

    def _set(self, permissions):
        """The permissions, or `()` where all are as learned: the same question, to be read once."""
        if all(value is None for value in permissions):
            return ()
        if not self.has_permission:
            raise ValueError(f"{self.name} has no permission to change; choose a model with one, or mask passages.")
        return permissions

    def _ranked(self, question, passages, permissions):
        if not permissions:
            return self.run(methodcaller("rank", question, listed(passages), return_tokens=True))
        learned = self.rank(question, passages)
        scored = self.run(partial(_scored, question=question, passages=passages, permissions=permissions))
        evidence = []
        for item in learned["evidence"]:
            at = item["index"]
            item = {**item, **scored["evidence"][at]}
            if permissions[at] is not None:
                item["revoked"] = permissions[at] == 0
                item["tokens"] = [{**token, "permission": permissions[at]} for token in item["tokens"]]
            evidence.append(item)
        evidence.sort(key=lambda item: (-item["score"], item["index"]))
        ranked = [{**item, "rank": rank} for rank, item in enumerate(evidence, start=1)]
        return {**learned, **scored, "evidence": ranked}

    def _answered(self, question, passages, permissions):
        if not permissions:
            return self.run(methodcaller("answer", question, listed(passages), max_new_tokens=MAX_ANSWER))["answer"]
        return self.run(partial(_generated, question=question, passages=passages, permissions=permissions))


def _scored(model, question, passages, permissions) -> dict:
    """The scores with permissions of one's choice, as plain numbers; the evidence in input order."""
    with torch.no_grad():
        output = model(**_overridden(model, question, passages, permissions))
    columns = (output[name][0].tolist() for name in ("logits", "attention", "permission", "effective"))
    evidence = [
        {
            "score": score,
            "probability": sigmoid(score),
            "attention": attention,
            "permission": permission,
            "effective": effective,
        }
        for score, attention, permission, effective in zip(*columns, strict=True)
    ]
    if model.config.packing == "isolated":
        # As in `rank`: equal passages are equal up to rounding, and rounding must not rank them.
        first: dict = {}
        twins = zip(listed(passages), permissions, strict=True)
        evidence = [
            evidence[first.setdefault((full_text(passage), permission), at)]
            for at, (passage, permission) in enumerate(twins)
        ]
    return {
        "evidence": evidence,
        "mass": float(output.mass[0]),
        "answerability": sigmoid(float(output.answerability_logits[0])),
    }


def _generated(model, question, passages, permissions) -> str:
    """The answer with permissions of one's choice."""
    tokens = model.generate(**_overridden(model, question, passages, permissions), max_new_tokens=MAX_ANSWER)
    return model.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0].strip()


def _overridden(model, question, passages, permissions) -> dict:
    """What `forward` and `generate` take, `permission_override` included."""
    inputs = model.processor([question], [listed(passages)]).to(model.device)
    values = [math.nan if value is None else value for value in permissions]
    return {**inputs, "permission_override": torch.tensor([values], dtype=torch.float32, device=model.device)}


class Selectors:
    """The allow-list, made at start; visitors choose from its names and can add nothing to it.

    Args:
        models: name -> model; the first is the one a visitor meets.
    """

    def __init__(self, models: Mapping[str, object]):
        if not models:
            raise ValueError("models is empty; give at least one.")
        for name in models:
            if name.endswith(_OPEN):
                raise ValueError(
                    f"The model name {name!r} ends with {_OPEN!r}, which names a variant; choose another."
                )
        self._by_name = {name: Selector(name, model) for name, model in models.items()}
        self.names = tuple(self._by_name)
        self.views = tuple(
            view for name, known in self._by_name.items() for view in (name, name + _OPEN)[: 1 + known.has_permission]
        )

    def __getitem__(self, name) -> Selector:
        if not isinstance(name, str) or name not in self._by_name:
            raise ValueError(f"model must be one of: {', '.join(self.names)}.")
        return self._by_name[name]

    def behind(self, view) -> Selector:
        """The model of a view."""
        if not isinstance(view, str) or view not in self.views:
            raise ValueError(f"model must be one of: {'; '.join(self.views)}.")
        return self[view.removesuffix(_OPEN)]

    def view(self, view, question: str, passages: Passages) -> dict:
        """The result of a model, or of the same model with every permission set to 1."""
        selector = self.behind(view)
        return selector.rank(question, passages, (1.0,) * len(passages) if view.endswith(_OPEN) else ())


def named(models) -> dict[str, object]:
    """An allow-list from a mapping, or from one model."""
    return dict(models) if isinstance(models, Mapping) else {short(models.name_or_path): models}


def short(name_or_path) -> str:
    """What visitors call a model: the last part of its name or path."""
    return Path(str(name_or_path)).name or "model"


def listed(passages: Passages) -> list[dict]:
    """Passages as `rank` takes them."""
    return [{"text": text, **({} if title is None else {"title": title})} for title, text in passages]


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
