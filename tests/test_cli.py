import gzip
import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from warrant_hf.commands.terminal import print_evidence, printable
from warrant_hf_cli import app

QUESTION = "where was ada born?"
PASSAGES = ["ada was born in york.", "york is a city.", "the thames is a river."]


@pytest.fixture
def cli(tiny_model_dir, monkeypatch):
    """Runs `warrant-hf …` with the tiny model; gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args, model=tiny_model_dir, **kwargs):
        args = [str(arg) for arg in args]
        if model is not None and args[0] in ("select", "evaluate", "demo"):
            args += ["--model", str(model)]
        return CliRunner().invoke(app, args, **kwargs)

    return run


def write_rows(path, rows):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def read_lines(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        return [json.loads(line) for line in file.read().split(b"\n") if line]


def one_sentence(result, code=2):
    """The one line on stderr of a run that failed as it should."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in lines[0], result.stderr
    return lines[0]


def test_help_does_not_load_the_library():
    code = (
        "import sys, warrant_hf_cli as c\n"
        "try: c.app(['select', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'warrant_hf'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--revoke" in done.stdout
    assert done.stderr.strip() == "[]"


def test_select_prints_a_table(cli):
    result = cli("select", "--question", QUESTION, "--passage", *PASSAGES)
    assert result.exit_code == 0, result.output
    for name in ("support", "attention", "permission", "effective", "answerability"):
        assert name in result.stdout
    assert all(passage in result.stdout for passage in PASSAGES)


def test_select_json_has_the_promised_fields(cli, tiny_model):
    result = cli("select", "-q", QUESTION, "-p", *PASSAGES, "--json")
    (line,) = result.stdout.splitlines()
    output = json.loads(line)
    expected = tiny_model.rank(QUESTION, PASSAGES)
    assert output["evidence"] == expected["evidence"]
    assert {"index", "rank", "title", "text", "score", "probability", "attention", "permission", "effective"} <= set(
        output["evidence"][0]
    )
    assert output["mass"] == expected["mass"]


def test_select_json_lines_keep_input_fields_and_can_be_scored_again(cli, tmp_path):
    text = "one\u2028two\u0085three\u2029 e\u0301 \U0001f469\u200d\U0001f4bb"
    rows = [
        {
            "id": 7,
            "question": QUESTION,
            "candidates": [text, {"text": "b", "title": "B", "note": [1, None]}],
            "x": 0.5,
        },
        {"question": QUESTION, "passages": [{"text": "only one"}]},
    ]
    source, first, second = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", tmp_path / "out.jsonl.gz"
    assert cli("select", "--jsonl", source, first).exit_code == 0
    outputs = read_lines(first)
    assert len(outputs) == 2 and len(first.read_text("utf-8").splitlines()) == 2
    for row, output in zip(rows, outputs, strict=True):
        assert {key: output[key] for key in row} == row
        assert set(output) - set(row) == {"evidence", "mass", "answerability", "notes"}
    by_index = sorted(outputs[0]["evidence"], key=lambda item: item["index"])
    assert by_index[0]["text"] == text
    assert by_index[1]["note"] == [1, None] and by_index[1]["title"] == "B"
    assert cli("select", "--jsonl", first, second).exit_code == 0
    assert read_lines(second) == outputs


def test_batching_does_not_change_the_output(cli, tmp_path):
    rows = [{"id": str(n), "question": QUESTION, "candidates": PASSAGES[: 1 + n % 3]} for n in range(20)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    cli("select", "--jsonl", source, tmp_path / "1", "--batch-size", 1)
    cli("select", "--jsonl", source, tmp_path / "2", "--batch-size", 2)
    for a, b in zip(read_lines(tmp_path / "1"), read_lines(tmp_path / "2"), strict=True):
        assert a["id"] == b["id"]
        assert [item["index"] for item in a["evidence"]] == [item["index"] for item in b["evidence"]]
        for left, right in zip(a["evidence"], b["evidence"], strict=True):
            assert left["score"] == pytest.approx(right["score"], abs=1e-5)


def test_a_row_for_which_nothing_was_found_has_its_result(cli, tiny_model, tmp_path):
    rows = [{"question": QUESTION, "candidates": PASSAGES}, {"question": QUESTION, "passages": []}]
    assert cli("select", "--jsonl", write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl").exit_code == 0
    _, empty = read_lines(tmp_path / "out.jsonl")
    expected = tiny_model.rank(QUESTION, [])
    assert empty == {**rows[1], **{name: expected[name] for name in ("evidence", "mass", "answerability", "notes")}}
    assert "the row has none" in one_sentence(
        cli("select", "--jsonl", tmp_path / "in.jsonl", tmp_path / "new.jsonl", "--revoke", 0)
    )


@pytest.mark.parametrize("target", ["new.jsonl", "old.jsonl"])
def test_a_bad_row_writes_nothing(cli, tmp_path, target):
    rows = [{"question": QUESTION, "candidates": PASSAGES}] * 2 + [{"question": QUESTION, "passages": [3]}]
    source = write_rows(tmp_path / "mixed.jsonl", rows)
    (tmp_path / "old.jsonl").write_text("before")
    message = one_sentence(cli("select", "--jsonl", source, tmp_path / target))
    assert "mixed.jsonl, line 3" in message and "`passages[0]`" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixed.jsonl", "old.jsonl"]
    assert (tmp_path / "old.jsonl").read_text() == "before"


def test_output_that_cannot_be_written_is_known_before_the_work(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"question": QUESTION, "candidates": [{"text": "a", "label": 1}]}])
    (tmp_path / "folder").mkdir()
    nowhere = tmp_path / "no-model"  # asked for only after the output was looked at
    select = ("select", "--jsonl", source)
    assert "folder is a folder" in one_sentence(cli(*select, tmp_path / "folder", model=nowhere))
    assert "create it first" in one_sentence(cli(*select, tmp_path / "new" / "out", model=nowhere))
    evaluate = ("evaluate", "--data", source, "--json", tmp_path / "m.json")
    assert "folder is a folder" in one_sentence(cli(*evaluate, "--markdown", tmp_path / "folder", model=nowhere))
    assert "in.jsonl" in one_sentence(cli(*evaluate, "--markdown", source / "m.md", model=nowhere))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.jsonl"]


def test_a_row_file_can_be_its_own_output(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"question": QUESTION, "candidates": PASSAGES}] * 3)
    (tmp_path / "link").symlink_to(source)
    assert cli("select", "--jsonl", tmp_path / "link", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink() and all("evidence" in row for row in read_lines(source))


def test_json_fits_any_terminal(tiny_model_dir):
    args = ["select", "-q", "é?", "-p", "😀", "--json", "--model", str(tiny_model_dir)]
    result = CliRunner(charset="latin-1").invoke(app, args)
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii() and json.loads(result.stdout)["question"] == "é?"


def test_interruption_while_scoring_writes_nothing(cli, tmp_path, monkeypatch):
    from warrant_hf import WarrantEncoderForEvidenceSelection

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory\nlong text")

    monkeypatch.setattr(WarrantEncoderForEvidenceSelection, "forward", fail)
    source = write_rows(tmp_path / "in.jsonl", [{"question": QUESTION, "candidates": PASSAGES}])
    message = one_sentence(cli("select", "--jsonl", source, tmp_path / "out.jsonl"), code=1)
    assert "RuntimeError: out of memory long text" in message and "--debug" in message
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_debug_shows_the_traceback(cli):
    result = CliRunner().invoke(app, ["--debug", "select", "-p", "a passage without a question"])
    assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    "text, questions",
    [
        (json.dumps({"question": "a?", "candidates": ["x", "y"]}, indent=2), ["a?"]),
        (json.dumps([{"question": "a?", "passages": ["x"]}, {"question": "b?", "passages": ["y"]}]), ["a?", "b?"]),
        ('{"question": "a?", "passages": ["x"]}\n\n{"question": "b?", "passages": ["y"]}\n', ["a?", "b?"]),
    ],
)
def test_select_reads_standard_input(cli, text, questions):
    result = cli("select", "--json", input=text)
    assert [json.loads(line)["question"] for line in result.stdout.splitlines()] == questions


