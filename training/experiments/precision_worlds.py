"""The two worlds in which PFA meets its rivals: simulated sensors, and statements of EvidenceWorld read as text."""

from __future__ import annotations

from functools import cached_property

import torch
from frozen_states import FrozenEncoder

from warrant_hf.precision import EvidenceReadings, SensorWorld

LEVELS = 5  # severities seen in training: 0, 1/4, … 1; the lists that choose, calibrate and test have any between
_TEXT_SIZE, _PULL = 64, 5.0


class Sensors:
    """Lists of [`SensorWorld`]."""

    title = "sensor lists"
    rates = (1e-2, 3e-2, 1e-1)
    train, choose, test = 4000, 2000, 2000

    def data(self, seed):
        """Lists to train on, to choose and calibrate with, and the interventions of the tests."""
        train = SensorWorld(seed, levels=LEVELS).lists(self.train, stream=0)
        return train, SensorWorld(seed).lists(self.choose, stream=1), SensorWorld(seed).pairs(self.test)

    def make(self, kind, bound, batch):
        return kind(batch.content.shape[-1], batch.evidence.shape[-1], bound=bound)


class Statements(Sensors):
    """Lists of [`EvidenceReadings`]: relevance from sentence embeddings, in 64 dimensions by a fixed projection."""

    title = "statements of EvidenceWorld"
    rates = (2e-3, 5e-3, 1.5e-2)
    train, choose, test = 8000, 4000, 12_000

    @cached_property
    def _embed(self):
        encoder = FrozenEncoder()
        projection = torch.randn(384, _TEXT_SIZE, generator=torch.Generator().manual_seed(0)) / _TEXT_SIZE**0.5
        return lambda texts: encoder.sentence_embeddings(texts) @ projection

    def data(self, seed):
        train = EvidenceReadings(self._embed, seed, questions=120).lists(self.train)
        choose = EvidenceReadings(self._embed, seed, questions=40).lists(self.choose, stream=1)
        return train, choose, EvidenceReadings(self._embed, seed, questions=60).pairs(self.test)

    def make(self, kind, bound, batch):
        model = kind(batch.content.shape[-1], batch.evidence.shape[-1], size=_TEXT_SIZE, bound=bound)
        with torch.no_grad():  # for every rival: relevance starts as the cosine of question and statement
            for layer in (model.of_query, model.of_content):
                layer.weight.copy_(_PULL * torch.eye(_TEXT_SIZE))
                layer.bias.zero_()
        return model


WORLDS = {"sensors": Sensors, "statements": Statements}
