"""`pipeline("evidence-selection")` gives what `rank` gives."""

import pytest
from transformers import pipeline

from warrant_hf import AutoModelForEvidenceSelection, EvidenceProcessor

QUESTION, PASSAGES = "Who wrote Emma?", ["Jane Austen did.", {"title": "Emma", "text": "a novel", "id": 7}, "no"]


@pytest.fixture(scope="module")
def pipe(tiny_model_dir):
    return pipeline("evidence-selection", model=str(tiny_model_dir))


def test_same_as_rank(pipe, tiny_model):
    assert pipe(question=QUESTION, passages=PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)
    assert pipe({"question": QUESTION, "passages": PASSAGES}) == tiny_model.rank(QUESTION, PASSAGES)
    options = {"revoke": [1], "top_k": 2, "return_tokens": True}
    assert pipe(question=QUESTION, passages=PASSAGES, **options) == tiny_model.rank(QUESTION, PASSAGES, **options)


def test_lists(pipe, tiny_model):
    questions, lists = [QUESTION, "What?"], [PASSAGES, ["one"]]
    found = pipe(question=questions, passages=lists, revoke=[[0], []], batch_size=2)
    assert found == tiny_model.rank_batch(questions, lists, revoke=[[0], []], batch_size=2)
    assert pipe(question=[QUESTION], passages=[PASSAGES]) == [tiny_model.rank(QUESTION, PASSAGES)]


def test_dicts(pipe, tiny_model):
    asked = {"question": QUESTION, "passages": PASSAGES}
    expected = tiny_model.rank(QUESTION, PASSAGES)
    assert pipe(asked) == expected
    assert pipe([asked, asked]) == pipe(question=[QUESTION] * 2, passages=[PASSAGES] * 2)
    with pytest.raises(ValueError, match="question 1 is None"):
        pipe([asked, {"passages": PASSAGES}])


def test_model_and_processor_objects(tiny_model_dir, tiny_model):
    model = AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir)
    processor = EvidenceProcessor.from_pretrained(tiny_model_dir)
    processor.max_length = 300
    pipe = pipeline("evidence-selection", model=model, processor=processor)
    assert model.processor is processor
    assert pipe(question=QUESTION, passages=PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)


def test_settings_of_the_pipeline(tiny_model_dir):
    pipe = pipeline("evidence-selection", model=str(tiny_model_dir), top_k=1)
    assert len(pipe(question=QUESTION, passages=PASSAGES)["evidence"]) == 1
    assert len(pipe(question=QUESTION, passages=PASSAGES, top_k=2)["evidence"]) == 2
    pipe = pipeline("evidence-selection", model=str(tiny_model_dir), revoke=[1], batch_size=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        pipe(question=QUESTION, passages=PASSAGES)
    found = pipe(question=QUESTION, passages=PASSAGES, batch_size=1)["evidence"]
    assert [item["index"] for item in found if item["revoked"]] == [1]


def test_half_precision(tiny_model_dir):
    pipe = pipeline("evidence-selection", model=str(tiny_model_dir), dtype="bfloat16")
    assert type(pipe(question=QUESTION, passages=PASSAGES)["evidence"][0]["score"]) is float


def test_save_and_load(pipe, tiny_model, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = pipeline("evidence-selection", model=str(tmp_path))
    assert again(question=QUESTION, passages=PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": QUESTION}, "Give both"),
        ({"passages": PASSAGES}, "Give both"),
        ({"question": QUESTION, "passages": PASSAGES, "top_n": 3}, "Unknown argument 'top_n'; the pipeline takes"),
        ({"question": QUESTION, "passages": "one text"}, "passages\\[0\\] is a str; give a list"),
        ({"question": QUESTION, "passages": PASSAGES, "top_k": -1}, "top_k is -1"),
        ({"question": [QUESTION], "passages": PASSAGES}, "passages\\[0\\] is a str"),
        ({"question": 3, "passages": PASSAGES}, "question is 3"),
    ],
)
def test_bad_arguments(pipe, arguments, message):
    with pytest.raises(ValueError, match=message):
        pipe(**arguments)


def test_checkpoint_of_another_class(tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a 'bert' checkpoint, not an evidence selector"):
        pipeline("evidence-selection", model=str(tmp_path))
