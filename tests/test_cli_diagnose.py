"""`warrant-hf diagnose` on tiny models: what it writes, and what it says when it cannot."""

import json
import sys

import pytest
from typer.testing import CliRunner

from tests.modeling.conftest import fid_selector, selector, tokenizers  # noqa: F401 (fixtures)
from warrant_hf_cli import app

PASSAGES = ["ada was born in york.", "york is a city.", "the thames is a river.", "ada knew rivers.", "a tower."]


@pytest.fixture
def rows(tmp_path):
    """A file of nine questions; number 8 has no evidence."""
    lines = []
    for n in range(9):
        labels = [int(at in (n % 5, (n + 2) % 5) and n < 8) for at in range(5)]
        candidates = [{"text": f"{text} {n}", "label": label} for text, label in zip(PASSAGES, labels, strict=True)]
        lines.append(json.dumps({"id": f"q{n}", "question": f"where was ada born {n}?", "candidates": candidates}))
    source = tmp_path / "dev.jsonl"
    source.write_text("\n".join(lines) + "\n")
    return source


@pytest.fixture
def diagnose(tiny_model_dir, monkeypatch, rows):
    """Runs `warrant-hf diagnose` on the rows with the tiny model."""
    monkeypatch.setenv("COLUMNS", "140")

    def run(out, *args, model=tiny_model_dir, data=rows):
        given = ["diagnose", "--model", model, "--data", data, "--out", out, *args]
        return CliRunner().invoke(app, [str(arg) for arg in given])

    return run


def sentence(result):
    assert result.exit_code == 2 and result.stdout == "", result.output
    (line,) = result.stderr.strip().splitlines()
    return line


def test_report(diagnose, tmp_path):
    pytest.importorskip("matplotlib")
    result = diagnose(tmp_path / "new" / "out", "--top-k", 4, "--seed", 3, "--limit", 8)
    assert result.exit_code == 0, result.output
    out = tmp_path / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == ["diagnosis.json", "diagnosis.md", "heatmap.png"]
    report = json.loads((out / "diagnosis.json").read_text())
    assert report["config"]["questions"] == 8 and report["config"]["variant"] == "pair"
    worth = report["marginal_value"]
    assert worth["top_k"] == 4 and worth["efficiency_gap"] < 1e-5 and report["rule_gap"] < 1e-3
    assert {"permutation", "sign_flip"} == set(worth["chance"]["harmful_top_share"])
    assert set(report["interventions"]) == {"evidence", "other"}
    assert set(report["deletion_insertion"]["orders"]) == {"attention", "permission", "effective", "score", "random"}
    assert {"gold", "hard"} <= set(report["by_kind"]["means"])
    assert report["same_aggregate"]["post_attention"] == 0 < report["same_aggregate"]["warrant"]
    assert report["heatmap"]["seed"] == 3 and len(report["heatmap"]["drawn"]) == 8
    text = (out / "diagnosis.md").read_text()
    for part in ("harmful_top_share, chance by permutation", "| support_mrr |", "attention: deletion", "with seed 3"):
        assert part in text, part
    assert "spearman_permission" in result.stdout and "with seed 3" in result.stdout


def test_same_seed_same_report(diagnose, tmp_path):
    args = ("--utility", "listwise", "--size", "all", "--cases", 2, "--batch-size", 4)
    for name in ("a", "b"):
        assert diagnose(tmp_path / name, *args).exit_code == 0
    first, second = ((tmp_path / name / "diagnosis.json").read_text() for name in ("a", "b"))
    assert first == second and json.loads(first)["marginal_value"]["skipped"] == ["q8"]
    assert len(json.loads(first)["heatmap"]["drawn"]) == 2


def test_without_matplotlib_all_but_the_figure(diagnose, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = diagnose(tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "matplotlib is not installed, so there is no heatmap; run: pip install" in result.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["diagnosis.json", "diagnosis.md"]
    assert "heatmap" not in json.loads((tmp_path / "out" / "diagnosis.json").read_text())


def test_what_cannot_be_diagnosed_is_one_sentence(diagnose, tmp_path, rows, tiny_model):
    out = tmp_path / "out"
    assert "--top-k" in diagnose(out, "--top-k", 13).stderr
    assert "--utility" in diagnose(out, "--utility", "gain").stderr
    assert "--size is 'few'" in sentence(diagnose(out, "--size", "few"))
    assert "cannot be written" in sentence(diagnose(rows / "below"))
    unlabelled = tmp_path / "u.jsonl"
    unlabelled.write_text(json.dumps({"id": "u", "question": "a?", "candidates": ["x"]}) + "\n")
    assert "label every candidate" in sentence(diagnose(out, data=unlabelled))
    twice = tmp_path / "twice.jsonl"
    twice.write_text((json.dumps({"id": "s", "question": "a?", "candidates": [{"text": "x", "label": 1}]}) + "\n") * 2)
    assert "the id 's' occurs 2 times; make the ids unique" in sentence(diagnose(out, data=twice))


def test_a_reader_that_says_answers(diagnose, tmp_path, rows, fid_selector):  # noqa: F811
    fid_selector(answer_weight=1.0).save_pretrained(tmp_path / "fid")
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    lines[0]["answer"], lines[3]["answer"] = "york", "thames"
    data = tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = diagnose(tmp_path / "out", "--top-k", 3, model=tmp_path / "fid", data=data)
    assert result.exit_code == 0, result.output
    answers = json.loads((tmp_path / "out" / "diagnosis.json").read_text())["answers"]
    assert answers["questions"] == 2 and set(answers["drop"]) == {"evidence", "other"}
    assert "Log-likelihood of the answer, drop" in (tmp_path / "out" / "diagnosis.md").read_text()


def test_a_selector_without_permission(diagnose, tmp_path, selector):  # noqa: F811
    selector(variant="base").save_pretrained(tmp_path / "base")
    message = sentence(diagnose(tmp_path / "out", model=tmp_path / "base"))
    assert "variant is 'base', whose score does not come from the mass that a permission lets through" in message
    assert not (tmp_path / "out" / "diagnosis.json").exists()
