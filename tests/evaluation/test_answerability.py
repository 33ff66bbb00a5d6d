"""The answerability as a probability: the fit, what it is worth, and the command that puts it into a selector."""

import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.special import expit
from transformers import Trainer
from typer.testing import CliRunner

from tests.test_trainer import ROWS, arguments
from warrant_hf import AutoModelForEvidenceSelection, EvidenceCollator, EvidenceTrainer, WarrantEncoderConfig
from warrant_hf.commands.calibrate import list_pairs
from warrant_hf.evaluation.answerability import FEWEST, fit_answerability
from warrant_hf.evaluation.calibration import expected_calibration_error
from warrant_hf.space.render import gauge
from warrant_hf_cli import app

CALIBRATION = {
    "data": "dev",
    "size": 8,
    "questions": 398,
    "ece": 0.08,
    "brier": {"value": 0.19, "low": 0.18, "high": 0.2},
}


def calibrate(*arguments):
    """Exit code and output of the command, on one line."""
    done = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


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


def test_no_sentence_speaks_of_a_mass_that_base_has_not():
    with pytest.raises(ValueError, match=r"^What the answerability is made of is not larger(?!.*mass)"):
        fit_answerability([0.2] * 30, [0.6] * 30, scale=1.0, bias=0.0)


def test_a_question_counts_once():
    """The same pairs three times over, with their names, are no more questions and give no narrower interval."""
    present, absent = (expit(x) for x in drawn(40, 1.0, 0.0))
    once = fit_answerability(present, absent, scale=1.0, bias=0.0)
    names = [f"question {at}" for at in range(40)] * 3
    again = fit_answerability(np.tile(present, 3), np.tile(absent, 3), scale=1.0, bias=0.0, names=names)
    assert again.questions == once.questions == 40
    assert (again.scale, again.bias) == pytest.approx((once.scale, once.bias), rel=1e-2)
    width = [fit.before["brier"]["high"] - fit.before["brier"]["low"] for fit in (once, again)]
    assert width[1] == pytest.approx(width[0], rel=0.2)
    with pytest.raises(ValueError, match=f"19 questions have lists .* at least {FEWEST}"):
        fit_answerability(present, absent, scale=1.0, bias=0.0, names=[str(at % 19) for at in range(40)])
    with pytest.raises(ValueError, match="names has 3 values and present 40"):
        fit_answerability(present, absent, scale=1.0, bias=0.0, names=["a", "b", "c"])


def test_lists_that_part_completely_give_finite_numbers():
    fit = fit_answerability([0.9] * 50, [0.1] * 50, scale=1.0, bias=0.0)
    assert 1 < fit.scale < 100 and fit.after["brier"]["value"] < 1e-3


