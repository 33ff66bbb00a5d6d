"""From text to ranked evidence: what a selector offers a person with a question and passages."""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np
import torch
from transformers import AutoTokenizer

from .base_weights import find_backbone
from .processing_evidence import EvidenceProcessor, check_list, check_question, full_text

REVOKE_BY = ("gate", "mask")


class EvidenceRankingMixin:
    """`rank` and `rank_batch` for a selector, with the processor of its checkpoint."""

    _processor = None
    _encoder_name = None  # encoder that `from_backbone` started from

    @property
    def processor(self) -> EvidenceProcessor:
        """The processor of the checkpoint or the encoder, read on first use. Assign one to a model built in code."""
        if self._processor is None:
            name = self._encoder_name or self.name_or_path
            if not name:
                raise ValueError("model.processor is not set; assign an EvidenceProcessor to it.")
            try:
                self._processor = self._read_processor(name)
            except Exception as error:  # from damaged files the parsers raise whatever they stumble over
                raise OSError(
                    f"{name} has no readable {'tokenizer' if self._encoder_name else 'processor'}; save the "
                    "EvidenceProcessor with the model, or assign one to model.processor."
                ) from error
        return self._processor

    def _read_processor(self, name):
        if self._encoder_name is None:
            # The config, because the loader of the tokenizer may not know its kind, and would read it once more.
            return EvidenceProcessor.from_pretrained(name, config=self.config, trust_remote_code=False, **self._source)
        tokenizer = AutoTokenizer.from_pretrained(find_backbone(name), trust_remote_code=False, **self._source)
        tokenizer.model_max_length = self.longest_input()
        return EvidenceProcessor(tokenizer, **self.processor_settings())

    @processor.setter
    def processor(self, value: EvidenceProcessor):
        self._processor = value

    def rank(
        self, question, passages, *, revoke=(), revoke_by="gate", top_k=None, return_tokens=False, progress=None
    ) -> dict:
        """Ranks passages by how much they support an answer to the question.

        Args:
            question (`str`): the question.
            passages (`list` of `str` or `{"text", "title"?, "id"?, ...}`): the candidates; other keys are kept.
            revoke (`list[int]`): input positions whose permission is withdrawn.
            revoke_by (`str`): `"gate"` sets the permission to 0: the passage's mass is removed, the others keep
                theirs, and it still stands in the denominator of the attention. `"mask"` leaves the passage out of
                the input, as if it had never been retrieved. Neither is an access control.
            top_k (`int`, *optional*): how many to return; all when not given.
            return_tokens (`bool`): add attention and permission of each token, with its characters in title or text.
            progress (callable, *optional*): hears `(windows read, windows in all)` while a long list is read.

        Returns:
            `{"question", "evidence": [...], "mass", "answerability", "notes"}`. Each evidence has `index` (position
            in the input), `rank` (from 1), `id`, `title`, `text`, `score` (logit), `probability`, `attention`,
            `permission`, `effective`, `revoked`, and `log_precision` (bounded) where the selector has
            `precision_features`; a key of the passage with one of these names is kept as `input_score` and so on.
            Equal scores rank in input order. The numbers are Python floats. Without any passage to read there is no
            evidence: the mass is 0, and scores and answerability are the lowest that the model gives.

        Raises:
            ValueError: an empty question, a passage without text, or an argument out of range.
        """
        settings = {"revoke_by": revoke_by, "top_k": top_k, "return_tokens": return_tokens, "progress": progress}
        return self.rank_batch([question], [passages], revoke=[revoke], **settings)[0]

    @torch.no_grad()
    def rank_batch(self, questions, passages, *, batch_size=8, revoke=None, **settings) -> list[dict]:
        """[`rank`] for many questions; results in input order, whatever the batching.

        Args:
            questions (`list[str]`), passages (`list[list]`), revoke (`list[list[int]]`, *optional*): one per question.
            batch_size (`int`): questions encoded at a time; questions of similar length share a batch.
            settings: `revoke_by`, `top_k`, `return_tokens` and `progress` of `rank`.
        """
        return self._rank_batch(questions, passages, batch_size, revoke, **settings)

    def _rank_batch(
        self,
        questions,
        passages,
        batch_size,
        revoke,
        *,
        revoke_by="gate",
        top_k=None,
        return_tokens=False,
        progress=None,
        **reading,
    ):
        """`rank_batch`; `reading` goes to `_read`."""
        _check_choices(top_k, revoke_by, batch_size)
        if isinstance(questions, str):
            raise ValueError("questions is one text; give a list of questions, or call rank().")
        check_list(questions, "questions", "questions")
        check_list(passages, "passages", "lists of passages")
        passages = [list(check_list(listed, f"passages[{row}]", "passages")) for row, listed in enumerate(passages)]
        revoke = [()] * len(questions) if revoke is None else check_list(revoke, "revoke", "lists of positions")
        if not len(questions) == len(passages) == len(revoke):
            raise ValueError(
                f"{len(questions)} questions, {len(passages)} passage lists and {len(revoke)} revoke lists; "
                "give one of each per question."
            )
        if not len(questions):
            return []
        revoke = [_revoked(given, len(listed), row) for row, (given, listed) in enumerate(zip(revoke, passages))]
        kept = [list(range(len(listed))) for listed in passages]
        if revoke_by == "mask":
            kept = [[at for at in keep if at not in closed] for keep, closed in zip(kept, revoke)]
        elif any(revoke) and not self.readout.variant.path:
            raise ValueError(
                f"revoke_by 'gate' needs a permission on the evidence path, and variant {self.config.variant!r} has "
                "none; use 'mask'."
            )
        for row, (question, listed) in enumerate(zip(questions, passages)):
            check_question(question, row)
            for at, passage in enumerate(listed):
                full_text(passage, f"passages[{row}][{at}]")  # also where it is masked
        read = [row for row, keep in enumerate(kept) if keep]
        given = [questions[row] for row in read], [[passages[row][at] for at in kept[row]] for row in read]
        places = [(row, kept[row]) for row in read]
        rows = dict(zip(read, self.processor.encode(*given, places=places))) if read else {}
        order = sorted(rows, key=lambda row: rows[row].input_ids.size)
        lowest = self.readout.lowest_logit()
        nothing = {"answerability_logits": self.readout.lowest_answerability_logit()}
        nothing |= {"mass": 0.0, "permission": ()} if self.readout.variant.path else {}
        nothing |= {"precision": ()} if self.readout.precision is not None else {}
        results = [
            _result(*asked[:2], {}, asked[2], nothing, lowest, None) | {"notes": ["No passage was left to read."]}
            for asked in zip(questions, passages, revoke)
        ]
        if progress is not None:
            reading["advance"] = _counted(progress, sum(len(row.input_ids) for row in rows.values()))
        in_training = [module for module in self.modules() if module.training]
        _set_training(in_training, False)
        try:
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                inputs = self._inputs(batch, rows, revoke if revoke_by == "gate" else None)
                output, width = self._read(inputs, **reading), inputs["input_ids"].shape[2]
                for at, row in enumerate(batch):
                    scores = {name: value[at] for name, value in output.items()}
                    tokens = _tokens(rows[row], scores, width) if return_tokens else None
                    places = {index: place for place, index in enumerate(kept[row])}
                    if self.config.packing == "isolated":
                        places = _shared_by_twins(places, passages[row], revoke[row], rows[row].features)
                    result = _result(questions[row], passages[row], places, revoke[row], scores, lowest, tokens)
                    result["evidence"] = result["evidence"][:top_k]
                    results[row] = result | {"notes": rows[row].notes}
        finally:
            _set_training(in_training, True)
        return results

    def _inputs(self, batch, rows, revoke):
        """What `forward` takes for some of the rows."""
        inputs = self.processor.pad([rows[row] for row in batch])
        override = None
        if revoke is not None and any(revoke[row] for row in batch):
            override = torch.full(inputs["candidate_mask"].shape, float("nan"))
            for at, row in enumerate(batch):
                override[at, list(revoke[row])] = 0.0
            override = override.to(self.device)
        return {**inputs.to(self.device), "permission_override": override}

    def _read(self, inputs, **settings) -> dict:
        """Scores of a batch as float tensors on the CPU, by name."""
        output = self(**inputs, **settings)
        if not torch.isfinite(output.logits[inputs["candidate_mask"]]).all():
            raise ValueError(
                f"The scores are not finite in {self.dtype}; load the model in bfloat16 or float32 instead."
            )
        return {name: value.float().cpu() for name, value in output.items() if value is not None}


