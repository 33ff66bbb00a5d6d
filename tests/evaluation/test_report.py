"""Reports: readable tables, strict JSON, never half a file."""

import json
import os

import pytest

from warrant_hf.evaluation import metrics_table_markdown, write_json, write_text


def test_markdown_table():
    metrics = {
        "support_mrr": {"value": 0.86149, "low": 0.84, "high": 0.88},
        "ece": {"value": 0.1, "low": float("nan"), "high": float("nan")},
    }
    text = metrics_table_markdown(metrics, "HotpotQA dev", {"model": "a|b", "n": 400})
    lines = text.splitlines()
    assert lines[0] == "## HotpotQA dev" and "- model: a\\|b" in lines and "- n: 400" in lines
    assert "| support_mrr | 0.861 | 0.840 … 0.880 |" in lines and "| ece | 0.100 | – |" in lines
    with_p = metrics_table_markdown({"m": {"value": 1, "low": 0, "high": 2, "p": 0.04}}, "Difference")
    assert "| metric | value | interval | p |" in with_p and "| m | 1.000 | 0.000 … 2.000 | 0.040 |" in with_p


def test_json_is_strict_and_unicode(tmp_path):
    path = tmp_path / "new" / "metrics.json"
    write_json(path, {"a": float("nan"), "b": [float("inf"), 1.5, "é\u2028"], "c": (1,)})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": None, "b": [None, 1.5, "é\u2028"], "c": [1]}
    assert "NaN" not in path.read_text(encoding="utf-8")


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    write_text(path, "old\n")
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new\n")
    assert path.read_text() == "old\n" and os.listdir(tmp_path) == ["metrics.json"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_reports_are_ordinary_files(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "r.md", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "r.md").stat().st_mode & 0o777 == 0o644
