"""Inputs of the retained-passage study: HotpotQA questions with four passages, complete or with one gold passage less.

An input has both gold passages and two distractors. One gold passage is drawn, and

    complete    is the input as it is
    removed     lacks that passage
    replaced    has a third distractor in its place: as many passages as complete, and all in the same places

The distractors are the three that share most words with the question; which of them is the third is drawn. A passage
whose text occurs twice in a row of the data is taken once. All draws depend on the question's id alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from frozen_states import FrozenEncoder

from warrant_hf.data.candidates import question_overlap, seeded_random, shuffled
from warrant_hf.data.readers import read_rows

CONDITIONS = ("complete", "removed", "replaced")
WINDOW_TOKENS = 460  # of four passages; with question and special tokens they fill the encoder's window of 512
QUESTION_TOKENS = 40
READERS = ("encoder", "fid")


@dataclass
class Question:
    """Five passages as token ids: `slots` are places of the complete input, `filler` is the third distractor."""

    id: str
    answer: str
    question: list[int]
    passages: list[list[int]]  # the four slots, then the filler
    removed: int  # slot of the gold passage that goes
    is_shortened: bool

    def places(self, condition: str) -> list[int]:
        """Which of the five passages an input holds, in order."""
        if condition == "removed":
            return [slot for slot in range(4) if slot != self.removed]
        return [4 if condition == "replaced" and slot == self.removed else slot for slot in range(4)]


@dataclass
class Item:
    """One input of a reader.

    Attributes:
        question: `[Q, W]`, states of the question's tokens.
        passages: list of `[T_i, W]`, states of each passage's tokens.
        token_ids: `[sum T_i]`.
    """

    question: torch.Tensor
    passages: list[torch.Tensor]
    token_ids: torch.Tensor


def load_questions(path: Path, encoder: FrozenEncoder, limit: int | None = None) -> list[Question]:
    """Questions with two gold passages and three distractors; yes/no questions are left out, as their answer is not
    in any passage."""
    found = []
    for row in read_rows(path, format="hotpotqa", level="passage"):
        distinct = list({candidate.text: candidate for candidate in row.candidates}.values())
        golds = [candidate for candidate in distinct if candidate.label]
        others = [candidate for candidate in distinct if not candidate.label]
        if len(found) == limit:
            break
        if row.answer.strip().casefold() in ("yes", "no") or len(golds) != 2 or len(others) < 3:
            continue
        rng = seeded_random("retained", row.id)
        others.sort(key=lambda candidate: -question_overlap(row.question, candidate.text))
        *kept, filler = shuffled(others[:3], rng)
        slots = shuffled([*golds, *kept], rng)
        removed = shuffled([slot for slot, candidate in enumerate(slots) if candidate.label], rng)[0]
        ids = [encoder.ids(f"{candidate.title}. {candidate.text}") for candidate in [*slots, filler]]
        room = _room([len(passage) for passage in ids])
        found.append(
            Question(
                id=row.id,
                answer=row.answer.strip(),
                question=encoder.ids(row.question)[:QUESTION_TOKENS],
                passages=[passage[:room] for passage in ids],
                removed=removed,
                is_shortened=any(len(passage) > room for passage in ids),
            )
        )
    return found


def _room(lengths):
    """The most tokens a passage may have, so that any four of them fit."""
    room = max(lengths)
    while sum(sorted(min(length, room) for length in lengths)[-4:]) > WINDOW_TOKENS:
        room -= 1
    return room


def frozen_items(
    questions: list[Question], encoder: FrozenEncoder, reader: str, conditions: tuple[str, ...]
) -> dict[str, list[Item]]:
    """`{condition: [Item of each question]}`.

    "encoder": question and all passages in one window, so that passages see each other. "fid": each passage in a
    window with the question, and the question's own states from a window of its own.
    """
    if reader == "encoder":
        return {condition: _joint(questions, encoder, condition) for condition in conditions}
    alone = encoder.states([encoder.window(question.question, []) for question in questions])
    windows = [encoder.window(question.question, passage) for question in questions for passage in question.passages]
    states, items = encoder.states(windows), {condition: [] for condition in conditions}
    for at, question in enumerate(questions):
        start = len(question.question) + 2  # [CLS] question [SEP]
        passages = [state[start:-1].clone() for state in states[5 * at : 5 * at + 5]]
        for condition in conditions:
            places = question.places(condition)
            ids = torch.tensor([token for place in places for token in question.passages[place]])
            items[condition].append(Item(alone[at][1:-1], [passages[place] for place in places], ids))
    return items


def _joint(questions, encoder, condition):
    ids = [[t for place in question.places(condition) for t in question.passages[place]] for question in questions]
    states = encoder.states([encoder.window(q.question, passages) for q, passages in zip(questions, ids, strict=True)])
    items = []
    for question, passages, state in zip(questions, ids, states, strict=True):
        start = len(question.question) + 2
        items.append(Item(state[1 : start - 1].clone(), [state[start:-1].clone()], torch.tensor(passages)))
    return items


def principal_axes(items: list[Item], width: int) -> torch.Tensor:
    """`[width, 384]`, orthonormal: the axes on which the passages' states of these items vary most."""
    torch.manual_seed(0)
    states = torch.cat([state[::20] for item in items for state in item.passages]).float()
    return torch.pca_lowrank(states, width)[2].T.contiguous()


def compress(items: list[Item], axes: torch.Tensor) -> list[Item]:
    """The items with states on these axes, which is a third of the work for every reader."""
    axes = axes.to(torch.bfloat16)
    return [Item(item.question @ axes.T, [s @ axes.T for s in item.passages], item.token_ids) for item in items]


@dataclass
class Batch:
    """question `[B, Q, W]`, question_padding `[B, Q]`, tokens `[B, T, W]`, padding `[B, T]` (True = not read)."""

    question: torch.Tensor
    question_padding: torch.Tensor
    tokens: torch.Tensor
    padding: torch.Tensor


def collate(items: list[Item], dtype: torch.dtype, masks_repeats: bool = False) -> Batch:
    """A padded batch; `masks_repeats` hides every token whose word piece stood earlier in the same input."""
    question = torch.nn.utils.rnn.pad_sequence([item.question for item in items], batch_first=True)
    tokens = torch.nn.utils.rnn.pad_sequence([torch.cat(item.passages) for item in items], batch_first=True)
    sizes = torch.tensor([[len(item.question), len(item.token_ids)] for item in items])
    question_padding = torch.arange(question.shape[1]) >= sizes[:, :1]
    padding = torch.arange(tokens.shape[1]) >= sizes[:, 1:]
    if masks_repeats:
        for row, item in enumerate(items):
            padding[row, : len(item.token_ids)] = ~_is_first(item.token_ids)
    return Batch(question.to(dtype), question_padding, tokens.to(dtype), padding)


def _is_first(ids):
    """`[T]`: whether a value stands here for the first time."""
    seen, first = set(), []
    for token in ids.tolist():
        first.append(token not in seen)
        seen.add(token)
    return torch.tensor(first)
