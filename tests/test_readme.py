"""The first screen of the README: its code runs and prints what stands below it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_first_example_prints_what_it_says(capsys):
    text = README.read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    shown = re.search(r"```text\n(.*?)```", text, re.S)[1]
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    number = re.compile(r"\d+\.\d+")
    # Numbers may differ in the last digit between processors; words and order may not.
    assert number.sub("#", printed) == number.sub("#", shown)
    values = [[float(value) for value in number.findall(output)] for output in (printed, shown)]
    assert values[0] == pytest.approx(values[1], abs=0.011)
