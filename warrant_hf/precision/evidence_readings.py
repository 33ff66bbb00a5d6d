"""EvidenceWorld as lists of readings: several sources state a year, each as reliably as it is known to be.

A list asks for one year. Some witnesses state it, the others state another year of another entity. A source of
reliability r names the right year with probability r and else a wrong one, as in `EvidenceWorld`. What a statement is
about goes to the relevance path as text, without the year that it names; how reliable its source is goes to the
precision; the year itself is the reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..data.evidence_world import EvidenceWorld
from ..data.world_relations import RELATIONS
from .sensor_world import PrecisionPairs, SensorBatch

READING_EVIDENCE_NAMES = ("reliability", "age")  # of the source; its age, in decades, has nothing to do with errors
_YEARS = {relation.name: relation for relation in RELATIONS if relation.object == "year"}
_FIRST_YEAR, _LAST_YEAR = 1800, 2020
_UNSAID = "…"


class EvidenceReadings:
    r"""A generator of lists with the interface of [`SensorWorld`].

    The variance of a reading that is right with probability r is (1 - r) times the mean square of a wrong one's error.
    Readings are years, in units of half the span of years, counted from its middle.

    Two statements of one source do not show the part of its error that they share, the pull towards the mean of the
    wrong years: their residual is too small by a factor of up to 1 / (1 - (1 - r) / 2), 1.14 at r = 0.75. Below 0.6
    no head that learns from residuals can be calibrated within the contract's 1.25.

    Args:
        embed: texts -> `[n, C]` on the CPU, such as a frozen encoder's sentence embeddings.
        seed: worlds with different seeds are independent.
        questions: so many questions are embedded for a stream; lists ask them in turn, each time of other sources.
        witnesses: K / 2, how many state what is asked for, at least 2; as many state something else.
        reliability: the lowest and the highest.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Tensor],
        seed: int = 0,
        *,
        questions: int = 200,
        witnesses: int = 4,
        reliability: tuple[float, float] = (0.75, 0.97),
    ):
        if witnesses < 2 or questions < 1:
            raise ValueError(f"witnesses is {witnesses}, questions {questions}; give at least 2 and 1.")
        if not 0 < reliability[0] < reliability[1] < 1:
            raise ValueError(f"reliability is {reliability}; give two numbers between 0 and 1, the lowest first.")
        self.embed, self.seed, self.questions = embed, seed, questions
        self.witnesses, self.reliability = witnesses, reliability
        self._texts: dict[int, tuple[Tensor, Tensor]] = {}

    def lists(self, n: int, *, stream: int = 0) -> SensorBatch:
        """n lists; another `stream` gives other questions and independent sources."""
        return self._batch(self._draws(n, stream), stream)

    def pairs(self, n: int, *, stream: int = 1000) -> PrecisionPairs:
        """n lists and their interventions: "corruption" is a source of lower reliability."""
        draws, (low, high) = self._draws(n, stream), self.reliability
        rng = np.random.default_rng([self.seed, stream, 1])
        rows, changed = np.arange(n), rng.integers(self.witnesses, size=n)
        draws["reliability"][rows, changed] = high - (high - low) * rng.uniform(0, 0.4, n)
        base = self._batch(draws, stream)
        less = {**draws, "reliability": draws["reliability"].copy()}
        less["reliability"][rows, changed] -= (high - low) * rng.uniform(0.3, 0.6, n)
        noise = base.variance[:, : self.witnesses]
        swap, every = torch.stack([noise.argmin(1), noise.argmax(1)], 1), torch.arange(n)
        content = base.content.clone()
        content[every, swap[:, 1]] = content[every, swap[:, 0]]
        # Two witnesses who agree leave nothing for a swap to move.
        apart = {**draws, "u": draws["u"].copy()}
        apart["u"][rows, swap[:, 1]] = 1.0
        tied = replace(self._batch(apart, stream), content=content)
        equal = self._draws(n, stream + 1)
        equal["reliability"][:] = (low + high) / 2
        equal["age"][:] = 0.5
        return PrecisionPairs(
            base=base,
            corrupted=self._batch(less, stream),
            changed=torch.from_numpy(changed),
            tied=tied,
            swap=swap,
            homoscedastic=self._batch(equal, stream + 1),
        )

    def _draws(self, n, stream):
        rng, shape = np.random.default_rng([self.seed, stream]), (n, 2 * self.witnesses)
        low, high = self.reliability
        return {
            "reliability": rng.uniform(low, high, shape),
            "age": rng.uniform(size=shape),
            "years": rng.integers(_FIRST_YEAR, _LAST_YEAR + 1, (n, 2)),  # asked for, and the other entity's
            "u": rng.uniform(size=shape),
            "u_repeat": rng.uniform(size=shape),
            "wrong": rng.integers(_FIRST_YEAR, _LAST_YEAR + 1, (*shape, 2)),
        }

    def _batch(self, draws, stream):
        n, size = draws["reliability"].shape
        about = (np.arange(size) >= self.witnesses).astype(int)
        true = draws["years"][:, about]
        u = np.stack([draws["u"], draws["u_repeat"]], -1)
        years = np.where(u < draws["reliability"][..., None], true[..., None], draws["wrong"])
        query, content = self._embedded(stream)
        asked = np.arange(n) % self.questions
        half = (_LAST_YEAR - _FIRST_YEAR) / 2

        def scaled(values):
            return torch.from_numpy(np.ascontiguousarray((values - _FIRST_YEAR) / half - 1)).float()

        spread = _wrong_square(true, half) * (1 - draws["reliability"])
        evidence = np.stack([draws["reliability"], draws["age"]], -1)
        return SensorBatch(
            query=query[asked],
            content=content[asked],
            evidence=torch.from_numpy(evidence).float(),
            reading=scaled(years[..., 0]),
            target=scaled(draws["years"][:, 0]),
            repeat=scaled(years[..., 1]),
            truth=scaled(true),
            variance=torch.from_numpy(spread).float(),
            relevant=torch.from_numpy(about == 0).expand(n, -1),
        )

    def _embedded(self, stream):
        """Questions `[questions, C]` and statements `[questions, K, C]` of a stream."""
        if stream not in self._texts:
            rows = self._rows(stream)
            texts = [row.question for row in rows[: self.questions]]
            for asked, other in zip(rows[: self.questions], rows[self.questions :]):
                for row in (asked, other):
                    fact = row.candidates[0]
                    wordings = _YEARS[fact.relation].statements
                    texts += [
                        f"{fact.title}: {wordings[number % len(wordings)].format(s=fact.subject, o=_UNSAID)}"
                        for number in range(self.witnesses)
                    ]
            known = {text: at for at, text in enumerate(dict.fromkeys(texts))}
            states = self.embed(list(known)).float()[[known[text] for text in texts]]
            shape = (self.questions, 2 * self.witnesses, -1)
            self._texts[stream] = states[: self.questions], states[self.questions :].view(shape)
        return self._texts[stream]

    def _rows(self, stream):
        """Twice as many rows of EvidenceWorld as questions, each about a year."""
        world = EvidenceWorld(f"{self.seed}/{stream}", hops=(1,), candidates=1, missing_rate=0.0, repeat_rate=0.0)
        found = []
        for row in world:
            if row.candidates[0].relation in _YEARS:
                found.append(row)
                if len(found) == 2 * self.questions:
                    return found


def _wrong_square(true, half):
    """Mean square of the error of a wrong year, uniform on all years, in units of the readings."""
    years = np.arange(_FIRST_YEAR, _LAST_YEAR + 1)
    return (years.var() + (years.mean() - true) ** 2) / half**2


__all__ = ["READING_EVIDENCE_NAMES", "EvidenceReadings"]
