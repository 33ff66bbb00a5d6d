"""Evidence that knows the answer is refused, whatever its shape; honest evidence passes."""

import numpy as np
import pytest

from warrant_hf.precision import EVIDENCE_NAMES, LeakError, SensorWorld, check_information_boundary
from warrant_hf.precision.information_boundary import dependence


@pytest.fixture(scope="module")
def world():
    batch = SensorWorld(5).lists(500)
    error = (batch.reading - batch.truth).numpy()
    labels = {"the target": batch.target.numpy(), "the error": error, "the size of an error": np.abs(error)}
    return batch.evidence.numpy(), labels


def with_column(evidence, column):
    return np.concatenate([evidence, np.broadcast_to(column, evidence.shape[:2])[..., None]], axis=-1)


def test_honest_evidence_passes(world):
    check_information_boundary(world[0], world[1], EVIDENCE_NAMES)


@pytest.mark.parametrize(
    ("label", "shape"),
    [
        ("the target", lambda y: y),
        ("the target", lambda y: 5 - 3 * y),
        ("the target", np.exp),
        ("the target", lambda y: np.round(y, 1)),
        ("the error", lambda y: y),
        ("the error", lambda y: y**3),
        ("the size of an error", lambda y: np.log(y + 1e-9)),
        ("the size of an error", lambda y: y + 0.01 * np.sin(17 * y)),
    ],
)
def test_a_column_that_determines_a_label_is_refused(world, label, shape):
    evidence, labels = world
    values = labels[label] if labels[label].ndim == 2 else labels[label][:, None]
    with pytest.raises(LeakError, match=f"'leak' determines {label}"):
        check_information_boundary(with_column(evidence, shape(values)), labels, [*EVIDENCE_NAMES, "leak"])


def test_a_signed_leak_determines_the_size(world):
    evidence, labels = world
    leaking = with_column(evidence, labels["the error"])
    with pytest.raises(LeakError, match="determines the size"):
        check_information_boundary(leaking, {"the size of an error": labels["the size of an error"]})


def test_columns_that_determine_a_label_together_are_refused(world):
    evidence, labels = world
    rng = np.random.default_rng(0)
    mask = 5 * rng.normal(size=evidence.shape[:2])
    leaking = with_column(with_column(evidence, mask), labels["the target"][:, None] - mask)
    with pytest.raises(LeakError, match="together determine the target"):
        check_information_boundary(leaking, labels)


def test_discrete_labels(world):
    evidence, labels = world
    classes = (labels["the target"] > 0).astype(float)
    check_information_boundary(evidence, {"class": classes})
    with pytest.raises(LeakError):
        check_information_boundary(with_column(evidence, labels["the target"][:, None]), {"class": classes})


def test_dependence_is_chatterjees_coefficient():
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=400), rng.normal(size=400)
    for other in (y, x + 0.3 * y, np.sin(3 * x), np.round(y), np.round(x)):
        expected = scipy_stats.chatterjeexi(x, other, y_continuous=len(np.unique(other)) == 400).statistic
        assert dependence(x, other) == pytest.approx(expected, abs=1e-12)
    assert abs(dependence(x, y)) < 0.1 and dependence(x, x**2) > 0.95 and dependence(x, np.ones(400)) == 0


def test_bad_arguments(world):
    evidence, labels = world
    with pytest.raises(ValueError, match=r"label short has shape \[3\]"):
        check_information_boundary(evidence, {"short": np.zeros(3)})
    with pytest.raises(ValueError, match="names has 1 entries"):
        check_information_boundary(evidence, labels, ["a"])
    with pytest.raises(ValueError, match="50 sensors or more"):
        check_information_boundary(evidence[:2], {"y": np.zeros(2)})
    with pytest.raises(ValueError, match="finite"):
        check_information_boundary(evidence * np.nan, labels)
