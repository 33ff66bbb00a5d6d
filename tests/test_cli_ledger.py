"""`warrant-hf select --ledger` and `warrant-hf ledger …`."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from warrant_hf.diagnostics import LedgerWriter, read_ledger
from warrant_hf_cli import app

QUESTION = "where was ada born?"
CANDIDATES = [{"text": "ada was born in york.", "source": "[red]s\x1b[0m", "id": "c0"}, "york is a city.", "a river."]


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"id": n, "question": f"{QUESTION} {n}", "candidates": CANDIDATES[: 1 + n % 3]} for n in range(7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def ledger(cli, rows, tmp_path, tiny_model_dir):
    path = tmp_path / "l.jsonl"
    args = ("--batch-size", 1, "--top-k", 2, "--ledger", path, "--model", tiny_model_dir)
    assert cli("select", "--jsonl", rows, tmp_path / "out.jsonl", *args).exit_code == 0
    return path


def one_sentence(result, code=2):
    assert result.exit_code == code and result.stdout == "", result.output
    (line,) = result.stderr.strip().splitlines()
    assert "Traceback" not in line
    return line


def rewritten(path, change):
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_select_records_all_candidates_and_returns_the_best(cli, ledger, rows, tmp_path, tiny_model_dir):
    records = list(read_ledger(ledger))
    assert [record.question_id for record in records if record.index == 0] == [str(n) for n in range(7)]
    assert len(records) == 1 + 2 + 3 + 1 + 2 + 3 + 1
    assert records[0].source == CANDIDATES[0]["source"] and records[0].candidate_id == "c0"
    outputs = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    shown = [(n, item["index"]) for n, output in enumerate(outputs) for item in output["evidence"]]
    assert sorted(shown) == sorted((int(record.question_id), record.index) for record in records if record.selected)
    assert cli("select", "--jsonl", rows, tmp_path / "b", "--top-k", 2, "--model", tiny_model_dir).exit_code == 0
    plain = [json.loads(line) for line in (tmp_path / "b").read_bytes().splitlines()]
    assert [[item["index"] for item in row["evidence"]] for row in plain] == [
        [item["index"] for item in row["evidence"]] for row in outputs
    ]
    args = ("-q", QUESTION, "-p", "a", "b", "--revoke", 1, "--revoke-by", "mask", "--json")
    assert cli("select", *args, "--ledger", ledger, "--model", tiny_model_dir).exit_code == 0
    *_, kept, left_out = read_ledger(ledger)
    assert kept.candidate_count == 1 and left_out.revoke_by == "mask" and kept.question_id is kept.selected is None


def test_replay(cli, ledger, rows, tiny_model_dir):
    result = cli("ledger", "replay", ledger)
    assert result.exit_code == 0 and result.stdout == "13 records of 7 decisions replayed: no differences.\n"
    texts = ("--texts", rows, "--model", tiny_model_dir)
    result = cli("ledger", "replay", ledger, *texts)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("7 of 7 decisions scored again: no differences.\n")

    def change(records):
        records[2]["score"] += 0.01
        records[2]["record_id"] += "\x1b"
        del records[4]

    rewritten(ledger, change)
    result = cli("ledger", "replay", ledger, *texts, "--limit", 2)
    assert result.exit_code == 3 and "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "12 records of 7 decisions replayed: 3 differences."
    assert "has 2 of 3 records; its sums and ranks were not checked" in lines[1]
    assert ": record_id is" in lines[2] and "and 1 more; --limit shows more of them." == lines[4]
    assert "6 of 7 decisions scored again: 1 difference." in lines
    assert any(line.startswith("The others' texts are not in") for line in lines)


def test_export_and_show(cli, ledger, tmp_path):
    pytest.importorskip("datasets")
    result = cli("ledger", "export", ledger, "--to", tmp_path / "l.parquet")
    assert result.exit_code == 0 and "13 records are in" in result.stdout and result.stderr == ""
    assert list(read_ledger(tmp_path / "l.parquet")) == list(read_ledger(ledger))
    assert cli("ledger", "replay", tmp_path / "l.parquet").exit_code == 0
    result = cli("ledger", "show", ledger, "--limit", 2)
    assert result.exit_code == 0 and result.stdout.count("decision ") == 2 and "question 6" in result.stdout
    assert "[red]s" in result.stdout and "\x1b" not in result.stdout
    decision = next(read_ledger(ledger)).decision_id
    assert "question 0" in cli("ledger", "show", tmp_path / "l.parquet", "--decision", decision[:9]).stdout


def test_a_torn_line_is_said_on_stderr(cli, ledger, rows, tiny_model_dir):
    ledger.write_bytes(ledger.read_bytes()[:-9])
    result = cli("ledger", "replay", ledger)
    assert result.exit_code == 0 and "12 records" in result.stdout
    assert "line 13: the last record is torn and is left out" in result.stderr
    result = cli("select", "-q", QUESTION, "-p", "a", "--ledger", ledger, "--model", tiny_model_dir)
    assert result.exit_code == 0 and "the last record was torn and has been dropped" in result.stderr
    assert len(list(read_ledger(ledger))) == 13


def test_what_cannot_be_done_is_one_sentence(cli, ledger, rows, tmp_path, tiny_model_dir):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "empty").write_text("")
    replayed = ("ledger", "replay")
    assert "absent: no such file; give the path of a ledger" in one_sentence(cli(*replayed, tmp_path / "absent"))
    assert "notes, line 1: the last record is torn" in cli(*replayed, tmp_path / "notes").stderr
    assert "there are no records to replay" in one_sentence(cli(*replayed, tmp_path / "empty"))
    assert "add --texts ROWS" in one_sentence(cli(*replayed, ledger, "--model", tiny_model_dir))
    assert "holds no records" in one_sentence(cli("ledger", "show", tmp_path / "empty"))
    assert "holds no decision 'x'; give another id" in one_sentence(cli("ledger", "show", ledger, "--decision", "x"))
    assert "is the ledger itself" in one_sentence(cli("ledger", "export", ledger, "--to", ledger))
    rewritten(tmp_path / "l.jsonl", lambda records: records[1].update(schema_version="2.0"))
    assert "l.jsonl, line 2: `schema_version` is '2.0'" in one_sentence(cli(*replayed, ledger))
    select = ("select", "-q", QUESTION, "-p", "a", "--model", tiny_model_dir, "--ledger")
    assert "notes is no ledger, and nothing was written to it" in one_sentence(cli(*select, tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "mine"
    with LedgerWriter(tmp_path / "taken"):
        assert "is being written by another process" in one_sentence(cli(*select, tmp_path / "taken"))
    select = ("select", "--jsonl", rows, tmp_path / "o", "--model", tiny_model_dir, "--ledger")
    assert "is a file of --jsonl too" in one_sentence(cli(*select, tmp_path / "o"))
    assert not os.path.exists(tmp_path / "o")


def test_the_extra_for_parquet_is_named(cli, ledger, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = one_sentence(cli("ledger", "export", ledger, "--to", tmp_path / "l.parquet"))
    assert "datasets is not installed; run: pip install 'warrant-hf[train]'" in message
