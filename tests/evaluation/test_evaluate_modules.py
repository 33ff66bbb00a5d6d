"""The modules for `evaluate` load without a network and give the values of warrant_hf.evaluation."""

import json
import random
from pathlib import Path

import pytest
import yaml

from warrant_hf import __version__
from warrant_hf.evaluation import abstention_auroc, evidence_metrics

evaluate = pytest.importorskip("evaluate")
MODULES = Path(__file__).parents[2] / "evaluate_modules"
NAMES = ("evidence_selection", "permission_auc", "evidence_abstention")
DRAW = random.Random(0)
LABELS = [[1, 0, 0], [0, 1], [0, 0, 1, 1], [1, 0]]
SCORES, PERMISSION, PROBABILITIES = ([[DRAW.random() for _ in row] for row in LABELS] for _ in range(3))
KINDS = [["gold" if label else DRAW.choice(["hard", "random"]) for label in row] for row in LABELS]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    cache = tmp_path_factory.mktemp("evaluate")
    return lambda name: evaluate.load(str(MODULES / name), cache_dir=str(cache))


def rows(**columns):
    lists = [dict(zip(columns, row)) for row in zip(*columns.values(), strict=True)]
    return [{"id": str(number), "labels": LABELS[number], **row} for number, row in enumerate(lists)]


def test_evidence_selection(load):
    metric, lists = load("evidence_selection"), {"permission": PERMISSION, "probabilities": PROBABILITIES}
    given = {**lists, "kinds": KINDS, "bootstrap": 50, "seed": 3}
    found = metric.compute(predictions=SCORES, references=LABELS, **given)
    assert found == evidence_metrics(rows(scores=SCORES, **lists, kinds=KINDS), bootstrap=50, seed=3)
    assert {"support_mrr", "evidence_f1", "permission_auc", "ece", "gold_hard_auc"} <= set(found)


def test_evidence_selection_row_by_row(load):
    metric = load("evidence_selection")
    for scores, labels in zip(SCORES, LABELS, strict=True):
        metric.add(prediction=scores, reference=labels)
    assert metric.compute(bootstrap=20) == evidence_metrics(rows(scores=SCORES), bootstrap=20)


def test_permission_auc(load):
    found = load("permission_auc").compute(predictions=PERMISSION, references=LABELS, bootstrap=50)
    expected = evidence_metrics(rows(scores=SCORES, permission=PERMISSION), bootstrap=50)
    assert set(found) == {"permission_auc", "permission_auc_within"}
    assert found == {name: expected[name] for name in found}


def test_evidence_abstention(load):
    present, absent = [0.9, 0.4, 0.7], [0.5, 0.2, 0.6]
    mixed = [value for pair in zip(present, absent, strict=True) for value in pair]
    found = load("evidence_abstention").compute(predictions=mixed, references=[1, 0] * 3, bootstrap=50)
    assert found == {"abstention_auroc": abstention_auroc(present, absent, bootstrap=50)}


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("evidence_selection", {"predictions": [[1.0]], "references": [[1, 0]]}, "1 values|2 labels|give one"),
        ("evidence_selection", {"predictions": [[1.0]], "references": [[1]], "colour": [[1]]}, "'colour' is no input"),
        (
            "evidence_selection",
            {"predictions": [[1.0]], "references": [[1]], "kinds": []},
            "kinds has 0 entries for 1",
        ),
        ("evidence_abstention", {"predictions": [1.0, 0.0], "references": [1, 2]}, "references holds 2; give 1"),
    ],
)
def test_bad_input_is_one_sentence(load, name, given, message):
    with pytest.raises(ValueError, match=message):
        load(name).compute(**given)


@pytest.mark.parametrize("name", NAMES)
def test_layout_of_a_space(name):
    text = (MODULES / name / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---")[1])
    assert (front["sdk"], front["app_file"]) == ("gradio", "app.py")
    assert {"evaluate", "metric"} <= set(front["tags"]) and len(front["short_description"]) <= 60
    assert (MODULES / name / "app.py").is_file()
    needed = (MODULES / name / "requirements.txt").read_text(encoding="utf-8").split()
    assert needed == ["evaluate>=0.4.6", f"warrant-hf=={__version__}"]


@pytest.mark.parametrize("name", NAMES)
def test_example_of_the_readme(load, name):
    text = (MODULES / name / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0].replace('"evaluate_modules/', f'"{MODULES}/')
    *statements, last = code.strip().splitlines()
    names = {}
    exec("\n".join(statements), names)
    assert str(eval(last, names)) == text.split("```text\n")[1].split("```")[0].strip()


@pytest.mark.parametrize("name", NAMES)
def test_page_measures_its_own_example(name):
    pytest.importorskip("gradio")
    names = {"__file__": str(MODULES / name / "app.py"), "__name__": "page"}
    exec(compile((MODULES / name / "app.py").read_text(encoding="utf-8"), "app.py", "exec"), names)
    examples = [component.value for component in names["page"].input_components]
    found = names["measure"](*examples)
    assert found and all(0 <= entry["value"] <= 1 for entry in json.loads(json.dumps(found)).values())
