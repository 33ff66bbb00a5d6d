"""Text to windows: question and candidates become token ids, segments and the map from items to candidates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin

QUESTION, PADDING = 0, -1
PACKINGS = ("shared", "single", "pair")
# Two tokens around the question, and an item of at least one token with its separator beside half a window of it.
_SMALLEST_WINDOW = 8
_LARGEST = float(np.finfo(np.float32).max)
# Half of a surrogate pair: JSON can spell it, no tokenizer takes it.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class EncodedEvidence:
    """One question with its candidates, packed.

    Args:
        input_ids, segment_ids (`[W, N]` int64 arrays): see [`WarrantEncoderForEvidenceSelection`].
        offsets (`[W, N, 2]`): characters of each token in its candidate's text as tokenized (`title: text`).
        item_candidates (`[S]`): candidate of each item.
        candidates (`int`): number of candidates.
        features (`[C, F]` float32 array, *optional*): the numbers that the processor's `features` name.
        notes (`list[str]`): what was shortened or split, in sentences.
    """

    input_ids: np.ndarray
    segment_ids: np.ndarray
    offsets: np.ndarray
    item_candidates: np.ndarray
    candidates: int
    features: np.ndarray | None = None
    notes: list = field(default_factory=list)


class EvidenceProcessor(ProcessorMixin):
    """Packs a question and its candidates into windows of one encoder.

    A window reads `[CLS] question [SEP] candidate [SEP] candidate [SEP] ...`; a candidate reads `title: text`. No
    candidate is dropped and no text is cut: what does not fit goes to the next window, and a candidate longer than a
    window is split into several items, which is reported. Text that spells a special token is no special token: it is
    read as text, or as unknown where the vocabulary has no other pieces for it.

    Args:
        tokenizer: any fast tokenizer with a separator or end token.
        max_length (`int`): tokens in a window, question included; the tokenizer's `model_max_length` if that is less.
            A candidate that is longer is split.
        max_question_tokens (`int`): a longer question is cut at its end, which is reported; half a window at most.
        packing (`str`): `"shared"` puts as many candidates into a window as fit; `"single"` gives each a window of its
            own (Fusion-in-Decoder), and so does `"pair"`, with the special tokens that the tokenizer puts around two
            texts (cross-encoders).
        answers (`bool`): the model is trained on answers too; [`EvidenceCollator`] adds them.
        features (`list[str]`, *optional*): keys of a passage (nested ones by dots, `"source.reliability"`) whose
            numbers are handed to the model as `candidate_features`; every passage must have them.
        window_length (`int`, *optional*): tokens in a window that several candidates share, where that is more than
            `max_length`. For a model in which they do not see each other and each has the positions that it would have
            alone behind the question (`packing="isolated"`): scores are the same in windows of any length, and the
            question is read once for more candidates.
    """

    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(
        self,
        tokenizer=None,
        max_length: int = 512,
        max_question_tokens: int = 128,
        packing: str = "shared",
        answers: bool = False,
        features: list[str] | None = None,
        window_length: int | None = None,
        **kwargs,
    ):
        if tokenizer is None or not getattr(tokenizer, "is_fast", False):
            raise ValueError("tokenizer: a fast tokenizer is needed, because tokens are mapped back to characters.")
        if tokenizer.sep_token_id is None and tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: it has no separator token; set sep_token or eos_token.")
        if max_question_tokens < 1:
            raise ValueError(f"max_question_tokens is {max_question_tokens}; it must be 1 or more.")
        if max_length < max(2 * max_question_tokens, _SMALLEST_WINDOW):
            raise ValueError(
                f"max_length is {max_length}; it must be at least {_SMALLEST_WINDOW} and twice max_question_tokens "
                f"({max_question_tokens})."
            )
        if packing not in PACKINGS:
            raise ValueError(f"packing is {packing!r}; choose one of {', '.join(map(repr, PACKINGS))}.")
        if window_length is not None and (packing != "shared" or window_length < 1):
            raise ValueError(
                f"window_length is {window_length} with packing {packing!r}; give 1 or more for packing 'shared', or "
                "leave it out."
            )
        self.max_length, self.max_question_tokens = max_length, max_question_tokens
        self.window_length = window_length
        self.packing, self.answers, self.features = packing, answers, features
        super().__init__(tokenizer, **kwargs)
        special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        special = (special | set(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
        self._special_ids = np.array(sorted(special), dtype=np.int64)
        self._frame = self._around_a_pair() if packing == "pair" else self._around()
        self._tokenize(["a"])  # sets the backend's switches, which must not change while a thread is inside it

    @property
    def model_input_names(self):
        names = ["input_ids", "segment_ids", "item_candidates", "candidate_mask"]
        return names if self.features is None else [*names, "candidate_features"]

    def __call__(self, questions, passages, return_tensors="pt", **kwargs) -> BatchFeature:
        """Packs and pads one question with its passages, or a list of questions with a list of passage lists.

        Args:
            questions (`str` or `list[str]`), passages (`list` or `list[list]` of `str` or `{"text", "title"?}`).
            return_tensors (`str`): `"pt"`, the only kind there is.

        Returns:
            `BatchFeature` of tensors `input_ids`, `segment_ids` `[B, W, N]`, `item_candidates` `[B, S]`,
            `candidate_mask` `[B, C]`, and with `features` `candidate_features` `[B, C, F]`.

        Raises:
            ValueError: an empty question, no passages, a passage without text, or another kind of tensors.
        """
        if return_tensors != "pt":
            raise ValueError(f"return_tensors is {return_tensors!r}; a selector takes PyTorch tensors, 'pt'.")
        if isinstance(questions, str):
            questions, passages = [questions], [passages]
        return self.pad(self.encode(questions, passages), **kwargs)

    def encode(self, questions, passages, places=None) -> list[EncodedEvidence]:
        """Tokenizes and packs without padding rows against each other; see `__call__`.

        `places` (`list` of `(row, positions)`, *optional*) says where questions and passages stood in a longer input;
        notes and errors name these.
        """
        check_list(questions, "questions", "questions")
        check_list(passages, "passages", "lists of passages")
        if len(questions) != len(passages):
            raise ValueError(f"questions: {len(questions)} for {len(passages)} passage lists; give one list each.")
        check_lists(passages)
        if places is None:
            places = [(row, range(len(listed))) for row, listed in enumerate(passages)]
        texts = []
        for (row, positions), question, listed in zip(places, questions, passages):
            check_question(question, row)
            texts.append([full_text(passage, f"passages[{row}][{at}]") for at, passage in zip(positions, listed)])
        flat = self._tokenize(list(questions) + [text for listed in texts for text in listed])
        rows, start = [], len(questions)
        for row, listed in enumerate(texts):
            rows.append(self._pack(flat[row], flat[start : start + len(listed)], places[row][1]))
            rows[-1].features = self._numbers(passages[row], *places[row])
            start += len(listed)
        return rows

    def pad(self, rows: list[EncodedEvidence], pad_to_multiple_of: int = 8) -> BatchFeature:
        """Stacks packed rows: windows and tokens are padded with segment -1."""
        windows = max(len(row.input_ids) for row in rows)
        tokens = max(row.input_ids.shape[1] for row in rows)
        tokens = -(-tokens // pad_to_multiple_of) * pad_to_multiple_of
        shape = (len(rows), windows, tokens)
        input_ids = np.full(shape, self.tokenizer.pad_token_id or 0)
        segment_ids = np.full(shape, PADDING)
        items = np.full((len(rows), max(len(row.item_candidates) for row in rows)), -1)
        candidates = np.zeros((len(rows), max(row.candidates for row in rows)), dtype=bool)
        for at, row in enumerate(rows):
            height, width = row.input_ids.shape
            input_ids[at, :height, :width] = row.input_ids
            segment_ids[at, :height, :width] = row.segment_ids
            items[at, : len(row.item_candidates)] = row.item_candidates
            candidates[at, : row.candidates] = True
        arrays = {"input_ids": input_ids, "segment_ids": segment_ids, "item_candidates": items}
        arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.features is not None:
            numbers = np.zeros((*candidates.shape, len(self.features)), dtype=np.float32)
            for at, row in enumerate(rows):
                numbers[at, : row.candidates] = row.features
            arrays["candidate_features"] = torch.from_numpy(numbers)
        return BatchFeature(arrays | {"candidate_mask": torch.from_numpy(candidates)})

    def encode_answers(self, answers: list[str | None]) -> torch.Tensor:
        """Token ids `[B, A]` of answers, the end token included; -100 behind them and where an answer is `None`."""
        known = [answer for answer in answers if answer is not None]
        found = iter(self._tokenize(known) if known else ())
        rows = [None if answer is None else np.append(next(found)[0], self._end) for answer in answers]
        labels = np.full((len(rows), max((len(row) for row in rows if row is not None), default=1)), -100)
        for at, row in enumerate(rows):
            if row is not None:
                labels[at, : len(row)] = row
        return torch.from_numpy(labels)

    @property
    def _end(self):
        return self.tokenizer.sep_token_id if self.tokenizer.sep_token_id is not None else self.tokenizer.eos_token_id

    def _around(self):
        """Special tokens before the question, behind it, and behind each item."""
        begin = self.tokenizer.cls_token_id if self.tokenizer.cls_token_id is not None else self.tokenizer.bos_token_id
        return [] if begin is None else [begin], [self._end], [self._end]

    def _around_a_pair(self):
        """The same as the tokenizer itself has them around two texts; `_around` where it has none."""
        pair = self.tokenizer("a", "a")
        ids, texts = pair["input_ids"], pair.sequence_ids()
        if not {0, 1} <= set(texts) or len(set(texts)) < 3:
            return self._around()
        first, second = texts.index(0), texts.index(1)
        stop, last = len(texts) - texts[::-1].index(0), len(texts) - texts[::-1].index(1)
        return ids[:first], ids[stop:second], ids[last:]

    def _numbers(self, passages, row, positions):
        if self.features is None:
            return None
        numbers = np.zeros((len(passages), len(self.features)), dtype=np.float32)
        for at, passage in enumerate(passages):
            for column, name in enumerate(self.features):
                value = passage
                for key in name.split("."):
                    value = value.get(key) if isinstance(value, dict) else None
                is_number = isinstance(value, Real) and not isinstance(value, bool)
                if not is_number or not abs(value) <= _LARGEST:
                    raise ValueError(
                        f"passages[{row}][{positions[at]}].{name} is {_short(value)}; this selector's precision needs "
                        "a finite number there, of a size that float32 holds."
                    )
                numbers[at, column] = value
        return numbers

    def _tokenize(self, texts):
        encoded = self.tokenizer(
            texts,
            add_special_tokens=False,
            split_special_tokens=True,
            truncation=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        ids, offsets = (list(chain.from_iterable(encoded[name])) for name in ("input_ids", "offset_mapping"))
        ids, offsets = self._as_text(np.array(ids, np.int64)), np.array(offsets, np.int64).reshape(-1, 2)
        ends = np.cumsum([len(text) for text in encoded["input_ids"]])[:-1]
        return list(zip(np.split(ids, ends), np.split(offsets, ends)))

    def _as_text(self, ids):
        # A vocabulary of whole words or sentence pieces can hold the special tokens as ordinary pieces.
        spelled = np.isin(ids, self._special_ids)
        unknown = self.tokenizer.unk_token_id
        if unknown is None and spelled.any():
            token = self.tokenizer.convert_ids_to_tokens(int(ids[spelled][0]))
            raise ValueError(
                f"A text spells {token!r}, a special token that this tokenizer cannot read as text; set its unk_token."
            )
        return np.where(spelled, unknown, ids) if spelled.any() else ids

    def _pack(self, question, candidates, positions) -> EncodedEvidence:
        limit = min(self.max_length, self.tokenizer.model_max_length)  # a tokenizer without a limit reports 1e30
        if limit < _SMALLEST_WINDOW:
            raise ValueError(f"tokenizer.model_max_length is {limit}; it must be at least {_SMALLEST_WINDOW}.")
        begin, middle, end = self._frame
        notes, words = [], question[0]
        allowed = min(self.max_question_tokens, limit // 2, limit - len(begin) - len(middle) - len(end) - 1)
        if len(words) > allowed:
            notes.append(f"The question has {len(words)} tokens; only its first {allowed} were read.")
            words = words[:allowed]
        head = np.concatenate([begin, words, middle]).astype(np.int64)
        room = limit - len(head)

        pieces, owners = [], []  # each piece: ids and offsets of one item, its separator included
        for at, (ids, offsets) in enumerate(candidates):
            parts = max(1, -(-len(ids) // (room - len(end))))
            if parts > 1:
                notes.append(f"Passage {positions[at]} has {len(ids)} tokens; it was read in {parts} parts.")
            for ids_part, offsets_part in zip(np.array_split(ids, parts), np.array_split(offsets, parts)):
                pieces.append(
                    (np.append(ids_part, end), np.vstack([offsets_part, np.zeros((len(end), 2), dtype=np.int64)]))
                )
                owners.append(at)
        room = max(limit, self.window_length or 0) - len(head)
        # Next-fit in input order, with windows closed early so that they come out about equally long: a row is padded
        # to its longest window.
        total = sum(len(ids) for ids, _ in pieces)
        share = total / -(-total // room)
        window, used, places = 0, 0, []
        for ids, _ in pieces:
            is_full = used + len(ids) > room or used + len(ids) / 2 > share
            if used and (is_full or self.packing != "shared"):
                window, used = window + 1, 0
            places.append(window)
            used += len(ids)
        groups = np.split(np.arange(len(pieces)), np.flatnonzero(np.diff(places)) + 1)
        width = len(head) + max(sum(len(pieces[i][0]) for i in group) for group in groups)
        input_ids = np.full((len(groups), width), self.tokenizer.pad_token_id or 0)
        segment_ids = np.full((len(groups), width), PADDING)
        spans = np.zeros((len(groups), width, 2), dtype=np.int64)
        for at, group in enumerate(groups):
            sizes = [len(pieces[i][0]) for i in group]
            stop = len(head) + sum(sizes)
            input_ids[at, :stop] = np.concatenate([head, *(pieces[i][0] for i in group)])
            segment_ids[at, :stop] = np.concatenate([np.full(len(head), QUESTION), np.repeat(group + 1, sizes)])
            spans[at, len(head) : stop] = np.concatenate([pieces[i][1] for i in group])
        return EncodedEvidence(input_ids, segment_ids, spans, np.array(owners), len(candidates), notes=notes)


def check_question(question, row=0):
    """Raises a `ValueError` for a question that is not text."""
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question {row} is {_short(question)}; give a text that is not empty.")
    _check_characters(question, f"question {row}")


def check_list(value, place, of):
    """Raises a `ValueError` for what has no length or no order; lists, tuples, arrays and columns have both."""
    ordered = hasattr(value, "__len__") and hasattr(value, "__getitem__") and getattr(value, "shape", None) != ()
    if not ordered or isinstance(value, (str, bytes, Mapping)):
        raise ValueError(f"{place} is a {type(value).__name__}; give a list of {of}.")
    return value


def check_lists(passages):
    """Raises a `ValueError` for a row without passages, or for one text where a list is due."""
    for row, listed in enumerate(check_list(passages, "passages", "lists of passages")):
        check_list(listed, f"passages[{row}]", "passages")
        if not len(listed):
            raise ValueError(f"passages[{row}] is empty; give at least one passage.")
    return passages


def full_text(passage, place="passage"):
    """`title: text` of a passage given as `str` or `{"text", "title"?}`."""
    if isinstance(passage, str):
        passage = {"text": passage}
    if not isinstance(passage, dict) or not isinstance(passage.get("text"), str):
        raise ValueError(f"{place} is {_short(passage)}; give a text, or a dict with the key 'text'.")
    if not passage["text"].strip():
        raise ValueError(f"{place} has an empty text; leave the passage out or give it words.")
    title = passage.get("title")
    if title is not None and not isinstance(title, str):
        raise ValueError(f"{place}.title is {_short(title)}; give a text or leave it out.")
    _check_characters(passage["text"], place)
    _check_characters(title or "", f"{place}.title")
    return f"{title}: {passage['text']}" if title else passage["text"]


def _check_characters(text, place):
    half = _SURROGATE.search(text)
    if half:
        raise ValueError(f"{place} has half a surrogate pair at character {half.start()}; write the whole character.")


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


__all__ = ["EncodedEvidence", "EvidenceProcessor", "check_list", "check_lists", "check_question", "full_text"]
