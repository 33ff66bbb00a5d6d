"""Candidate lists for training and evaluation: which distractors stand beside the evidence, in which order.

Every draw is a function of (seed, row id) alone: it does not depend on the order of a data set, on other rows, on
PYTHONHASHSEED or on the platform, so a run that is resumed, sharded or shuffled sees the same lists. Only
`random.Random.random` is used, the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from .schema import DataError, EvidenceRow

T = TypeVar("T")

_WORD = re.compile(r"\w+")


def seeded_random(*parts: Any) -> random.Random:
    """A generator that depends on nothing but the text of `parts`."""
    return random.Random("\x1f".join(map(str, parts)))  # str seeds go through SHA-512, not through hash()


def shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def question_overlap(question: str, text: str) -> float:
    """Share of the question's words that occur in the text (case folded, as sets)."""
    words = set(_WORD.findall(question.casefold()))
    return len(words & set(_WORD.findall(text.casefold()))) / len(words) if words else 0.0


def build_candidates(
    row: EvidenceRow,
    *,
    size: int | None = 8,
    hard: int = 4,
    hard_pool: int | None = None,
    seed: int | str = 0,
) -> EvidenceRow:
    """A short, shuffled candidate list: all evidence, the hardest distractors, and random ones up to `size`.

    * All gold candidates are kept. A row with `size` or more golds gets a list of exactly its golds: the list grows.
    * Then up to `hard` distractors: those the row marks with kind "hard" if there are any, else all distractors, by
      `question_overlap` of their text (without the title), highest first; equal overlaps in input order. With
      `hard_pool` they are drawn at random from the best `hard_pool` instead of being the very best.
    * Then distractors drawn at random from the rest. A row with too few distractors gets a shorter list.
    * `size=None` keeps every candidate; the `hard` best count as hard.

    Kinds become "gold", "hard" and "random"; a distractor that already has a kind keeps it. This is the list of the
    Warranted Attention experiments (2 gold, 4 hard, 2 random), except that third and later golds are not dropped.

    Raises:
        DataError: if the row has unlabelled candidates.
    """
    labels = _labels(row)
    if (size is not None and size < 1) or hard < 0:
        raise ValueError(f"size={size}, hard={hard}: use size of at least 1 (or None) and hard of at least 0.")
    rng = seeded_random("candidates", seed, row.id)
    golds = [i for i, label in enumerate(labels) if label]
    negatives = [i for i, label in enumerate(labels) if not label]
    room = len(negatives) if size is None else max(size - len(golds), 0)

    marked = [i for i in negatives if row.candidates[i].kind == "hard"]
    overlap = {i: question_overlap(row.question, row.candidates[i].text) for i in marked or negatives}
    hardest = sorted(overlap, key=lambda i: -overlap[i])  # stable: ties in input order
    if hard_pool is not None:
        hardest = shuffled(hardest[: max(hard_pool, hard)], rng)
    hardest = hardest[: min(hard, room)]
    chosen = set(hardest)
    rest = shuffled([i for i in negatives if i not in chosen], rng)[: room - len(hardest)]

    kinds = dict.fromkeys(golds, "gold")
    kinds.update((i, row.candidates[i].kind or "hard") for i in hardest)
    kinds.update((i, row.candidates[i].kind or "random") for i in rest)
    order = shuffled(sorted(kinds), rng)
    return row.with_candidates([row.candidates[i].model_copy(update={"kind": kinds[i]}) for i in order])


def missing_gold(
    row: EvidenceRow, *, none_rate: float = 0.25, one_rate: float = 0.25, seed: int | str = 0
) -> EvidenceRow:
    """The row with all its golds removed (probability `none_rate`), one of them (`one_rate`), or as it is.

    With `none_rate=1` this gives the "evidence removed" half of an abstention test. Where all candidates are gold
    nothing would be left, so nothing is removed.
    """
    rng = seeded_random("missing_gold", seed, row.id)
    return _kept(row, _incomplete(_labels(row), none_rate, one_rate, rng))


def without_evidence(
    row: EvidenceRow, listed: EvidenceRow, *, hard: int = 4, seed: int | str = 0
) -> EvidenceRow | None:
    """The list `listed` of `build_candidates(row, …)` as it is when nothing in it supports an answer.

    Its golds give way to further distractors of the row, so that the list keeps its length as far as the row has
    enough of them: a shorter list would be told apart by its length alone. `None` where the row has no distractor.
    """
    distractors = [candidate for candidate in row.candidates if candidate.label == 0]
    if not distractors:
        return None
    return build_candidates(row.with_candidates(distractors), size=len(listed.candidates), hard=hard, seed=seed)


def random_sublist(row: EvidenceRow, seed: int | str = 0) -> EvidenceRow:
    """A random part of the candidates, in their order; its size is uniform on 1 … all."""
    rng = seeded_random("random_sublist", seed, row.id)
    return _kept(row, _part(range(len(row.candidates)), rng))


