"""The README and docs/operator.md: their code runs and prints what stands below it, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, OPERATOR = ROOT / "README.md", ROOT / "docs" / "operator.md"


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


def run_blocks(path, changes=()):
    """The names that the Python blocks of a file leave, in order and as one session; yields what each printed."""
    names = {}
    for code, shown in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", path.read_text("utf-8"), re.S):
        for name, there in changes:
            code = code.replace(name, there)
        exec(compile(code, path.name, "exec"), names)
        yield names, shown


def test_every_python_block_of_the_readme_runs(tmp_path, monkeypatch, t5, capsys):
    """Where a block of text follows, it is what was printed."""
    monkeypatch.chdir(tmp_path)
    # What a machine without a network has.
    changes = ("FacebookAI/roberta-base", "sentence-transformers/all-MiniLM-L6-v2"), ("google-t5/t5-base", str(t5))
    compared = 0
    capsys.readouterr()
    for _, shown in run_blocks(README, changes):
        printed = capsys.readouterr().out
        if shown:
            assert_prints(printed, shown)
            compared += 1
    assert compared >= 2
    assert (tmp_path / "runs/roberta/selector/processor_config.json").is_file()


def test_every_python_block_about_the_operator_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *_, (names, _) = run_blocks(OPERATOR)
    assert names["out"].context.shape == (2, 4, 16, 32)


@pytest.mark.parametrize(
    "path", [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", path.read_text("utf-8"))
    for target, anchor in links:
        file = (path.parent / target) if target else path
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
