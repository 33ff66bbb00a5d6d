"""SensorWorld: relevance and reliability have separate causes, and pairs differ in one."""

import numpy as np
import pytest
import torch

from warrant_hf.precision import EVIDENCE_NAMES, SensorWorld
from warrant_hf.precision.sensor_world import with_swapped_evidence


def test_shapes_and_streams():
    world = SensorWorld(3, sensors=6, relevant=2)
    batch = world.lists(50)
    assert batch.reading.shape == batch.variance.shape == batch.relevant.shape == (50, 6)
    assert batch.evidence.shape == (50, 6, len(EVIDENCE_NAMES)) and batch.target.shape == (50,)
    assert batch.relevant.sum(1).tolist() == [2] * 50
    assert torch.equal(batch.truth[batch.relevant], batch.target.repeat_interleave(2))
    again, other = SensorWorld(3, sensors=6, relevant=2).lists(50), world.lists(50, stream=1)
    assert torch.equal(batch.reading, again.reading) and not torch.equal(batch.reading, other.reading)
    assert len(batch.rows(slice(0, 7))) == 7


def test_noise_has_the_declared_variance_and_repeats_are_independent():
    batch = SensorWorld(1).lists(20_000)
    scaled = (batch.reading - batch.truth) / batch.variance.sqrt()
    repeated = (batch.repeat - batch.truth) / batch.variance.sqrt()
    assert scaled.mean().abs() < 0.01 and (scaled.var() - 1).abs() < 0.02
    assert (scaled * repeated).mean().abs() < 0.01
    assert ((batch.residual().square() / batch.variance).mean() - 1).abs() < 0.02
    log_spread = batch.evidence[..., EVIDENCE_NAMES.index("log_spread")]
    assert np.corrcoef(log_spread.flatten(), batch.variance.log().flatten())[0, 1] > 0.9


def test_pairs_differ_in_one_sensors_severity_only():
    pairs = SensorWorld(2).pairs(300)
    rows = torch.arange(300)
    for name in ("query", "content", "target", "truth"):
        assert torch.equal(getattr(pairs.base, name), getattr(pairs.corrupted, name))
    others = torch.ones(300, 8, dtype=torch.bool)
    others[rows, pairs.changed] = False
    for name in ("evidence", "reading", "variance"):
        assert torch.equal(getattr(pairs.base, name)[others], getattr(pairs.corrupted, name)[others])
    severity = EVIDENCE_NAMES.index("severity")
    added = (pairs.corrupted.evidence - pairs.base.evidence)[rows, pairs.changed]
    assert (added[:, severity] > 0.29).all() and (added[:, [0, 3, 4, 5]] == 0).all()
    assert (pairs.corrupted.variance > pairs.base.variance)[rows, pairs.changed].all()
    assert pairs.base.relevant[rows, pairs.changed].all()


def test_tied_pairs_are_relevant_alike_and_swapping_twice_is_nothing():
    pairs = SensorWorld(2).pairs(300)
    rows = torch.arange(300)
    precise, imprecise = pairs.swap.unbind(1)
    assert torch.equal(pairs.tied.content[rows, precise], pairs.tied.content[rows, imprecise])
    assert pairs.tied.relevant[rows[:, None], pairs.swap].all()
    assert (pairs.tied.variance[rows, precise] < pairs.tied.variance[rows, imprecise]).all()
    once = with_swapped_evidence(pairs.tied, pairs.swap)
    assert torch.equal(once.evidence[rows, precise], pairs.tied.evidence[rows, imprecise])
    assert torch.equal(once.reading, pairs.tied.reading)
    assert torch.equal(with_swapped_evidence(once, pairs.swap).evidence, pairs.tied.evidence)


def test_homoscedastic_lists_have_one_variance():
    assert SensorWorld(4).lists(100, homoscedastic=True).variance.unique().numel() == 1


def test_options():
    levels = SensorWorld(0, levels=3).lists(500).evidence[..., 1].unique().tolist()
    assert levels == [0.0, 0.5, 1.0]
    biased = SensorWorld(0, bias=5.0).lists(2000)
    assert ((biased.reading - biased.truth).mean(0)[:2] - torch.tensor([5.0, 0.0])).abs().max() < 0.2
    batch = SensorWorld(0, duplicates=2, correlation=1.0).lists(50)
    assert torch.allclose(batch.reading[:, 0], batch.reading[:, 1])
    beyond = SensorWorld(0, severities=(1.5, 1.5)).lists(2000).variance.log().mean()
    within = SensorWorld(0, severities=(1.0, 1.0)).lists(2000).variance.log().mean()
    assert beyond - within == pytest.approx(3.0, abs=0.01)  # twice 3 * 0.5


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"relevant": 1}, "relevant is 1"),
        ({"relevant": 9}, "relevant is 9"),
        ({"duplicates": 5}, "duplicates is 5"),
        ({"correlation": 1.5}, "correlation is 1.5"),
        ({"severities": (1.0, 0.0)}, "severities is"),
        ({"levels": 1}, "levels is 1"),
    ],
)
def test_bad_settings(settings, named):
    with pytest.raises(ValueError, match=named):
        SensorWorld(**settings)
