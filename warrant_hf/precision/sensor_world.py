"""SensorWorld: lists of sensor readings in which relevance and reliability have separate causes.

A query asks for one quantity; each of K sensors reports on it or on another one, with noise of its own. Content says
what a sensor reports on, reliability evidence says how well: neither helps with the other's question. Paired lists
differ in one known cause, and in nothing else (PFA, "a matched experiment with rival generators").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

CODE_SIZE = 8
EVIDENCE_NAMES = (
    "calibration_age",  # years since the last calibration
    "severity",  # known corruption, 0 none to 1 the worst that was certified
    "log_spread",  # log variance of earlier readings of this sensor
    "verified",  # provenance, one of three
    "relayed",
    "unverified",
)
_PROVENANCE_OFFSETS = np.array([0.0, 0.5, 1.2])
_EARLIER_READINGS = 16


@dataclass(frozen=True)
class SensorBatch:
    """N lists of K sensors. A model may look at the first four; the rest is for training targets and for judging.

    Attributes:
        query: `[N, C]`, code of the quantity that is asked for.
        content: `[N, K, C]`, code of the quantity that each sensor reports on, with jitter.
        evidence: `[N, K, F]`, reliability evidence, columns as in `EVIDENCE_NAMES`.
        reading: `[N, K]`.
        target: `[N]`, the quantity that is asked for.
        repeat: `[N, K]`, a second reading by the same sensor, its noise independent of the first's.
        truth: `[N, K]`, the quantity that each sensor reports on, without noise and bias.
        variance: `[N, K]`, of a reading's noise.
        relevant: bool `[N, K]`, whether a sensor reports on what is asked for.
    """

    query: Tensor
    content: Tensor
    evidence: Tensor
    reading: Tensor
    target: Tensor
    repeat: Tensor
    truth: Tensor
    variance: Tensor
    relevant: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def rows(self, index: Tensor | slice) -> SensorBatch:
        """The lists that `index` picks."""
        return SensorBatch(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def residual(self) -> Tensor:
        """`[N, K]`, (reading - repeat) / sqrt(2): as large as the noise on average, known without any truth."""
        return (self.reading - self.repeat) / 2**0.5


@dataclass(frozen=True)
class PrecisionPairs:
    """What the six tests intervene on.

    Attributes:
        base: ordinary lists; sensors differ in noise.
        corrupted: the same lists, noise draws and targets, with more severity in one relevant sensor of each.
        changed: int64 `[N]`, that sensor.
        tied: the base lists, but two relevant sensors of each have the same content, hence the same relevance.
        swap: int64 `[N, 2]`, these two: the most precise of the relevant sensors, and the least precise.
        homoscedastic: lists whose sensors have equal noise and equal causes of noise.
    """

    base: SensorBatch
    corrupted: SensorBatch
    changed: Tensor
    tied: SensorBatch
    swap: Tensor
    homoscedastic: SensorBatch


class SensorWorld:
    r"""A generator of sensor lists.

    The noise of a reading is normal with

        log variance = -3.2 + 0.8 age + 3 severity + offset of the provenance + u,    u ~ N(0, 0.3^2)

    and severity counts double beyond 1, where no sensor was certified. u is known to nobody; the spread of 16 earlier
    readings tells something about it.

    Args:
        seed: worlds with different seeds are independent.
        sensors: K.
        relevant: how many sensors report on what is asked for, at least 2.
        jitter: standard deviation of the content's jitter, in each of 8 dimensions of a code of length 1.
        severities: the lowest and the highest severity.
        levels: so many severities, equally spaced, are all there are; `None` for any between the two.
        duplicates: so many relevant sensors, from the first on, witness one event, with equal causes of noise.
        correlation: of the duplicates' noise, 0 to 1.
        bias: added to every reading of the first sensor, which is relevant.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        sensors: int = 8,
        relevant: int = 4,
        jitter: float = 0.15,
        severities: Sequence[float] = (0.0, 1.0),
        levels: int | None = None,
        duplicates: int = 0,
        correlation: float = 0.0,
        bias: float = 0.0,
    ):
        if not 2 <= relevant <= sensors:
            raise ValueError(f"relevant is {relevant}; use a number from 2 to sensors = {sensors}.")
        if not 0 <= duplicates <= relevant:
            raise ValueError(f"duplicates is {duplicates}; use a number from 0 to relevant = {relevant}.")
        if not 0 <= correlation <= 1:
            raise ValueError(f"correlation is {correlation}; use a number from 0 to 1.")
        if len(severities) != 2 or not 0 <= severities[0] <= severities[1]:
            raise ValueError(f"severities is {tuple(severities)}; give the lowest and the highest, 0 or more.")
        if levels is not None and levels < 2:
            raise ValueError(f"levels is {levels}; use 2 or more, or None for a continuum.")
        self.seed, self.sensors, self.relevant, self.jitter = seed, sensors, relevant, jitter
        self.severities, self.levels, self.duplicates = tuple(severities), levels, duplicates
        self.correlation, self.bias = correlation, bias

    def lists(self, n: int, *, stream: int = 0, homoscedastic: bool = False) -> SensorBatch:
        """n lists; another `stream` (for training, choosing, testing) gives independent ones."""
        draws = self._draws(n, stream)
        if homoscedastic:
            draws.update(age=draws["age"] * 0 + 0.5, severity=draws["severity"] * 0 + 0.5)
            draws.update(provenance=draws["provenance"] * 0, hidden=draws["hidden"] * 0)
        return self._batch(draws)

    def pairs(self, n: int, *, stream: int = 1000) -> PrecisionPairs:
        """n lists and their interventions."""
        draws = self._draws(n, stream)
        low, high = self.severities
        rng = np.random.default_rng([self.seed, stream, 1])
        rows, changed = np.arange(n), rng.integers(self.relevant, size=n)
        # The changed sensor starts in the lower half, so that there is room for what is added.
        draws["severity"][rows, changed] = low + (high - low) * rng.uniform(0, 0.4, n)
        base = self._batch(draws)
        more = {**draws, "severity": draws["severity"].copy()}
        more["severity"][rows, changed] += (high - low) * rng.uniform(0.3, 0.6, n)
        noise = base.variance[:, : self.relevant]
        swap, every = torch.stack([noise.argmin(1), noise.argmax(1)], 1), torch.arange(n)
        content = base.content.clone()
        content[every, swap[:, 1]] = content[every, swap[:, 0]]
        return PrecisionPairs(
            base=base,
            corrupted=self._batch(more),
            changed=torch.from_numpy(changed),
            tied=replace(base, content=content),
            swap=swap,
            homoscedastic=self.lists(n, stream=stream + 1, homoscedastic=True),
        )

    def _draws(self, n: int, stream: int) -> dict[str, np.ndarray]:
        rng, shape = np.random.default_rng([self.seed, stream]), (n, self.sensors)
        low, high = self.severities
        place = rng.uniform(size=shape)
        if self.levels is not None:
            place = np.floor(place * self.levels) / (self.levels - 1)
        draws = {
            "code": rng.normal(size=(n, 2, CODE_SIZE)),  # of what is asked for, and of the other quantity
            "quantity": rng.normal(size=(n, 2)),
            "jitter": rng.normal(size=(*shape, CODE_SIZE)),
            "age": rng.uniform(size=shape),
            "severity": low + (high - low) * place,
            "provenance": rng.integers(3, size=shape),
            "hidden": 0.3 * rng.normal(size=shape),
            "noise": rng.normal(size=(*shape, 2)),
            "common": rng.normal(size=(n, 1, 2)),
            "spread": rng.chisquare(_EARLIER_READINGS - 1, size=shape) / (_EARLIER_READINGS - 1),
        }
        for name in ("age", "severity", "provenance", "hidden"):
            draws[name][:, : self.duplicates] = draws[name][:, :1]
        return draws

    def _batch(self, draws: dict[str, np.ndarray]) -> SensorBatch:
        code = draws["code"] / np.linalg.norm(draws["code"], axis=-1, keepdims=True)
        subject = (np.arange(self.sensors) >= self.relevant).astype(int)  # 0: what is asked for
        age, severity = draws["age"], draws["severity"]
        felt = severity + np.maximum(severity - 1, 0)
        log_variance = -3.2 + 0.8 * age + 3 * felt + _PROVENANCE_OFFSETS[draws["provenance"]] + draws["hidden"]
        deviation = np.exp(log_variance / 2)

        noise = draws["noise"].copy()
        shared = slice(0, self.duplicates)
        noise[:, shared] = self.correlation**0.5 * draws["common"] + (1 - self.correlation) ** 0.5 * noise[:, shared]
        truth = draws["quantity"][:, subject]
        readings = truth[..., None] + deviation[..., None] * noise
        readings[:, 0] += self.bias
        log_spread = log_variance + np.log(draws["spread"])
        evidence = np.concatenate([np.stack([age, severity, log_spread], -1), np.eye(3)[draws["provenance"]]], axis=-1)
        arrays = {
            "query": code[:, 0],
            "content": code[:, subject] + self.jitter * draws["jitter"],
            "evidence": evidence,
            "reading": readings[..., 0],
            "target": draws["quantity"][:, 0],
            "repeat": readings[..., 1],
            "truth": truth,
            "variance": deviation**2,
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).float() for name, array in arrays.items()}
        return SensorBatch(**tensors, relevant=torch.from_numpy(subject == 0).expand(len(age), -1))


def with_swapped_evidence(batch: SensorBatch, swap: Tensor) -> SensorBatch:
    """The batch with the reliability evidence of two sensors exchanged in each list; `swap` int64 `[N, 2]`."""
    evidence, rows = batch.evidence.clone(), torch.arange(len(batch))[:, None]
    evidence[rows, swap] = batch.evidence[rows, swap.flip(1)]
    return replace(batch, evidence=evidence)


__all__ = [
    "CODE_SIZE",
    "EVIDENCE_NAMES",
    "PrecisionPairs",
    "SensorBatch",
    "SensorWorld",
    "with_swapped_evidence",
]