def _set_training(modules, mode):
    # Not by train(), which would set parts too that were in the other mode.
    for module in modules:
        module.training = mode


def _shared_by_twins(places, passages, revoked, features):
    """Points equal passages at one place: their states are equal up to rounding, and rounding must not rank them."""
    first = {}
    keys = {
        index: (full_text(passages[index]), index in revoked, () if features is None else tuple(features[place]))
        for index, place in places.items()
    }
    return {index: first.setdefault(keys[index], place) for index, place in places.items()}


def _result(question, passages, places, revoked, scores, lowest, tokens):
    has_path = "permission" in scores
    evidence = []
    for index, passage in enumerate(passages):
        known = {"text": passage} if isinstance(passage, str) else dict(passage)
        position = places.get(index)
        item = {"index": index, "rank": 0, "id": known.get("id"), "title": known.get("title"), "text": known["text"]}
        item["score"] = lowest if position is None else float(scores["logits"][position])
        item["probability"] = _sigmoid(item["score"])
        for name in ("attention", "permission", "effective"):
            read = float(scores[name][position]) if has_path and position is not None else 0.0
            item[name] = read if has_path else None
        if "precision" in scores:
            item["log_precision"] = None if position is None else float(scores["precision"][position])
        item["revoked"] = index in revoked
        taken = item.keys() - {"id", "title", "text"} | (set() if tokens is None else {"tokens"})
        item |= {f"input_{key}" if key in taken else key: value for key, value in known.items()}
        if tokens is not None:
            item["tokens"] = _in_fields(tokens.get(position, []), known)
        evidence.append(item)
    evidence.sort(key=lambda item: -item["score"])  # stable: equal scores in input order
    for rank, item in enumerate(evidence, 1):
        item["rank"] = rank
    result = {
        "question": question,
        "evidence": evidence,
        "mass": float(scores["mass"]) if has_path else None,
        "answerability": _sigmoid(float(scores["answerability_logits"])),
    }
    return result | ({"answer": scores["answer"]} if "answer" in scores else {})


