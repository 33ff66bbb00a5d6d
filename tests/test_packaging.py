import re
import subprocess
import sys
from pathlib import Path

import pytest

import warrant_hf

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_one_version():
    assert f'version = "{warrant_hf.__version__}"' in PYPROJECT
    assert f"warrant-hf[offline,space]=={warrant_hf.__version__}" in (
        ROOT / "spaces/evidence_gates/requirements.txt"
    ).read_text("utf-8")


@pytest.mark.parametrize("name", warrant_hf.__all__)
def test_public_names_resolve(name):
    assert getattr(warrant_hf, name) is not None
    assert name in dir(warrant_hf)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        warrant_hf.no_such_name


def test_import_registers_with_transformers_and_leaves_the_rest_for_later():
    code = (
        "import sys, warrant_hf\n"
        "from transformers import AutoConfig\n"
        "from transformers.pipelines import PIPELINE_REGISTRY\n"
        "assert 'evidence-selection' in PIPELINE_REGISTRY.get_supported_tasks()\n"
        "assert type(AutoConfig.for_model('warrant_encoder')) is warrant_hf.WarrantEncoderConfig\n"
        "late = ('warrant_hf.data', 'warrant_hf.trainer', 'warrant_hf.evaluation', 'gradio', 'datasets', 'typer')\n"
        "assert not set(late) & set(sys.modules), set(late) & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_dependency_says_why():
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", PYPROJECT, re.M | re.S)
    assert all(re.search(r'",\s+# \w', line) for line in block.strip().splitlines())


def test_checkpoints_are_packaged():
    assert 'warrant_hf = ["checkpoints/**/*"' in PYPROJECT
    for path in (ROOT / "warrant_hf").rglob("*"):
        assert path.suffix not in (".bin", ".pt", ".pth", ".pkl", ".pickle"), f"{path} is a pickle; ship safetensors"
