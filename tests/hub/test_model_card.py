"""Cards: front matter that the Hub reads, and results as they were measured."""

from huggingface_hub import ModelCard

from warrant_hf.hub import write_card
from warrant_hf.recipes import Recipe

METRICS = {
    "support_mrr": {"value": 0.87654, "low": 0.85, "high": 0.9},
    "permission_auc": {"value": 0.81, "low": 0.79, "high": 0.83},
    "hit_at_3": {"value": 0.99, "low": 0.98, "high": 1.0},
}


def write(folder, lora):
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
        results=[{"dataset": "org/data", "name": "Data, dev", "n": 400, "size": 8, "metrics": METRICS}],
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


def test_text_states_facts_and_intervals(tmp_path):
    text = write(tmp_path, None).text
    assert "| seed | 7 |" in text and "LoRA" not in text
    assert "1640 questions, licence CC BY-SA 4.0" in text
    assert "| support_mrr | 0.8765 | 0.8500 – 0.9000 |" in text
    assert "label supervision of the gate | 0.0" in text