@pytest.fixture(scope="module")
def command(tiny_model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    model, output = folder / "trained", folder / "calibrated"
    shutil.copytree(tiny_model_dir, model)
    (model / "README.md").write_text("---\nlicense: mit\n---\nA card.\n")
    (model / "reliability.png").write_bytes(b"\x89PNG")
    (model / "recipe.json").write_text("{}")
    arguments = ["--model", model, "--data", "world:40:1", "--size", "4"]
    return arguments, output, calibrate(*arguments, "--output", output)


def test_command_changes_two_numbers_and_says_so(command, tiny_model):
    _, output, (exit_code, told) = command
    if "not larger where a list holds evidence" in told:
        pytest.fail("the random selector of this test orders lists the wrong way; take another seed of the world")
    assert exit_code == 0, told
    assert "| fitted on other questions |" in told and "total mass of" in told
    made = AutoModelForEvidenceSelection.from_pretrained(output)
    ours, theirs = made.state_dict(), tiny_model.state_dict()
    changed = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    assert changed == {"readout.mass_scale", "readout.mass_bias"}
    found = made.config.answerability_calibration
    assert (found["size"], found["data"]) == (4, "world:40:1") and found["questions"] > 20
    asked = "who wrote it?", ["ann did", "bob did"]
    assert made.rank(*asked)["evidence"] == tiny_model.rank(*asked)["evidence"]


def test_card_figure_and_recipe_come_along(command):
    arguments, output, _ = command
    found = json.loads((output / "config.json").read_text())["answerability_calibration"]
    card = (output / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\nA card.\n\n") and card.count("## Answerability") == 1
    assert f"| Brier score | {found['brier']['value']:.4f}, 95 % interval {found['brier']['low']:.4f}" in card
    assert f"| calibration error, 15 bins | {found['ece']:.4f} |" in card and "out of fold" in card
    for name in ("reliability.png", "recipe.json"):
        assert (output / name).read_bytes() == (arguments[1] / name).read_bytes()


def test_calibrating_again_writes_the_section_anew(command, tmp_path):
    _, output, _ = command
    again = AutoModelForEvidenceSelection.from_pretrained(output)
    again.readout.mass_bias.data += 3.0
    again.save_pretrained(tmp_path / "moved")
    shutil.copy(output / "README.md", tmp_path / "moved")
    arguments = "--model", tmp_path / "moved", "--data", "world:40:1", "--size", 3, "--output", tmp_path / "made"
    exit_code, told = calibrate(*arguments)
    assert exit_code == 0, told
    card = (tmp_path / "made" / "README.md").read_text()
    assert card.count("## Answerability") == 1 and "| candidates a list | 3 |" in card and "A card." in card


def test_a_model_without_a_card_gets_one_that_says_so(command, tiny_model_dir, tmp_path):
    arguments, _, _ = command
    exit_code, told = calibrate("--model", tiny_model_dir, *arguments[2:], "--output", tmp_path / "made")
    assert exit_code == 0 and f"{tiny_model_dir} has no README.md" in told, told
    card = (tmp_path / "made" / "README.md").read_text()
    assert "Nobody has written down here" in card and card.count("## Answerability") == 1


def test_a_fit_that_is_worse_is_not_saved(command, tmp_path):
    """What was fitted on these very lists is better on them than what folds of them say."""
    arguments, output, _ = command
    again = "--model", output, *arguments[2:]
    exit_code, told = calibrate(*again, "--output", tmp_path / "worse")
    assert exit_code == 2 and "Error: Nothing was written. Out of fold, the fit has the Brier score" in told
    assert not (tmp_path / "worse").exists()
    exit_code, told = calibrate(*again)
    assert exit_code == 0 and "which is worse than" in told and "--output DIR saves" not in told


def test_command_writes_over_nothing(command):
    arguments, output, _ = command
    exit_code, told = calibrate(*arguments, "--output", output)
    assert exit_code == 2 and "exists already" in told


@pytest.mark.parametrize("output", ["/proc/x", "/dev/null/x", " ", "n" * 300])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_read(output):
    exit_code, told = calibrate("--model", "nowhere/at-all", "--data", "missing.jsonl", "--output", output)
    assert exit_code == 2 and told.startswith("Error: --output ") and "folder" in told and "Traceback" not in told


# Rows ----------------------------------------------------------------------------------------------------------------


def rows_file(path, shapes):
    """A question for each (golds, distractors)."""
    lines = []
    for at, labels in enumerate([1] * golds + [0] * others for golds, others in shapes):
        candidates = [{"text": f"text {at} {number}", "label": label} for number, label in enumerate(labels)]
        lines.append(json.dumps({"id": str(at), "question": f"question {at}", "candidates": candidates}))
    path.write_text("\n".join(lines) + "\n")
    return path


def pairs_of(path, size):
    return list_pairs(path, level="sentence", size=size, limit=None, seed=0)


def test_rows_that_are_left_out_are_counted(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [(1, 8)] * 25 + [(0, 9)] * 3 + [(2, 7)] * 4 + [(3, 0)])
    pairs, note = pairs_of(path, 8)
    assert len(pairs) == 25 and all(len(a.candidates) == len(b.candidates) == 8 for a, b in pairs)
    assert note == "Left out, of 33 rows: 3 without evidence, 5 with fewer distractors than their list is long."
    assert pairs_of(rows_file(path, [(1, 8)] * 20), 8)[1] == ""


def test_too_few_rows_name_the_size_that_works(tmp_path):
    shapes = [(1, 8)] * 3 + [(2, 5)] * 16 + [(1, 4)] * 6 + [(5, 4)] * 9 + [(0, 9)]
    path = rows_file(tmp_path / "rows.jsonl", shapes)
    with pytest.raises(ValueError, match="3 questions have lists of 8 .* use --size 4. Left out, of 35 rows: 31 with"):
        pairs_of(path, 8)
    assert len(pairs_of(path, 4)[0]) == 25
    with pytest.raises(ValueError, match="19 questions .* use --size 4"):
        pairs_of(path, 5)
    with pytest.raises(ValueError, match="0 questions .* give more rows with evidence and as many distractors"):
        pairs_of(rows_file(path, [(5, 4)] * 30), 4)


def test_rows_of_one_question_are_one_question(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [(1, 4)] * 40)
    path.write_text(path.read_text().replace("question 1", "Question  1").replace("question 2", "question 1"))
    with pytest.raises(ValueError, match="^.*: 19 questions .* give more rows"):
        list_pairs(path, level="sentence", size=4, limit=29, seed=0)


# Config and training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "is 'x'; it must be a dict"),
        ([1], r"is \[1\]; it must be a dict"),
        ({"a": 1}, "the data None; it must be a text"),
        (CALIBRATION | {"size": 0}, "the size 0; it must be a whole number"),
        (CALIBRATION | {"questions": True}, "the questions True; it must be a whole number"),
        (CALIBRATION | {"ece": float("nan")}, "the ece nan; it must be a number from 0 to 1"),
        (CALIBRATION | {"brier": 0.2}, "the brier 0.2; it must be a dict with value, low and high"),
        (CALIBRATION | {"brier": {"value": 0.2}}, "the brier {'value': 0.2}; it must be a dict"),
    ],
)
def test_config_takes_no_other_calibration(value, words):
    with pytest.raises(ValueError, match=f"answerability_calibration.* {words}"):
        WarrantEncoderConfig(answerability_calibration=value)
    assert WarrantEncoderConfig(answerability_calibration=CALIBRATION).answerability_calibration == CALIBRATION


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "peft"])
@pytest.mark.parametrize("kind", [EvidenceTrainer, Trainer])
def test_training_clears_the_calibration(tiny_model_dir, tmp_path, wrapped, kind):
    model = AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir)
    processor, model.config.answerability_calibration = model.processor, CALIBRATION
    if wrapped:
        model = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=["readout"]))
    data = {"train_dataset": ROWS, "data_collator": EvidenceCollator(processor)}
    trainer = kind(model, arguments(tmp_path), **data)
    model.eval()(**EvidenceCollator(processor)(ROWS))
    assert model.config.answerability_calibration == CALIBRATION, "a loss alone changes no weights"
    trainer.train()
    selector = model.get_base_model() if wrapped else model
    selector.config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).get("answerability_calibration") is None


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