def _counted(progress, total):
    done = 0

    def advance(count):
        nonlocal done
        done += count
        progress(done, total)

    return advance


def _tokens(encoded, scores, width):
    """Candidate -> `(start, end, attention, permission)` of its tokens, by characters of `title: text`.

    Separators have no characters and are left out, so the attention of the tokens sums to less than the candidate's.
    """
    if "item_attention" not in scores:
        return {}
    windows, places = np.nonzero(encoded.segment_ids > 0)
    owners = encoded.item_candidates[encoded.segment_ids[windows, places] - 1]
    starts, ends = encoded.offsets[windows, places].T
    flat = torch.from_numpy(windows * width + places)
    attention, permission = scores["item_attention"][flat].tolist(), scores["item_permission"][flat].tolist()
    found = {}
    for owner, *token in zip(owners.tolist(), starts.tolist(), ends.tolist(), attention, permission):
        if token[1] > token[0]:
            found.setdefault(owner, []).append(token)
    return found


def _in_fields(tokens, known):
    """Tokens of `title: text` as tokens of title or text; those of the separating colon are left out."""
    lead = len(full_text(known)) - len(known["text"])
    placed = []
    for start, end, attention, permission in tokens:
        field, shift = ("title", 0) if start < lead - 2 else ("text", lead)
        if end > shift:
            span = {"start": max(start - shift, 0), "end": end - shift, "field": field}
            placed.append(span | {"attention": attention, "permission": permission})
    return placed


def _sigmoid(logit):
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def _check_choices(top_k, revoke_by, batch_size):
    if top_k is not None and not (_is_whole(top_k) and top_k >= 0):
        raise ValueError(f"top_k is {top_k!r}; give a whole number of 0 or more, or None for all.")
    if revoke_by not in REVOKE_BY:
        raise ValueError(f"revoke_by is {revoke_by!r}; choose 'gate' or 'mask'.")
    if not (_is_whole(batch_size) and batch_size >= 1):
        raise ValueError(f"batch_size is {batch_size!r}; give a whole number of 1 or more.")


def _revoked(indices, count, row):
    """The set of revoked positions, checked."""
    indices = () if indices is None else indices
    if not hasattr(indices, "__iter__") or isinstance(indices, str):
        raise ValueError(f"revoke is {indices!r} for question {row}; give a list of positions.")
    indices = list(indices)
    for index in indices:
        if not (_is_whole(index) and 0 <= index < count):
            raise ValueError(
                f"revoke: {index!r} is not a passage of question {row}; give positions from 0 to {count - 1}."
            )
    return {int(index) for index in indices}


def _is_whole(value):
    return isinstance(value, Integral) and not isinstance(value, bool)  # NumPy's integers too


__all__ = ["EvidenceRankingMixin"]
