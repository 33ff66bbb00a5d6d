"""The card that a selector came with goes with it, is checked before it goes, and is replaced where there is none."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from warrant_hf.hub.answerability_section import answerability_section, with_answerability
from warrant_hf.hub.carried_card import carried_files, read_card, short_card
from warrant_hf.modeling import DEFAULT_CHECKPOINT
from warrant_hf_cli import app

CALIBRATION = {
    "data": "a|b -->\n.jsonl",
    "size": 8,
    "questions": 398,
    "ece": 0.08,
    "brier": {"value": 0.19, "low": 0.18, "high": 0.2},
}
BAD = {
    "yaml": (b"---\nlicense: [mit\n---\nText.\n", "metadata that the Hub does not take"),
    "list": (b"---\n- mit\n---\nText.\n", "metadata that the Hub does not take"),
    "bytes": (b"---\nlicense: mit\n---\nCaf\xe9\n", "is not UTF-8 \\(byte 24\\)"),
}


def test_the_shipped_card_says_what_its_config_says():
    config = json.loads((Path(DEFAULT_CHECKPOINT) / "config.json").read_text(encoding="utf-8"))
    card = read_card(carried_files(None)["README.md"])
    section = answerability_section(config["answerability_calibration"])
    assert section in card
    # The template and the later insertion put it in the same place.
    assert with_answerability(card.replace(section + "\n", ""), config["answerability_calibration"]) == card


@pytest.mark.parametrize("card", ["A card.", "---\nlicense: mit\n---\n\n# A card\n\n## Limits\n\nMany.\n"])
def test_section_is_put_in_once_and_replaced(card):
    once = with_answerability(card, CALIBRATION)
    again = with_answerability(once, CALIBRATION | {"size": 5})
    assert once.count("## Answerability") == again.count("## Answerability") == 1
    assert "| candidates a list | 8 |" in once and again == once.replace("a list | 8 |", "a list | 5 |")
    assert "| fitted on | a&#124;b --&gt; .jsonl |" in once
    assert once.replace(answerability_section(CALIBRATION), "").split() == card.split()


def test_files_of_a_folder(tmp_path):
    assert set(carried_files(None)) == {"README.md", "recipe.json"}
    (tmp_path / "README.md").symlink_to(tmp_path / "gone")
    (tmp_path / "reliability.png").write_bytes(b"\x89PNG")
    assert set(carried_files(str(tmp_path))) == {"reliability.png"}


@pytest.mark.parametrize("kind", BAD)
def test_push_refuses_a_card_that_the_hub_would_refuse(tmp_path, kind):
    """Before the model is loaded: there is none."""
    content, words = BAD[kind]
    (tmp_path / "README.md").write_bytes(content)
    with pytest.raises(ValueError, match=f"README.md .*{words}") as refused:
        read_card(tmp_path / "README.md")
    done = CliRunner().invoke(app, ["push", str(tmp_path), "ann/new"])
    assert done.exit_code == 2 and done.output.split() == ["Error:", *str(refused.value).split()]


def test_short_card_claims_nothing(tiny_model):
    card = ModelCard(short_card("ann/new", tiny_model.config))
    kept = {
        "library_name": "transformers",
        "pipeline_tag": "text-ranking",
        "tags": ["evidence-selection", "warrant-hf"],
    }
    assert card.data.to_dict() == kept
    assert "| variant | pair |" in card.text and 'pipeline("evidence-selection", model="ann/new")' in card.text
    assert "Nobody has written down here what it was trained on" in card.text and "## Answerability" not in card.text
    copy = ModelCard(short_card("new", tiny_model.config, copy_of="bob/old"))
    assert copy.data.base_model == "bob/old" and "A copy of `bob/old`" in copy.text