@pytest.mark.parametrize(
    "name, content, texts",
    [
        ("p.txt", "first\n\n second \n", ["first", " second "]),
        ("p.txt", "\ufefffirst\r\none\u2028line\r\n", ["first", "one\u2028line"]),
        ("p.json", '["first", {"text": "second", "title": "S"}]', ["first", "second"]),
        ("p.jsonl", '"first"\n{"text": "second", "title": "S"}\n', ["first", "second"]),
    ],
)
def test_select_reads_passages_from_a_file(cli, tmp_path, name, content, texts):
    (tmp_path / name).write_bytes(content.encode())
    output = json.loads(cli("select", "-q", QUESTION, "--passages", tmp_path / name, "--json").stdout)
    assert [item["text"] for item in sorted(output["evidence"], key=lambda item: item["index"])] == texts


def test_revoke_closes_a_gate_or_leaves_a_passage_out(cli, tiny_model):
    gate = json.loads(cli("select", "-q", QUESTION, "-p", *PASSAGES, "--json", "--revoke", 1).stdout)
    mask = json.loads(
        cli("select", "-q", QUESTION, "-p", *PASSAGES, "--json", "--revoke", 1, "--revoke-by", "mask").stdout
    )
    before = {item["index"]: item for item in tiny_model.rank(QUESTION, PASSAGES)["evidence"]}
    after = {item["index"]: item for item in gate["evidence"]}
    assert after[1]["effective"] == 0 and after[1]["revoked"]
    assert after[0]["effective"] == pytest.approx(before[0]["effective"], abs=1e-6)
    alone = {item["text"]: item for item in tiny_model.rank(QUESTION, [PASSAGES[0], PASSAGES[2]])["evidence"]}
    kept = [item for item in mask["evidence"] if not item["revoked"]]
    assert {item["text"]: item["score"] for item in kept} == {text: item["score"] for text, item in alone.items()}


