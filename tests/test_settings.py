"""YAML as people expect it, and complaints about recipe fields."""

import pytest

from warrant_hf.settings import parse_yaml, training_fields
from warrant_hf.trainer import EvidenceTrainingArguments


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "1.e-4", ".1e-3", "+1e-4"])
def test_exponents_are_numbers(text):
    assert parse_yaml(f"rate: {text}") == {"rate": pytest.approx(1e-4)}


def test_other_texts_stay_texts():
    assert parse_yaml("a: e-4\nb: 1e\nc: sha1e5x\nd: 1e5x") == {"a": "e-4", "b": "1e", "c": "sha1e5x", "d": "1e5x"}
    assert parse_yaml("save_strategy: no\na: on\nb: y") == {"save_strategy": "no", "a": "on", "b": "y"}
    assert parse_yaml("a: true\nb: False\nc: null") == {"a": True, "b": False, "c": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "line 2"),
        ("\x01", "a control character"),
        ("a: !!python/object:os.system x", "line 1"),
        ("[" * 5000, "nested too deep"),
        ("a: 2020-13-45", "month must be in 1..12"),
        ("a: " + "9" * 5000, "digits"),
    ],
)
def test_what_is_no_yaml(text, message):
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)


def test_training_fields_get_their_types():
    given = {"learning_rate": "1e-4", "max_steps": 3.0, "use_cpu": "yes", "save_strategy": "no", "report_to": ["none"]}
    expected = given | {"learning_rate": 1e-4, "max_steps": 3, "use_cpu": True}
    assert training_fields(given, EvidenceTrainingArguments) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": "fast"}, "training.learning_rate is 'fast': input should be a valid number.*; correct it"),
        ({"gate_lr_multiplier": None}, "training.gate_lr_multiplier is None: input should be a valid number"),
        ({"max_steps": "many"}, "training.max_steps is 'many'"),
        ({"use_cpu": "maybe"}, "training.use_cpu is 'maybe'"),
        (
            {"learning_rat": 1},
            "training.learning_rat is not a field of EvidenceTrainingArguments to be set; remove it",
        ),
        ({"output_dir": "x"}, "training.output_dir is not a field of EvidenceTrainingArguments to be set; remove"),
    ],
)
def test_bad_training_fields(given, message):
    with pytest.raises(ValueError, match=message):
        training_fields(given, EvidenceTrainingArguments)
