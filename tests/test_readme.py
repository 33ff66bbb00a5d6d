"""The first screen of the README: its code runs and prints what stands below it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def assert_prints(printed, shown):
    """The same but for the last digit of a number, which may differ between processors."""
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", printed) == number.sub("#", shown)
    values = [[float(value) for value in number.findall(output)] for output in (printed, shown)]
    assert values[0] == pytest.approx(values[1], abs=0.011)


def test_first_example_prints_what_it_says(capsys):
    text = README.read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert_prints(capsys.readouterr().out, re.search(r"```text\n(.*?)```", text, re.S)[1])


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """A random model of the class of `google-t5/t5-base`."""
    from transformers import T5ForConditionalGeneration

    from tests.modeling.conftest import byte_tokenizer, seq2seq_config

    folder, tokenizer = tmp_path_factory.mktemp("t5"), byte_tokenizer()
    T5ForConditionalGeneration(seq2seq_config("t5", len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_every_python_block_runs(tmp_path, monkeypatch, t5, capsys):
    """In order, as one session; where a block of text follows, it is what was printed."""
    monkeypatch.chdir(tmp_path)
    names, compared = {}, 0
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README.read_text(encoding="utf-8"), re.S)
    for code, shown in blocks:
        # What a machine without a network has.
        code = code.replace("FacebookAI/roberta-base", "sentence-transformers/all-MiniLM-L6-v2")
        code = code.replace("google-t5/t5-base", str(t5))
        capsys.readouterr()
        exec(compile(code, "README.md", "exec"), names)
        if shown:
            assert_prints(capsys.readouterr().out, shown)
            compared += 1
    assert compared >= 2
    assert names["out"].context.shape == (3, 2, 4, 16, 32)[1:]
    assert (tmp_path / "runs/roberta/selector/processor_config.json").is_file()