def test_top_k(cli):
    assert len(json.loads(cli("select", "-q", "a?", "-p", *PASSAGES, "--json", "--top-k", 2).stdout)["evidence"]) == 2
    assert len(json.loads(cli("select", "-q", "a?", "-p", *PASSAGES, "--json", "--top-k", 99).stdout)["evidence"]) == 3
    for value in ("0", "-1", "two"):
        result = cli("select", "-q", "a?", "-p", *PASSAGES, "--top-k", value)
        assert result.exit_code == 2 and "--top-k" in result.stderr


@pytest.mark.parametrize(
    "args, text, expected",
    [
        (["-q", " ", "-p", "x"], "", "question"),
        (["-q", "a?"], "", "`candidates` is []"),
        (["-p", "x"], "", "add --question"),
        (["-q", "a?", "-p", "x", "--revoke", "1"], "", "--revoke 1"),
        (["-q", "a?", "--passages", "absent.txt"], "", "absent.txt: no such file"),
        (["--jsonl", "absent.jsonl", "out.jsonl"], "", "absent.jsonl: no such file"),
        (["--jsonl", "a" * 300, "out.jsonl"], "", "cannot be used (File name too long); check the path"),
        (["--jsonl", "a", "b", "-q", "a?"], "", "leave the other inputs out"),
        ([], "", "holds no rows"),
        ([], "{", "line 1: this is not JSON"),
        ([], '{"question": "a?", "candidates": ["x"], "y": NaN}', "line 1: this is not JSON (NaN is no JSON number"),
        ([], f'{{"question": "a?", "candidates": ["x"], "y": {"9" * 5000}}}', "a whole number has too many digits"),
        ([], "[" * 100_000, "line 1: this is not JSON (nested too deep)"),
        ([], "[1]", "item 1"),
        ([], b"\xff", "not UTF-8"),
    ],
)
def test_bad_input_is_one_sentence(cli, tmp_path, monkeypatch, args, text, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in one_sentence(cli("select", *args, input=text))
    assert list(tmp_path.iterdir()) == []


def test_a_passage_file_in_another_encoding_is_one_sentence(cli, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"caf\xe9")
    message = one_sentence(cli("select", "-q", "a?", "--passages", tmp_path / "p.txt"))
    assert "p.txt: byte 3 is 0xe9, not UTF-8; encode it as UTF-8" in message


@pytest.mark.parametrize(
    "module, extra, args",
    [
        ("yaml", "train", ["train", "--config", "r.yaml", "--train", "world:3"]),
        ("pyarrow", "train", ["evaluate", "--data", "r.parquet", "--json", "m.json"]),
        ("gradio", "space", ["demo", "--no-browser"]),
    ],
)
def test_a_missing_extra_is_named(cli, tmp_path, monkeypatch, module, extra, args):
    monkeypatch.chdir(tmp_path)
    for name in ("r.yaml", "r.parquet"):
        (tmp_path / name).write_text("base_model: x")
    for name in [name for name in sys.modules if name.split(".")[0] == module or name == "warrant_hf.space.app"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"{module} is not installed; run: pip install 'warrant-hf[{extra}]'" in one_sentence(cli(*args))


def test_a_port_that_is_taken_is_one_sentence(cli):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = one_sentence(cli("demo", "--no-browser", "--port", port))
    assert f"cannot listen on 127.0.0.1, port {port}; give another --port or --host" in message


def test_a_missing_or_foreign_model_is_one_sentence(cli, tmp_path):
    one_sentence(cli("select", "-q", "a?", "-p", "x", model=tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    one_sentence(cli("select", "-q", "a?", "-p", "x", model=tmp_path))


def test_evaluate_writes_metrics_with_intervals(cli, tmp_path):
    rows = [
        {
            "id": str(n),
            "question": f"{QUESTION} {n}",
            "candidates": [{"text": f"{text} {n}", "label": int(at == n % 3)} for at, text in enumerate(PASSAGES)],
        }
        for n in range(12)
    ]
    source = write_rows(tmp_path / "rows.jsonl.gz", rows)
    result = cli("evaluate", "--data", source, "--json", tmp_path / "m.json", "--markdown", tmp_path / "m.md")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "m.json").read_text())
    for name in ("support_mrr", "permission_auc", "abstention_auroc", "ece"):
        assert set(report["metrics"][name]) == {"value", "low", "high"}
    assert report["n"] == 12 and report["config"]["lists_without_evidence"] == 12
    assert "| support_mrr |" in (tmp_path / "m.md").read_text()


def test_evaluate_refuses_what_it_cannot_measure(cli, tmp_path):
    unlabelled = write_rows(tmp_path / "u.jsonl", [{"question": "a?", "candidates": ["x"]}])
    assert "label" in one_sentence(cli("evaluate", "--data", unlabelled, "--json", tmp_path / "m.json"))
    assert "--size" in one_sentence(
        cli("evaluate", "--data", unlabelled, "--json", tmp_path / "m.json", "--size", "few")
    )
    twice = [{"id": "seven", "question": "a?", "candidates": [{"text": "x", "label": 1}]}] * 2
    twice = write_rows(tmp_path / "twice.jsonl", twice)
    message = one_sentence(cli("evaluate", "--data", twice, "--json", tmp_path / "m.json"))
    assert "the id 'seven' occurs 2 times; make the ids unique" in message
    assert not (tmp_path / "m.json").exists()


def test_train_writes_a_selector_that_select_loads(cli, tmp_path, tiny_encoder_dir):
    rows = [
        {"id": str(n), "question": "a b?", "candidates": [{"text": "a b c", "label": 1}, {"text": "x", "label": 0}]}
        for n in range(4)
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"base_model: {tiny_encoder_dir}\n"
        "model: {readout_size: 32, readout_heads: 2, gate_size: 8}\n"
        "training: {max_steps: 9, per_device_train_batch_size: 2, use_cpu: true, disable_tqdm: true}\n"
    )
    files = ["--config", recipe, "--train", data, "--eval", data, "--output", tmp_path / "out"]
    result = cli("train", *files, "--set", "training.max_steps=2", "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "eval_support_mrr" in result.stdout
    written = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert written["seed"] == 3 and written["training"]["max_steps"] == 2
    assert cli("select", "-q", "a?", "-p", "x", "y", model=tmp_path / "out").exit_code == 0


def test_train_refuses_a_bad_recipe(cli, tmp_path):
    (tmp_path / "r.yaml").write_text("base_model: x\nlearning_speed: 3\n")
    files = ["--config", tmp_path / "r.yaml", "--train", "t", "--output", tmp_path / "out"]
    assert "learning_speed" in one_sentence(cli("train", *files))
    assert "KEY=VALUE" in one_sentence(cli("train", *files, "--set", "seed"))
    assert "is not YAML (line 1); put it in quotes" in one_sentence(cli("train", *files, "--set", "seed=["))


def test_demo_text_prints_the_built_in_question(cli):
    result = cli("demo", "--text")
    assert result.exit_code == 0, result.output
    assert "Northern Lamp" in result.stdout and "warrant-hf demo" in result.stdout


def test_env_names_versions(cli):
    result = cli("env")
    assert result.exit_code == 0 and "torch" in result.stdout and "transformers" in result.stdout


def test_text_cannot_drive_the_terminal(capsys, monkeypatch):
    assert printable("a\x1b[31mb\u202ec\td") == "a\ufffd[31mb\ufffdc d"
    assert printable("שלום 👩‍💻 é") == "שלום 👩‍💻 é"
    item = {"index": 0, "title": "[bold]t", "text": "[/] \x1b]0;x\x07", "revoked": False}
    item |= {"probability": 0.5, "attention": None, "permission": None, "effective": None}
    print_evidence({"question": "[red]q", "evidence": [item], "mass": None, "answerability": 0.5, "notes": ["[n]"]})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "[bold]t: [/]" in shown and "[red]q" in shown and "[n]" in shown
