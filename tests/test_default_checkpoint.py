"""The checkpoint that ships: it loads without a network, is small, and does what the README says."""

from pathlib import Path

import pytest

from warrant_hf.modeling import DEFAULT_CHECKPOINT
from warrant_hf.space.examples import COMPARISON, NO_EVIDENCE


@pytest.fixture(scope="module")
def model():
    from warrant_hf import load_default

    return load_default()


def test_is_small_and_holds_safetensors_only():
    files = [path for path in Path(DEFAULT_CHECKPOINT).rglob("*") if path.is_file()]
    weights = [path for path in files if path.suffix not in (".json", ".md")]
    assert [path.name for path in weights] == ["adapter_model.safetensors"]
    assert weights[0].stat().st_size <= 5 * 2**20


def test_ranks_the_two_sentences_that_answer(model):
    result = model.rank(*COMPARISON)
    assert {item["title"] for item in result["evidence"][:2]} == {"Low Tide", "Northern Lamp"}


def test_permission_of_evidence_is_higher(model):
    permission = {item["title"]: item["permission"] for item in model.rank(*COMPARISON)["evidence"]}
    evidence = [permission.pop("Low Tide"), permission.pop("Northern Lamp")]
    assert min(evidence) > max(permission.values())


def test_finds_a_list_without_evidence_wanting(model):
    assert model.rank(*NO_EVIDENCE)["answerability"] < model.rank(*COMPARISON)["answerability"]


def test_pipeline_without_a_model_is_the_default(model):
    import transformers

    import warrant_hf  # noqa: F401  (registers the task)

    pipe = transformers.pipeline("evidence-selection")
    question, passages = COMPARISON
    assert pipe(question=question, passages=passages) == model.rank(question, passages)


def test_card_states_what_a_reader_must_know():
    card = (Path(DEFAULT_CHECKPOINT) / "README.md").read_text(encoding="utf-8")
    for statement in (
        "license: apache-2.0",
        "CC BY-SA 4.0",
        "label supervision of the gate | 0.0",
        "95 % interval",
        "seed |",
    ):
        assert statement in card
