"""Six tests: a PFA model passes all, and every rival, leak and constant fails where it should."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from warrant_hf.precision import (
    EVIDENCE_NAMES,
    PRECISION_LOSSES,
    LeakError,
    PrecisionModel,
    SensorWorld,
    check_precision_contract,
    fit_precision_model,
)

TESTS = ["task_error", "calibration", "relevance_invariance", "monotonicity", "swap", "homoscedastic_null"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data(seed):
    return SensorWorld(seed, levels=5).lists(3000), SensorWorld(seed).lists(1000, stream=1)


def trained(seed=0, bound=4.0, **settings):
    torch.manual_seed(seed)
    model = PrecisionModel(8, len(EVIDENCE_NAMES), bound=bound)
    return fit_precision_model(model, *data(seed), seed=seed, **{"steps": 200, **settings})


@pytest.fixture(scope="module")
def pfa():
    return trained()


@pytest.fixture(scope="module")
def pairs():
    return SensorWorld(0).pairs(1000)


class Around:
    """A model that is as another one but for its log-precision."""

    def __init__(self, model, log_precision):
        self.model, self.relevance, self.log_precision = model, model.relevance, log_precision

    def predict(self, batch, log_precision=None):
        return self.model.predict(batch, self.log_precision(batch) if log_precision is None else log_precision)


def test_pfa_passes_and_reports(pfa, pairs, tmp_path):
    report = check_precision_contract(pfa, pairs)
    assert [test.name for test in report.tests] == TESTS
    assert report.passed and report.label == "precision" and report.failed == (), report.to_markdown()
    assert report.clipped_share == 0.0 and report.lists == 1000
    assert all(test.low <= test.value <= test.high for test in report.tests)
    report.write(json=tmp_path / "r.json", markdown=tmp_path / "r.md")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["label"] == "precision" and [test["passed"] for test in written["tests"]] == [True] * 6
    text = (tmp_path / "r.md").read_text()
    assert "Earned label: **precision**" in text and text.count("| pass |") == 6
    assert check_precision_contract(pfa, pairs) == report  # the same every time


@pytest.mark.parametrize("loss", [name for name in PRECISION_LOSSES if name != "gaussian"])
def test_every_loss_earns_the_label(loss):
    report = check_precision_contract(trained(seed=1, loss=loss), SensorWorld(1).pairs(1000))
    assert report.label == "precision", report.to_markdown()


def test_an_unconstrained_bias_is_a_reliability_score(pairs):
    report = check_precision_contract(trained(loss="task", bound=None), pairs)
    assert report.label == "reliability score"
    assert "calibration" in report.failed  # it helps, but nothing tells it what a variance is
    assert report["task_error"].passed and "FAIL" in report.to_markdown()


def test_a_constant_fails(pfa, pairs):
    level = float(pairs.base.variance.log().mean())
    constant = Around(pfa, lambda batch: torch.full_like(batch.reading, -level))
    assert {"task_error", "monotonicity", "swap"} <= set(check_precision_contract(constant, pairs).failed)


def test_a_head_that_knows_the_error_fails_the_null_and_the_swap(pfa, pairs):
    def of_error(batch):
        return -((batch.reading - batch.target[:, None]).square() + 0.02).log().clamp(-4, 4)

    report = check_precision_contract(Around(pfa, of_error), pairs)
    assert {"homoscedastic_null", "swap"} <= set(report.failed)
    assert report["homoscedastic_null"].value < -0.3 and report["task_error"].passed


def leaking(batch):
    """The last column of the evidence becomes the size of the reading's error."""
    size = (batch.reading - batch.truth).abs()
    return replace(batch, evidence=torch.cat([batch.evidence[..., :-1], size[..., None]], -1))


def test_leaking_evidence_is_refused_and_fails_the_null_if_it_is_not(pairs, monkeypatch):
    train, held_out = data(0)
    model = PrecisionModel(8, len(EVIDENCE_NAMES))
    with pytest.raises(LeakError, match="determines the size of an error"):
        fit_precision_model(model, leaking(train), leaking(held_out))
    monkeypatch.setattr("warrant_hf.precision.training.check_information_boundary", lambda *_: None)
    fit_precision_model(model, leaking(train), leaking(held_out), steps=200)
    names = ("base", "corrupted", "tied", "homoscedastic")
    report = check_precision_contract(model, replace(pairs, **{name: leaking(getattr(pairs, name)) for name in names}))
    assert "homoscedastic_null" in report.failed and report["homoscedastic_null"].high < 0, report.to_markdown()


