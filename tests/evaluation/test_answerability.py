"""The answerability as a probability: the fit, what it is worth, and the command that puts it into a selector."""

import shutil

import numpy as np
import pytest
import torch
from scipy.special import expit
from typer.testing import CliRunner

from warrant_hf import AutoModelForEvidenceSelection
from warrant_hf.evaluation.answerability import FEWEST, fit_answerability
from warrant_hf.evaluation.calibration import expected_calibration_error
from warrant_hf.space.render import gauge
from warrant_hf_cli import app


def drawn(questions, scale, bias, seed=0):
    """x of lists with and without evidence, of which P(evidence) = sigmoid(scale x + bias) is true."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=20 * questions)
    holds = rng.random(len(x)) < expit(scale * x + bias)
    return x[holds][:questions], x[~holds][:questions]


def test_finds_the_numbers_that_made_the_lists():
    """From an answerability that is far too timid."""
    present, absent = drawn(4_000, 2.0, 0.0)
    fit = fit_answerability(expit(0.3 * present - 1), expit(0.3 * absent - 1), scale=0.3, bias=-1.0)
    assert fit.scale == pytest.approx(2.0, abs=0.1)
    # As many lists with evidence as without were kept, of x that is symmetric.
    assert fit.bias == pytest.approx(0.0, abs=0.1)
    assert fit.before["ece"] > 0.1 > 0.03 > fit.after["ece"]
    assert fit.after["brier"]["high"] < fit.before["brier"]["low"]
    assert fit.questions == 4_000


def test_what_it_is_worth_is_measured_on_questions_that_it_has_not_seen():
    """On noise, a fit says .5, and no better than that is reported."""
    rng = np.random.default_rng(1)
    present, absent = rng.normal(size=40) + 0.05, rng.normal(size=40)
    fit = fit_answerability(expit(present), expit(absent), scale=1.0, bias=0.0)
    in_sample = expit(fit.scale * np.concatenate([present, absent]) + fit.bias)
    seen = ((in_sample - np.repeat([1, 0], 40)) ** 2).mean()
    assert seen <= 0.25 < fit.after["brier"]["value"]


def test_calibrating_twice_changes_nothing():
    present, absent = drawn(500, 1.5, 0.4)
    first = fit_answerability(expit(present), expit(absent), scale=1.0, bias=0.0)
    again = [expit(first.scale * x + first.bias) for x in (present, absent)]
    second = fit_answerability(*again, scale=first.scale, bias=first.bias)
    assert (second.scale, second.bias) == pytest.approx((first.scale, first.bias), rel=1e-4)
    labels = np.repeat([1, 0], 500)
    assert second.before["ece"] == expected_calibration_error(np.concatenate(again), labels)


@pytest.mark.parametrize(
    ("present", "absent", "scale", "message"),
    [
        ([0.5] * (FEWEST - 1), [0.4] * (FEWEST - 1), 1.0, f"at least {FEWEST}"),
        ([0.5] * 30, [0.4] * 29, 1.0, "present has 30 values and absent 29"),
        ([0.5] * 30, [0.5] * 30, 0.0, "mass_scale is 0"),
        (np.linspace(0.1, 0.5, 30), np.linspace(0.4, 0.9, 30), 1.0, "not larger where a list holds evidence"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(present, absent, scale, message):
    with pytest.raises(ValueError, match=message):
        fit_answerability(present, absent, scale=scale, bias=0.0)


def test_lists_that_part_completely_give_finite_numbers():
    fit = fit_answerability([0.9] * 50, [0.1] * 50, scale=1.0, bias=0.0)
    assert 1 < fit.scale < 100 and fit.after["brier"]["value"] < 1e-3


@pytest.fixture(scope="module")
def command(tiny_model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    model, output = folder / "trained", folder / "calibrated"
    shutil.copytree(tiny_model_dir, model)
    (model / "README.md").write_text("---\nlicense: mit\n---\nA card.\n")
    arguments = ["calibrate", "--model", str(model), "--data", "world:40:1", "--size", "4"]
    done = CliRunner().invoke(app, [*arguments, "--output", str(output)])
    return arguments, output, done


def test_command_changes_two_numbers_and_says_so(command, tiny_model):
    _, output, done = command
    if "not larger where a list holds evidence" in done.output:
        pytest.fail("the random selector of this test orders lists the wrong way; take another seed of the world")
    assert done.exit_code == 0, done.output
    assert "| fitted on other questions |" in done.output and "total mass of" in done.output
    made = AutoModelForEvidenceSelection.from_pretrained(output)
    ours, theirs = made.state_dict(), tiny_model.state_dict()
    changed = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    assert changed == {"readout.mass_scale", "readout.mass_bias"}
    found = made.config.answerability_calibration
    assert (found["size"], found["data"]) == (4, "world:40:1") and found["questions"] > 20
    assert (output / "README.md").read_text().endswith("A card.\n")
    asked = "who wrote it?", ["ann did", "bob did"]
    assert made.rank(*asked)["evidence"] == tiny_model.rank(*asked)["evidence"]


def test_command_writes_over_nothing(command):
    arguments, output, _ = command
    done = CliRunner().invoke(app, [*arguments, "--output", str(output)])
    assert done.exit_code == 2 and "exists already" in done.output


def test_training_goes_on_without_the_calibration(command):
    from warrant_hf.recipes import Recipe, build

    model, _ = build(Recipe(start_from=str(command[1])))
    assert model.config.answerability_calibration is None


def test_gauge_says_what_the_number_is(tiny_model):
    result = tiny_model.rank("who wrote it?", ["ann did", "bob did"])
    plain = gauge(result)
    assert "no calibrated probability" in plain and "eg-mark" not in plain
    facts = {"questions": 398, "size": 8}
    for value, words in ((0.71, "Yes: answerable 0.71 is above 0.5."), (0.49, "No: answerable 0.49 is below 0.5.")):
        shown = gauge(result | {"answerability": value}, calibration=facts)
        assert words in shown and "398 questions with lists of 8 passages" in shown and "left:50.0%" in shown
