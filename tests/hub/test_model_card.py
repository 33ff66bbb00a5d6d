"""Cards: front matter that the Hub reads, results as they were measured, and code that prints what the card says."""

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from warrant_hf import AutoModelForEvidenceSelection, EvidenceWorld
from warrant_hf.data import build_candidates
from warrant_hf.evaluation import evidence_metrics
from warrant_hf.evaluation.predict import predict
from warrant_hf.hub import write_card
from warrant_hf.hub.reliability_figure import save_reliability_diagram
from warrant_hf.recipes import Recipe, train

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"

METRICS = {
    "support_mrr": {"value": 0.87654, "low": 0.85, "high": 0.9},
    "permission_auc": {"value": 0.81, "low": 0.79, "high": 0.83},
    "hit_at_3": {"value": 0.99, "low": 0.98, "high": 1.0},
}
BINS = [
    {"low": 0.0, "high": 1 / 15, "count": 90, "probability": 0.03, "frequency": 0.05},
    {"low": 14 / 15, "high": 1.0, "count": 10, "probability": 0.97, "frequency": 0.9},
]


def write(folder, lora, **result):
    recipe = Recipe(
        base_model="org/encoder",
        model={"variant": "pair"},
        lora=lora,
        training={"learning_rate": 1e-3, "per_device_train_batch_size": 8},
        seed=7,
    )
    write_card(
        folder,
        recipe=recipe.model_dump(),
        results=[{"dataset": "org/data", "name": "Data, dev", "n": 400, "size": 8, "metrics": METRICS} | result],
        licence="apache-2.0",
        train={"dataset": "org/data", "licence": "CC BY-SA 4.0", "rows": 1640, "machine": "CPU"},
        library_versions={"torch": "2.13.0"},
    )
    return ModelCard.load(folder / "README.md")


def test_front_matter(tmp_path):
    data = write(tmp_path, {"r": 8, "alpha": 16}).data
    assert (data.license, data.base_model, data.pipeline_tag) == ("apache-2.0", "org/encoder", "text-ranking")
    assert data.datasets == ["org/data"] and "peft" in data.tags
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured == {"support_mrr": 0.8765, "permission_auc": 0.81}
    assert data.eval_results[0].metric_args == {"questions": 400, "interval_95": [0.85, 0.9]}


def test_front_matter_comes_back_as_it_went(tmp_path):
    card = write(tmp_path, None)
    again = ModelCard(str(card), ignore_metadata_errors=False)
    assert again.data.to_dict() == card.data.to_dict() and again.text == card.text


def test_text_states_facts_and_intervals(tmp_path):
    text = write(tmp_path, None).text
    assert "| seed | 7 |" in text and "LoRA" not in text
    assert "1640 questions, licence CC BY-SA 4.0" in text
    assert "| support_mrr | 0.8765 | 0.8500 – 0.9000 |" in text
    assert "label supervision of the gate | 0.0" in text
    assert "nothing is known about its results on other data" in text


@pytest.mark.parametrize(
    ("lora", "line"),
    [
        ({"r": 8, "alpha": 16}, "| LoRA | rank 8, alpha 16; the readout is trained in full |"),
        ({"method": "dora", "r": 8, "alpha": 16}, "| DoRA | rank 8, alpha 16;"),
        ({"method": "ia3"}, "| adapter | IA³; the readout is trained in full |"),
    ],
)
def test_text_says_which_adapter(tmp_path, lora, line):
    assert line in write(tmp_path, lora).text