def test_each_test_can_fail_alone(pfa, pairs):
    plain = pfa.log_precision

    class Moved(Around):  # relevance that reads the reliability evidence
        def __init__(self):
            super().__init__(pfa, plain)
            self.relevance = lambda batch: pfa.relevance(batch) + 0.2 * batch.evidence[..., 1]

    class Ignored(Around):  # calibrated, and without any say in the output
        def predict(self, batch, log_precision=None):
            return pfa.predict(batch, log_precision=torch.zeros_like(batch.reading))

    def noisy(batch):
        generator = torch.Generator().manual_seed(0)
        return plain(batch) + 0.7 * torch.randn(batch.reading.shape, generator=generator)

    failed = {
        "relevance": check_precision_contract(Moved(), pairs).failed,
        "ignored": check_precision_contract(Ignored(pfa, plain), pairs).failed,
        "level": check_precision_contract(Around(pfa, lambda batch: plain(batch) + 0.5), pairs).failed,
        "slope": check_precision_contract(Around(pfa, lambda batch: 0.5 * plain(batch)), pairs).failed,
        "upside_down": check_precision_contract(Around(pfa, lambda batch: -plain(batch)), pairs).failed,
        "noisy": check_precision_contract(Around(pfa, noisy), pairs).failed,
    }
    assert failed["relevance"] == ("relevance_invariance",)
    assert failed["ignored"] == ("task_error", "swap")
    assert failed["level"] == failed["slope"] == ("calibration",)
    assert {"task_error", "calibration", "monotonicity", "swap"} <= set(failed["upside_down"])
    assert "homoscedastic_null" in failed["noisy"]  # an unneeded uncertain channel does harm


def test_the_two_paths_do_not_touch(pfa):
    batch = SensorWorld(0).lists(20, stream=5)
    other = replace(batch, query=batch.query.flip(0), content=batch.content.flip(0), target=batch.target.flip(0))
    assert torch.equal(pfa.log_precision(batch), pfa.log_precision(other))  # no content, query or label in it
    assert torch.equal(pfa.relevance(batch), pfa.relevance(replace(batch, evidence=batch.evidence.flip(0))))
    pfa.zero_grad()
    raw = pfa.log_precision(batch)
    (pfa.predict(batch, log_precision=raw.detach()) - batch.target).square().mean().backward()
    assert pfa.head.score.weight.grad is None and pfa.of_query.weight.grad.abs().sum() > 0


def test_prediction_is_softmax_of_relevance_plus_bounded_log_precision(pfa):
    batch = SensorWorld(0).lists(50, stream=6)
    with torch.no_grad():
        given = 3 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        weights = (pfa.relevance(batch) + given.clamp(-4, 4)).softmax(-1)
        assert torch.allclose(pfa.predict(batch, log_precision=given), (weights * batch.reading).sum(-1), atol=1e-5)
        flat = pfa.predict(batch, log_precision=torch.full_like(given, 2.5))
        assert torch.allclose(flat, (pfa.relevance(batch).softmax(-1) * batch.reading).sum(-1), atol=1e-5)


def test_clipping_is_recorded(pfa):
    beyond = SensorWorld(0, severities=(2.5, 3.0)).lists(200)
    with torch.no_grad():
        assert pfa.log_precision(beyond).min() == -4.0
    assert float(pfa.clipped_share) > 0.5
    with torch.no_grad():
        pfa.log_precision(SensorWorld(0).lists(200))
    assert float(pfa.clipped_share) == 0.0


def test_a_trained_model_can_be_saved(pfa, tmp_path):
    torch.save(pfa.state_dict(), tmp_path / "m.pt")
    other = PrecisionModel(8, len(EVIDENCE_NAMES))
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    batch = SensorWorld(0).lists(10)
    assert torch.equal(other.predict(batch), pfa.predict(batch))


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"loss": "l2"}, "loss is 'l2'"), ({"steps": 0}, "steps is 0"), ({"learning_rate": 0.0}, "learning_rate is 0.0")],
)
def test_bad_training_settings(settings, named):
    batch = SensorWorld(0).lists(10)
    with pytest.raises(ValueError, match=named):
        fit_precision_model(PrecisionModel(8, 6), batch, batch, **settings)


@pytest.mark.parametrize("settings", [{"bound": 0.0}, {"size": 0}, {"evidence_size": 0}])
def test_bad_model_settings(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        PrecisionModel(**{"content_size": 8, "evidence_size": 6, **settings})


def test_what_the_contract_refuses(pfa, pairs):
    with pytest.raises(ValueError, match="20 lists"):
        check_precision_contract(pfa, SensorWorld(0).pairs(20))
    with pytest.raises(ValueError, match="log_precision gives numbers that are not finite"):
        check_precision_contract(Around(pfa, lambda batch: batch.reading * np.nan), pairs)
    with pytest.raises(ValueError, match=r"log_precision gives shape \[1000\]"):
        check_precision_contract(Around(pfa, lambda batch: batch.target), pairs)
