"""The rivals of the experiment differ in where the reliability head acts, and in nothing else."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from warrant_hf.precision import SensorWorld, check_precision_contract

FOLDER = Path(__file__).parents[2] / "training" / "experiments"


def load(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


RIVALS = load("precision_rival_models").RIVALS


@pytest.mark.parametrize("name", RIVALS)
def test_equal_start_equal_size(name):
    kind, bound, _, needs_entmax, _ = RIVALS[name]
    if needs_entmax:
        pytest.importorskip("entmax")
    models = []
    for made, its_bound in ((kind, bound), (RIVALS["pfa"][0], 4.0)):
        torch.manual_seed(0)
        models.append(made(8, 6, bound=its_bound))
    model, pfa = models
    extra = {"temperature": 1, "entropy": 2}.get(name, 0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == sum(parameter.numel() for parameter in pfa.parameters()) + extra
    batch = SensorWorld(0).lists(30)
    with torch.no_grad():  # with the head at 0 all have the same relevance, and a shift of all readings passes through
        assert torch.allclose(model.relevance(batch), pfa.relevance(batch), atol=1e-6)
        if not needs_entmax:
            assert torch.allclose(model.predict(batch), pfa.predict(batch), atol=1e-5)
        before, batch.reading[:] = model.predict(batch), batch.reading + 1
        assert torch.allclose(model.predict(batch), before + 1, atol=1e-4)


def test_blind_softmax_does_not_see_its_own_evidence():
    torch.manual_seed(0)
    model = RIVALS["softmax_blind"][0](8, 6, bound=None)
    torch.nn.init.normal_(model.head.score.weight)
    batch = SensorWorld(0).lists(3)
    with torch.no_grad():
        before = model.relevance(batch)
        batch.evidence[1] += 5
        assert (model.relevance(batch) != before).any(1).tolist() == [False, False, True]


def test_reliability_in_the_keys_fails_relevance_invariance():
    torch.manual_seed(0)
    model = RIVALS["softmax"][0](8, 6, bound=None)
    torch.nn.init.normal_(model.head.score.weight)
    report = check_precision_contract(model, SensorWorld(0).pairs(200), resamples=100)
    assert {"relevance_invariance", "monotonicity", "swap"} <= set(report.failed)
