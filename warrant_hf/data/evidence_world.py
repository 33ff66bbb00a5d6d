"""EvidenceWorld: multi-hop questions about invented entities, with the sentences that answer them.

Every row is a small world of its own, made from (seed, row number) alone, so any row can be made at any time, in any
process, with the same result on every platform. Solving a row takes what real data take: the entity must match, the
relation must match in other words than the question's, and from the second hop on the entity is named only in the
sentence before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from .candidates import seeded_random, shuffled
from .schema import Candidate, EvidenceRow
from .world_relations import BY_SUBJECT, EXCLUSIVE, QUESTIONS, RELATIONS, Relation

_ONSETS = "b br d dr f g gr h j k kl l m n p pr r s st t tr v z".split()
_VOWELS = "a e i o u ae ei ou".split()
_CODAS = ["", "", "l", "n", "r", "s", "nd", "rk", "th", "m"]
_ADJECTIVES = "Silent Golden Broken Distant Crimson Hollow Wandering Frozen Hidden Burning Quiet Last".split()
_NOUNS = "Harbour Orchard Mirror Garden Lantern River Winter Bridge Letter Island Clock Meadow".split()
_PAPERS = "Gazette Herald Chronicle Courier Observer Bulletin Almanac Register".split()


class _Fact(NamedTuple):
    subject: str
    relation: Relation
    object: str


class EvidenceWorld:
    """An endless, indexable stream of `EvidenceRow`s.

    Args:
        seed: rows of different seeds are independent.
        hops: numbers of hops (1 to 3) to draw from.
        candidates: length of a list; it grows where evidence alone is longer.
        hard: at most so many hard distractors; the rest are random ones.
        missing_rate: share of rows from which evidence was taken away, all of it or (half the time, from two hops on)
            one hop. Its place is filled with distractors, so the length says nothing.
        repeat_rate: probability that a hop's fact is stated a second time, by another source in other words.
        reliability: one number in [0, 1] per source. Each statement has a source; with probability
            1 − reliability the statement names a wrong object. If any source is unreliable, texts name their source.

    A row has `candidates` with `label`, `kind` and `source` (`{"id", "reliability"}`), and the extra keys `subject`,
    `relation`, `wording`, `corrupted`, and `hop` for statements of a fact that was asked for. A corrupted statement of
    such a fact is no evidence: label 0, kind "hard". The row has the extra keys `hops`, `answerable` (every hop has at
    least one true statement), and `missing_gold` where a hop has none.

    Hard distractors are of three sorts: an entity of the chain under another relation, the asked relation of another
    entity (often one with a similar name), and another entity's statement with the object of a hop. Random ones are
    about other entities under relations that were not asked for.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        hops: Sequence[int] = (1, 2, 3),
        candidates: int = 8,
        hard: int = 4,
        missing_rate: float = 0.2,
        repeat_rate: float = 0.2,
        reliability: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    ):
        if not hops or not set(hops) <= {1, 2, 3}:
            raise ValueError(f"hops={tuple(hops)}: use numbers from 1 to 3.")
        if candidates < 1 or hard < 0:
            raise ValueError(f"candidates={candidates}, hard={hard}: use at least 1 candidate and 0 hard ones.")
        for name, rate in (("missing_rate", missing_rate), ("repeat_rate", repeat_rate)):
            if not 0 <= rate <= 1:
                raise ValueError(f"{name}={rate}: use a probability from 0 to 1.")
        if not reliability or not all(0 <= value <= 1 for value in reliability):
            raise ValueError(f"reliability={tuple(reliability)}: use one number from 0 to 1 for each source.")
        self.seed, self.hops, self.candidates, self.hard = seed, tuple(hops), candidates, hard
        self.missing_rate, self.repeat_rate, self.reliability = missing_rate, repeat_rate, tuple(reliability)
        names = _Names(seeded_random("sources", seed))
        self.sources = tuple(
            f"the {names.word(2)} {_PAPERS[number % len(_PAPERS)]}" for number in range(len(self.reliability))
        )

    def __iter__(self) -> Iterator[EvidenceRow]:
        return map(self.row, count())

    def generate(self, n: int, start: int = 0) -> Iterator[EvidenceRow]:
        """Rows `start` … `start + n − 1`."""
        return map(self.row, range(start, start + n))

    def row(self, index: int) -> EvidenceRow:
        rng = seeded_random("world", self.seed, index)
        names = _Names(rng)
        chain = _chain(names, rng, _pick(rng, self.hops))
        asked = [self._statement(fact, names, rng, hop) for hop, fact in enumerate(chain)]
        for hop, fact in enumerate(chain):
            if rng.random() < self.repeat_rate:
                asked.append(self._statement(fact, names, rng, hop, unlike=asked[hop]))
        if rng.random() < self.missing_rate:
            gone = set(range(len(chain)))
            if len(chain) > 1 and rng.random() < 0.5:
                gone = {int(rng.random() * len(chain))}
            asked = [statement for statement in asked if statement["hop"] not in gone]

        golds = sum(statement["label"] for statement in asked)
        room = max(self.candidates - len(asked), 0)
        hard = min(max(self.hard - (len(asked) - golds), 0), room)  # corrupted evidence counts as hard
        known = {(fact.subject, fact.relation.name) for fact in chain}  # nothing is said twice, or gainsaid, by chance
        statements = list(asked)
        for number in range(room):
            kind, make = ("hard", _hard_fact) if number < hard else ("random", _random_fact)
            fact = make(chain, names, rng)
            while (fact.subject, fact.relation.name) in known:
                fact = make(chain, names, rng)
            known.add((fact.subject, fact.relation.name))
            statements.append({**self._statement(fact, names, rng), "kind": kind})

        stated = {statement["hop"] for statement in asked if statement["label"]}
        lacking = [hop for hop in range(len(chain)) if hop not in stated]
        extra: dict[str, Any] = {"hops": len(chain), "answerable": not lacking}
        if lacking:
            extra["missing_gold"] = [{"title": chain[hop].subject, "hop": hop} for hop in lacking]
        return EvidenceRow(
            id=f"world-{self.seed}-{index}",
            question=_question(chain, rng),
            candidates=[Candidate(**statement) for statement in shuffled(statements, rng)],
            answer=chain[-1].object,
            **extra,
        )

    def _statement(
        self,
        fact: _Fact,
        names: _Names,
        rng: random.Random,
        hop: int | None = None,
        unlike: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The fact in words, from a source that may get it wrong; `unlike`: an earlier statement of the same fact."""
        sources, wordings = range(len(self.sources)), range(len(fact.relation.statements))
        if unlike is not None:
            sources = [number for number in sources if self.sources[number] != unlike["source"]["id"]] or sources
            wordings = [number for number in wordings if number != unlike["wording"]]
        source, wording = _pick(rng, sources), _pick(rng, wordings)
        corrupted = rng.random() >= self.reliability[source]
        named = fact.object
        while corrupted and named == fact.object:  # years may come up again
            named = names.new(fact.relation.object)
        # Like real articles, some sentences leave it to the title to say what they are about.
        subject = f"this {fact.relation.subject}" if rng.random() < 0.2 else fact.subject
        text = fact.relation.statements[wording].format(s=subject, o=named)
        if min(self.reliability) < 1:
            text = f"According to {self.sources[source]}, {text[0].lower() + text[1:] if text[:4] == 'The ' else text}"
        statement = {
            "text": text[0].upper() + text[1:],
            "title": fact.subject,
            "label": int(hop is not None and not corrupted),
            "kind": "hard" if corrupted else "gold",
            "source": {"id": self.sources[source], "reliability": self.reliability[source]},
            "subject": fact.subject,
            "relation": fact.relation.name,
            "corrupted": corrupted,
            "wording": wording,
        }
        if hop is not None:
            statement["hop"] = hop
        return statement


def _chain(names: _Names, rng: random.Random, hops: int) -> list[_Fact]:
    """Facts of which each is about the object of the one before."""
    while True:
        kind = _pick(rng, list(BY_SUBJECT))
        relations: list[Relation] = []
        while len(relations) < hops and kind in BY_SUBJECT:
            # No relation twice: "the spouse of the spouse of" would name the first entity again.
            options = [relation for relation in BY_SUBJECT[kind] if relation not in relations]
            if not options:
                break
            relations.append(_pick(rng, options))
            kind = relations[-1].object
        if len(relations) == hops:  # a chain that ran into a year, say, starts afresh
            break
    entity, facts = names.new(relations[0].subject), []
    for relation in relations:
        facts.append(_Fact(entity, relation, names.new(relation.object)))
        entity = facts[-1].object
    return facts


def _hard_fact(chain: list[_Fact], names: _Names, rng: random.Random) -> _Fact:
    fact, sort = _pick(rng, chain), rng.random()
    asked = {step.relation for step in chain}
    unasked = [relation for relation in BY_SUBJECT[fact.relation.subject] if relation not in asked]
    if sort < 0.4 and unasked:  # the right entity, a relation that was not asked for
        relation = _pick(rng, unasked)
        return _Fact(fact.subject, relation, names.new(relation.object))
    similar = names.similar(fact.subject, fact.relation.subject) if rng.random() < 0.5 else None
    subject = similar or names.new(fact.relation.subject)
    if sort < 0.8 or fact.relation.name in EXCLUSIVE:  # the right relation, another entity
        return _Fact(subject, fact.relation, names.new(fact.relation.object))
    return _Fact(subject, fact.relation, fact.object)  # and the right object, too


def _random_fact(chain: list[_Fact], names: _Names, rng: random.Random) -> _Fact:
    asked = {fact.relation for fact in chain}
    relation = _pick(rng, [other for other in RELATIONS if other not in asked])
    return _Fact(names.new(relation.subject), relation, names.new(relation.object))


def _question(chain: list[_Fact], rng: random.Random) -> str:
    phrase = chain[0].subject
    for fact in chain:
        phrase = _pick(rng, fact.relation.phrases).format(phrase)
    kind = chain[-1].relation.object
    return _pick(rng, QUESTIONS.get(kind, QUESTIONS["other"])).format(phrase)


class _Names:
    """Invented names, no two of them alike within a row (except years, of which there are too few)."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used: set[str] = set()

    def word(self, syllables: int) -> str:
        parts = [_pick(self.rng, _ONSETS) + _pick(self.rng, _VOWELS) for _ in range(syllables)]
        return ("".join(parts) + _pick(self.rng, _CODAS)).capitalize()

    def new(self, kind: str) -> str:
        if kind == "year":
            return str(1500 + int(self.rng.random() * 520))
        return self._unused(lambda: self._make(kind))

    def similar(self, name: str, kind: str) -> str | None:
        """Another name that shares a word with `name`, for people and works; None for other kinds."""
        words = name.split()
        if kind == "person":
            return self._unused(lambda: f"{self.word(2)} {words[-1]}")
        if kind in ("film", "novel"):
            return self._unused(lambda: f"{words[0]} {_pick(self.rng, _NOUNS)} of {self.word(2)}")
        return None

    def _unused(self, make: Callable[[], str]) -> str:
        name = make()
        while name in self.used:
            name = make()
        self.used.add(name)
        return name

    def _make(self, kind: str) -> str:
        if kind == "person":
            return f"{self.word(2)} {self.word(2)}"
        if kind == "company":
            return f"{self.word(2)} {_pick(self.rng, ('Systems', 'Works', 'Press', 'Partners', 'Industries'))}"
        if kind == "university":
            return f"{self.word(2)} {_pick(self.rng, ('University', 'College', 'Institute'))}"
        if kind in ("film", "novel"):
            return f"{_pick(self.rng, _ADJECTIVES)} {_pick(self.rng, _NOUNS)} of {self.word(2)}"
        if kind == "country":
            return f"{self.word(2)}{_pick(self.rng, ('ia', 'land', 'stan'))}"
        if kind == "currency":
            return self.word(1).lower() + _pick(self.rng, ("mark", "crown", "dollar"))
        return self.word(3)  # city


def _pick(rng: random.Random, items: Sequence[Any]) -> Any:
    return items[int(rng.random() * len(items))]