def test_what_nobody_has_said_is_not_claimed(tmp_path):
    """A folder is no model of the Hub, a file no data set; a licence is not made up, nor a result."""
    (tmp_path / "encoder").mkdir()
    recipe = Recipe(base_model=str(tmp_path / "encoder"), training={}).model_dump()
    train_facts = {"dataset": "rows.jsonl", "licence": "not stated", "rows": 3, "machine": "CPU", "language": None}
    write_card(tmp_path, recipe=recipe, results=[], licence=None, train=train_facts, library_versions={})
    card = ModelCard.load(tmp_path / "README.md")
    kept = {
        "library_name": "transformers",
        "pipeline_tag": "text-ranking",
        "tags": ["evidence-selection", "warrant-hf"],
    }
    assert card.data.to_dict() == kept
    assert "Not measured" in card.text and "output of this snippet was not recorded" in card.text
    assert "| licence of the weights | not stated |" in card.text
    assert "Calibration" not in card.text and not list(tmp_path.glob("*.png"))


def test_undefined_intervals_are_dashes(tmp_path):
    card = write(tmp_path, None, metrics={"ece": {"value": 0.1, "low": None, "high": float("nan")}}, digits=2)
    assert "| ece | 0.10 | – |" in card.text
    assert card.data.eval_results[0].metric_args == {"questions": 400}


def test_calibration_is_drawn_beside_the_card(tmp_path):
    pytest.importorskip("matplotlib")
    card = write(tmp_path, None, calibration=BINS)
    assert "(reliability.png)" in card.text and (tmp_path / "reliability.png").read_bytes().startswith(PNG)


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="curves has no bins"):
        save_reliability_diagram(tmp_path / "empty.png", {"Data": []})
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tiny_encoder_dir, tmp_path_factory):
    """A finished training run, and the rows it was measured on."""
    folder = tmp_path_factory.mktemp("card")
    recipe = Recipe(
        base_model=str(tiny_encoder_dir),
        model={"readout_size": 32, "readout_heads": 2, "gate_size": 16},
        data={"size": 4, "hard": 2, "max_length": 128, "max_question_tokens": 48},
        training={"max_steps": 1, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"},
        licence="cc-by-4.0",
    )
    train(recipe, train_file="world:6:1", eval_file="world:8:2", output_dir=folder / "trained")
    return folder / "trained"


def test_a_run_leaves_its_card(run):
    card, model = ModelCard.load(run / "README.md"), AutoModelForEvidenceSelection.from_pretrained(run)
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert {"support_mrr", "permission_auc", "abstention_auroc", "ece"} <= set(found)
    assert "EvidenceWorld, generated (world:6:1), 6 questions" in card.text and "8 questions" in card.text
    assert card.data.license == "cc-by-4.0" and "| licence of the weights | cc-by-4.0 |" in card.text
    assert "label supervision of the gate | 0.0" in card.text and "| variant | pair |" in card.text

    lists = [build_candidates(row, size=4, hard=2, seed="eval") for row in EvidenceWorld(2).generate(8)]
    expected = evidence_metrics(predict(model, lists, 8), bootstrap=0)
    assert found["support_mrr"] == pytest.approx(expected["support_mrr"]["value"], abs=1e-4)
    recipe = yaml.safe_load(card.text.split("```yaml\n")[1].split("```")[0])
    assert recipe == json.loads((run / "recipe.json").read_text())


def test_the_code_of_a_card_prints_its_output(run, monkeypatch, capsys):
    text = (run / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (output,) = re.findall(r"```text\n(.*?)```", text, re.S)
    monkeypatch.chdir(run.parent)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_each_recipe_has_its_card():
    for recipe in sorted((ROOT / "training" / "recipes").glob("*.yaml")):
        card = ModelCard.load(ROOT / "model_cards" / f"{recipe.stem}.md")
        facts = json.loads((ROOT / "model_cards" / "facts" / f"{recipe.stem}.json").read_text(encoding="utf-8"))
        measured = [(entry.dataset_name, entry.metric_type) for entry in card.data.eval_results or ()]
        assert bool(measured) == bool(facts["results"]) != ("Not measured" in card.text)
        for figure in re.findall(r"!\[.*?\]\((.*?)\)", card.text):
            assert (ROOT / "model_cards" / figure).read_bytes().startswith(PNG)