class CandidateDataset:
    """Map-style training data whose item `i` is a function of (rows, settings, seed, `i`) only.

    No random state exists, so shuffling, several workers, and resuming from a checkpoint need no care. Draw
    `i // len(rows)` of a row has its own distractors (hard ones from the `hard_pool` best, so that they vary too);
    `draws` sets how many a row has before the data set ends.

    An item is a dict: `id`, `question`, `passages` (see `Candidate.to_passage`), `answer` (a text or `None`), `labels`
    (0/1), `kinds`, and
    `lists`: candidate indices of the `lists_per_question` lists on which a loss is taken. The first is the full list;
    the others have all golds missing with probability `none_rate`, one with `one_rate`, and a random size from 1 up.
    Attention sums to one over whatever list it sees; only lists of varying size and completeness make a permission
    identifiable.

    With `separate_lists`, an item holds one of these lists and nothing else: the full one in draw 0, and then each in
    turn. A reader whose candidates see each other (LED, joint packing) would otherwise have read the evidence that a
    list lacks. Take several draws.

    Raises:
        DataError: if `rows` is empty or holds unlabelled candidates.
    """

    def __init__(
        self,
        rows: Sequence[EvidenceRow],
        *,
        size: int | None = 8,
        hard: int = 4,
        hard_pool: int | None = 12,
        seed: int = 0,
        draws: int = 1,
        lists_per_question: int = 4,
        none_rate: float = 0.25,
        one_rate: float = 0.25,
        separate_lists: bool = False,
    ):
        if not rows:
            raise DataError("the data set has no rows; give at least one.")
        if draws < 1 or lists_per_question < 1:
            raise ValueError(f"draws={draws}, lists_per_question={lists_per_question}: use at least 1.")
        for row in rows:
            _labels(row)
        _check_rates(none_rate, one_rate)
        self.rows = list(rows)
        self.size, self.hard, self.hard_pool, self.seed, self.draws = size, hard, hard_pool, seed, draws
        self.lists_per_question, self.none_rate, self.one_rate = lists_per_question, none_rate, one_rate
        self.separate_lists = separate_lists

    def __len__(self) -> int:
        return len(self.rows) * self.draws

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a data set with {len(self)} items")
        draw, position = divmod(index, len(self.rows))
        row = self.rows[position]
        draw_seed = f"{self.seed}/{draw}"
        row = build_candidates(row, size=self.size, hard=self.hard, hard_pool=self.hard_pool, seed=draw_seed)
        labels = _labels(row)
        rng = seeded_random("lists", draw_seed, row.id)
        lists = [list(range(len(labels)))]
        while len(lists) < self.lists_per_question:
            lists.append(_part(_incomplete(labels, self.none_rate, self.one_rate, rng), rng))
        if self.separate_lists:
            row = _kept(row, lists[draw % len(lists)])
            labels, lists = row.labels, [list(range(len(row.candidates)))]
        return {
            "id": row.id,
            "question": row.question,
            "passages": [candidate.to_passage() for candidate in row.candidates],
            "answer": row.answer if isinstance(row.answer, str) and row.answer.strip() else None,
            "labels": labels,
            "kinds": row.kinds,
            "lists": lists,
        }


def _labels(row: EvidenceRow) -> list[int]:
    labels = row.labels
    if labels is None:
        position = next(i for i, candidate in enumerate(row.candidates) if candidate.label is None)
        raise DataError(
            f"row {row.id!r}: `candidates[{position}].label` is missing; label every candidate 0 or 1 to train or "
            "evaluate on it."
        )
    return labels


def _check_rates(none_rate: float, one_rate: float) -> None:
    if not (0 <= none_rate <= 1 and 0 <= one_rate <= 1 and none_rate + one_rate <= 1 + 1e-9):
        raise ValueError(f"none_rate={none_rate}, one_rate={one_rate}: use rates from 0 to 1 with a sum of at most 1.")


def _incomplete(labels: Sequence[int], none_rate: float, one_rate: float, rng: random.Random) -> list[int]:
    """Indices that stay when all golds, one gold, or no candidate at all is taken away."""
    _check_rates(none_rate, one_rate)
    golds = [i for i, label in enumerate(labels) if label]
    draw, pick = rng.random(), rng.random()  # always both, so that a rate of one row cannot shift the draws of others
    if draw < none_rate:
        gone = set(golds)
    elif draw < none_rate + one_rate and golds:
        gone = {golds[int(pick * len(golds))]}
    else:
        gone = set()
    kept = [i for i in range(len(labels)) if i not in gone]
    return kept or list(range(len(labels)))


def _part(indices: Sequence[int], rng: random.Random) -> list[int]:
    count = 1 + int(rng.random() * len(indices))
    return sorted(shuffled(indices, rng)[:count])


def _kept(row: EvidenceRow, indices: list[int]) -> EvidenceRow:
    return row.with_candidates([row.candidates[i] for i in indices])
