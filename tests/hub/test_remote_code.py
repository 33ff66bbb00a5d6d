"""A checkpoint with code: the same scores where this package is missing, and none of its code run where it is not."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModel, AutoProcessor, pipeline
from transformers.dynamic_module_utils import get_imports, get_relative_import_files

from tests.modeling.conftest import fid_selector, long_selector, reader, selector, tokenizers  # noqa: F401 (fixtures)
from tests.test_trainer import ROWS, arguments
from warrant_hf import AutoModelForEvidenceSelection, EvidenceTrainer, WarrantEncoderForEvidenceSelection
from warrant_hf.modeling import attention_ops, checkpoint_code

ROOT = Path(__file__).parents[2]
QUESTION = "who wrote emma?"
PASSAGES = ["austen did.", {"title": "emma", "text": "a novel"}, "long " * 115, "text " * 115, "more " * 115]
CASES = {
    "encoder": {},
    "encoder_maa": {"name": "encoder", "attention": "maa", "maa_power": 1.3, "attention_heads": 8},
    "encoder_pfa": {"name": "encoder", "attention": "pfa"},
    "fid": {},
    "led": {},
    "led_decoder": {"name": "led", "reading": "decoder"},
}
# What a fresh installation of transformers brings along.
ALLOWED = {"torch", "transformers", "huggingface_hub", "safetensors", "numpy", *sys.stdlib_module_names}

WITHOUT_PACKAGE = """
import json, sys
# None: neither found nor imported. The others are in our requirements and not in those of transformers.
sys.modules |= dict.fromkeys(("warrant_hf", "peft", "datasets", "jinja2", "pydantic", "accelerate", "triton"))
try:
    import warrant_hf
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("warrant_hf can be imported")
import logging, re, transformers
from transformers import AutoConfig, AutoModel, AutoProcessor, pipeline
warnings = []
class Handler(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
transformers.logging.add_handler(Handler())
transformers.logging.set_verbosity_warning()
"""

SCORES = (
    WITHOUT_PACKAGE
    + """
folder, question, passages = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = {}
for case in json.loads(sys.argv[4]):
    place = f"{folder}/{case}"
    model = AutoModel.from_pretrained(place, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(place, trust_remote_code=True)
    assert not model.training and type(model).__module__.startswith("transformers_modules.")
    assert type(processor).__module__.rpartition(".")[0] == type(model).__module__.rpartition(".")[0]
    pipe = pipeline("evidence-selection", model=place, trust_remote_code=True)
    if case in ("encoder", "fid"):
        pipe.save_pretrained(f"{place}_again")  # with code again
        again = pipeline("evidence-selection", model=f"{place}_again", trust_remote_code=True)
        assert again(question=question, passages=passages) == pipe(question=question, passages=passages)
    model.processor = processor
    found[case] = {
        "rank": model.rank(question, passages, revoke=[1], return_tokens=True),
        "pipeline": pipe(question=question, passages=passages),
        "answer": model.answer(question, passages, max_new_tokens=8) if case == "fid" else None,
    }
copies = {name.rpartition(".")[0] for name in sys.modules if name.endswith(".attention_fused")}
errors = {}
for name, load in {
    "config": AutoConfig.from_pretrained,
    "model": AutoModel.from_pretrained,
    "pipeline": lambda place: pipeline("evidence-selection", model=place),
}.items():
    try:
        load(f"{folder}/encoder")
    except ValueError as error:
        errors[name] = str(error)
print()  # behind the question whether to run the code
print(json.dumps({"scores": found, "copies": len(copies), "errors": errors, "warnings": warnings}))
"""
)


def run(code, *arguments, modules, **environment):
    """Output of Python code in a new process without a network, whose copies of code go to the folder `modules`."""
    settings = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(modules)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **settings, **environment},
        stdin=subprocess.DEVNULL,
        timeout=300,
        cwd=modules,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def made(reader, tmp_path_factory):  # noqa: F811
    """Folder of the checkpoints with code, and the models by case."""
    folder, models = tmp_path_factory.mktemp("with code"), {}
    for case, settings in CASES.items():
        models[case] = reader(**{"name": case} | settings)
        models[case].save_pretrained(folder / case, with_code=True)
    return folder, models


@pytest.fixture(scope="module")
def without_package(made, tmp_path_factory):
    """What the checkpoints give in one process that cannot import this package."""
    given = made[0], QUESTION, json.dumps(PASSAGES), json.dumps(list(CASES))
    return json.loads(run(SCORES, *given, modules=tmp_path_factory.mktemp("modules")))


# Without the package -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_same_scores_without_the_package(made, without_package, monkeypatch, case):
    monkeypatch.setenv("WARRANT_HF_CPU_KERNEL", "0")  # a checkpoint brings no C++
    model, found = made[1][case], without_package["scores"][case]
    assert found["rank"] == json.loads(json.dumps(model.rank(QUESTION, PASSAGES, revoke=[1], return_tokens=True)))
    assert found["pipeline"] == model.rank(QUESTION, PASSAGES)
    if case == "fid":
        assert found["answer"] == model.answer(QUESTION, PASSAGES, max_new_tokens=8)
        assert found["answer"]["answer"]


def test_attention_was_large_enough_for_a_fused_backend(made, monkeypatch):
    """Otherwise the test above would compare the reference operator only."""
    taken = []
    original = attention_ops.fused_attention
    monkeypatch.setenv("WARRANT_HF_CPU_KERNEL", "0")
    monkeypatch.setattr(attention_ops, "fused_attention", lambda *a, **k: taken.append(k) or original(*a, **k))
    made[1]["encoder_maa"].rank(QUESTION, PASSAGES)
    assert taken and {call["backend"] for call in taken} == {"blockwise"}


def test_one_copy_of_the_code_for_each_checkpoint(without_package):
    assert without_package["copies"] == len(CASES) + 2  # two of them were saved again


def test_no_warnings(without_package):
    assert without_package["warnings"] == []


@pytest.mark.parametrize("name", ["config", "model", "pipeline"])
def test_without_the_flag_the_error_of_transformers(without_package, name):
    message = without_package["errors"][name]
    assert "contains custom code which must be executed" in message and "`trust_remote_code=True`" in message


# With the package ----------------------------------------------------------------------------------------------------

TRAP = 'raise SystemExit("code of the checkpoint was run")\n'


@pytest.mark.parametrize("flag", [{}, {"trust_remote_code": True}, {"trust_remote_code": False}])
def test_with_the_package_no_code_of_the_checkpoint_is_run(made, tmp_path, flag):
    model = made[1]["encoder"]
    model.save_pretrained(tmp_path, with_code=True)
    for path in tmp_path.glob("*.py"):
        path.write_text(TRAP)
    expected = model.rank(QUESTION, PASSAGES)
    loaded = AutoModel.from_pretrained(tmp_path, **flag)
    assert type(loaded) is WarrantEncoderForEvidenceSelection and loaded.rank(QUESTION, PASSAGES) == expected
    assert type(AutoProcessor.from_pretrained(tmp_path, **flag)) is type(model.processor)
    pipe = pipeline("evidence-selection", model=str(tmp_path), **flag)
    assert type(pipe.model) is type(model) and pipe(question=QUESTION, passages=PASSAGES) == expected
    assert AutoModelForEvidenceSelection.from_pretrained(tmp_path).rank(QUESTION, PASSAGES) == expected


def test_saved_again_by_the_package_it_names_no_code(made, tmp_path):
    loaded = AutoModelForEvidenceSelection.from_pretrained(made[0] / "encoder")
    loaded.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    text = "".join(path.read_text() for path in tmp_path.glob("*config.json"))
    assert "auto_map" not in text and "custom_pipelines" not in text and "checkpoint_code" not in text


BOTH = """
import json, sys
from transformers import AutoModel, pipeline
folder, question, passages = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
cases, rounds = json.loads(sys.argv[4]), []
copies = {case: AutoModel.from_pretrained(f"{folder}/{case}", trust_remote_code=True) for case in cases}
rounds.append({case: model.rank(question, passages) for case, model in copies.items()})
import warrant_hf
models = {case: AutoModel.from_pretrained(f"{folder}/{case}") for case in cases}
for case in cases:
    assert type(models[case]).__module__.startswith("warrant_hf."), type(models[case])
    assert type(copies[case]).__module__.startswith("transformers_modules."), type(copies[case])
rounds.append({case: model.rank(question, passages) for case, model in copies.items()})
rounds.append({case: model.rank(question, passages) for case, model in models.items()})
from transformers.dynamic_module_utils import get_class_from_dynamic_module
for case in cases:  # the code of a checkpoint behind the package
    kind = get_class_from_dynamic_module(f"checkpoint_code.{type(models[case]).__name__}", f"{folder}/{case}_again")
    copies[case] = kind.from_pretrained(f"{folder}/{case}")
rounds.append({case: model.rank(question, passages) for case, model in copies.items()})
rounds.append({case: model.rank(question, passages) for case, model in models.items()})
pipe = pipeline("evidence-selection", model=copies[cases[0]])  # the package's pipeline on a copy's model
rounds.append({case: pipe(question=question, passages=passages) if case == cases[0] else None for case in cases})
model = models[cases[0]].train()  # the operator of the package still has its gradient
loss = model(**model.processor(question, passages)).logits.sum()
loss.backward()
print(json.dumps(rounds))
"""


def test_package_and_copies_in_one_process(made, tmp_path, monkeypatch, reader):  # noqa: F811
    """The operator and the attention keys are registered by each of them; none takes the place of another."""
    from warrant_hf import attach_permission

    monkeypatch.setenv("WARRANT_HF_CPU_KERNEL", "0")
    attached = reader("encoder", attention="warrant")
    attach_permission(attached.backbone, layers=[-1], control="pair", start=0.5)
    models = {"attached": attached, "maa": made[1]["encoder_maa"], "fid": made[1]["fid"]}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name, with_code=True)
        model.save_pretrained(tmp_path / f"{name}_again", with_code=True)
    other = tmp_path / "maa_again" / "attention_fused.py"  # whose operator is another one
    text, of = other.read_text(), "    return context, mass, lse, lse_power\n"
    other.write_text(text.replace(of, of.replace("context", "context * 2"), 1))
    given = tmp_path, QUESTION, json.dumps(PASSAGES), json.dumps(list(models))
    rounds = json.loads(run(BOTH, *given, modules=tmp_path, PYTHONPATH=str(ROOT), WARRANT_HF_CPU_KERNEL="0"))
    for name, model in models.items():
        expected = model.rank(QUESTION, PASSAGES)
        assert all(found[name] in (expected, None) for found in rounds)


# What is written -----------------------------------------------------------------------------------------------------


def test_entries(made):
    folder = made[0] / "fid"
    config = json.loads((folder / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "checkpoint_code.WarrantFiDConfig",
        "AutoModel": "checkpoint_code.WarrantFiDForEvidenceSelection",
        "AutoProcessor": "checkpoint_code.EvidenceProcessor",
    }
    assert config["custom_pipelines"]["evidence-selection"]["impl"] == "checkpoint_code.EvidenceSelectionPipeline"
    processor = json.loads((folder / "processor_config.json").read_text())
    assert processor["auto_map"] == {"AutoProcessor": "checkpoint_code.EvidenceProcessor"}


def test_files(made):
    """Flat, complete, and without what transformers cannot copy or a fresh installation lacks."""
    source = Path(checkpoint_code.__file__).parent
    files = {path.name for path in (made[0] / "encoder").glob("*.py")}
    wanted = {Path(name).name for name in get_relative_import_files(checkpoint_code.__file__)}
    assert files == wanted | {"checkpoint_code.py"}
    assert not [path for path in (made[0] / "encoder").iterdir() if path.is_dir()]
    for name in files:
        text = (source / name).read_text()
        assert set(get_imports(source / name)) <= ALLOWED, name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module, (name, ast.unparse(node))
                assert re.search(rf"^\s*from \.{node.module} import", text, re.M), (name, node.module)
                assert f"{node.module}.py" in files


def test_no_code_unless_asked(made, tmp_path):
    made[1]["encoder"].save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in (tmp_path / "config.json").read_text()


def test_training_checkpoints_have_no_code(tiny_model_dir, tmp_path):
    model = AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir)
    settings = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = EvidenceTrainer(
        model, arguments(tmp_path, **settings), train_dataset=ROWS, processing_class=model.processor
    )
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "checkpoint-1" / "model.safetensors").is_file()
    assert not list(tmp_path.rglob("*.py"))


def test_a_class_of_somebody_else(made, tmp_path):
    class Mine(WarrantEncoderForEvidenceSelection):
        pass

    model = Mine(made[1]["encoder"].config)
    model.processor = made[1]["encoder"].processor
    with pytest.raises(ValueError, match="Mine is not a class of this package, .*; use with_code=False"):
        model.save_pretrained(tmp_path, with_code=True)
