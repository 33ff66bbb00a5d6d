"""A run from a recipe: what it writes, and that a killed run ends where an uninterrupted one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warrant_hf import AutoModelForEvidenceSelection, EvidenceWorld
from warrant_hf.recipes import Recipe, train


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder with a tiny encoder (`base`, with dropout) and labelled rows (`rows.jsonl`)."""
    import torch
    from transformers import BertConfig, BertModel

    from tests.conftest import character_tokenizer

    folder = tmp_path_factory.mktemp("recipe")
    tokenizer = character_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    rows = [json.dumps(row.to_dict()) for row in EvidenceWorld(seed=1, candidates=4, hard=2).generate(24)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def settings(folder, lora=False, **training):
    return {
        "base_model": str(folder / "base"),
        "model": {"readout_size": 32, "readout_heads": 2, "gate_size": 16},
        "lora": {"r": 4, "alpha": 8, "dropout": 0.1} if lora else None,
        "data": {"size": 4, "hard": 2, "lists_per_question": 2, "max_length": 128, "max_question_tokens": 48},
        "training": {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "save_strategy": "steps",
            "save_steps": 4,
            "logging_steps": 1,
            "use_cpu": True,
            "disable_tqdm": True,
            **training,
        },
    }


# The parent imports once and forks a process for each run, so that a run can really be killed.
DRIVER = """
import hashlib, json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import peft, warrant_hf
from warrant_hf import recipes, trainer

def run(recipe, rows, output, kill_at=None, resume=False):
    child = os.fork()
    if child == 0:
        step = trainer.EvidenceTrainer.training_step
        def training_step(self, *args, **kwargs):
            if self.state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with open(f"{output}.order", "a") as order:
                print(self.state.global_step, args[1]["input_ids"].sum().item(), file=order)
            return step(self, *args, **kwargs)
        trainer.EvidenceTrainer.training_step = training_step
        try:
            recipes.train(recipes.Recipe(**recipe), train_file=rows, output_dir=output, resume=resume)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert (os.WTERMSIG(status) == signal.SIGKILL) if kill_at else status == 0, status

def digest(output):
    (weights,) = [p for p in (Path(output) / "model.safetensors", Path(output) / "adapter/adapter_model.safetensors")
                  if p.exists()]
    return hashlib.sha256(weights.read_bytes()).hexdigest()

found = {}
for name, (recipe, kill_at, checkpoint) in json.loads(sys.argv[1]).items():
    straight, broken = f"{sys.argv[3]}/{name}-straight", f"{sys.argv[3]}/{name}-broken"
    run(recipe, sys.argv[2], straight)
    run(recipe, sys.argv[2], broken, kill_at=kill_at)
    assert Path(broken, checkpoint).is_dir() and not Path(broken, "config.json").exists()
    for number, text in ((98, None), (99, '{"global_step"')):  # killed while they were written
        half = Path(broken, f"checkpoint-{number}")
        half.mkdir()
        (half / "model.safetensors").write_bytes(b"")
        if text:
            (half / "trainer_state.json").write_text(text)
    assert recipes._last_checkpoint(Path(broken)).endswith(checkpoint)
    run(recipe, sys.argv[2], broken, resume=True)
    order = dict(line.split() for line in Path(f"{broken}.order").read_text().splitlines())
    expected = dict(line.split() for line in Path(f"{straight}.order").read_text().splitlines())
    found[name] = [digest(straight), digest(broken), len(expected), order == expected]
print(json.dumps(found))
"""


def test_a_killed_run_resumes_to_the_same_weights(files, tmp_path):
    runs = {
        "mid-epoch": (settings(files), 7, "checkpoint-4"),
        "epoch-boundary": (settings(files, save_strategy="epoch"), 9, "checkpoint-6"),
        "lora": (settings(files, lora=True), 10, "checkpoint-8"),
    }
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER, json.dumps(runs), str(files / "rows.jsonl"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(runs)
    for name, (straight, resumed, steps, same_order) in found.items():
        assert steps == 12, name
        assert same_order, f"{name}: the resumed run saw other batches"
        assert resumed == straight, f"{name}: the resumed run ended with other weights"
    assert len({straight for straight, *_ in found.values()}) == 2, "only LoRA differs; saving must not change a run"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_train(files, tmp_path, lora):
    recipe = Recipe(**settings(files, lora=lora, max_steps=3, save_strategy="no"))
    rows = files / "rows.jsonl"
    metrics = train(recipe, train_file=rows, eval_file=rows, output_dir=tmp_path)
    assert {"eval_loss", "eval_support_mrr"} <= set(metrics)
    assert Recipe(**json.loads((tmp_path / "recipe.json").read_text())) == recipe
    model = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert model.processor.max_length == 128 and model.processor.tokenizer.model_max_length == 512
    assert model.rank("who?", ["one", "two"])["mass"] > 0
    assert not any(path.suffix in (".pt", ".pkl") for path in tmp_path.iterdir())
    again = train(recipe, train_file=rows, eval_file=rows, output_dir=tmp_path / "again")
    assert again["eval_loss"] == metrics["eval_loss"], "a run is a function of its recipe"


@pytest.mark.parametrize("lora", [None, {"r": 2}], ids=["full", "lora"])
def test_going_on_from_a_selector(files, tiny_model, tiny_model_dir, tmp_path, lora):
    recipe = settings(files, max_steps=2, save_strategy="no") | {"base_model": None, "model": {}, "lora": lora}
    recipe = Recipe(**recipe, start_from=str(tiny_model_dir))
    train(recipe, train_file=files / "rows.jsonl", output_dir=tmp_path)
    model = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert model.processor.max_length == tiny_model.processor.max_length
    scores, before = (m.rank("who?", ["one", "two"])["evidence"][0]["score"] for m in (model, tiny_model))
    assert scores != before and abs(scores - before) < 5, "neither the same weights nor fresh ones"


def test_processor_keeps_to_the_positions_of_the_encoder(tmp_path):
    from transformers import AutoModel

    from tests.modeling.conftest import byte_tokenizer, tiny_encoder_config
    from warrant_hf.recipes import build

    tokenizer = byte_tokenizer()
    assert tokenizer.model_max_length > 10**6
    AutoModel.from_config(tiny_encoder_config("roberta", len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, processor = build(Recipe(base_model=str(tmp_path), data={"max_length": 2000}))
    assert processor.tokenizer.model_max_length == model.longest_input() == 512
    assert model.eval().rank("q", ["a" * 1500, "b"])["notes"] == ["Passage 0 has 1500 tokens; it was read in 3 parts."]


def test_adapter_needs_base_weights_before_training(files, tmp_path):
    recipe = Recipe(**settings(files, lora=True) | {"base_model": "someone/encoder"})
    with pytest.raises(OSError, match="The weights of someone/encoder are not on this machine; load once with a net"):
        train(recipe, train_file=files / "rows.jsonl", output_dir=tmp_path)


def test_folder_of_another_run(files, tmp_path):
    def run(output=tmp_path / "out", resume=False, **changes):
        recipe = Recipe(**settings(files, max_steps=1, save_steps=1) | changes)
        return train(recipe, train_file=files / "rows.jsonl", output_dir=output, resume=resume)

    with pytest.raises(ValueError, match="holds no complete checkpoint to resume from; start without --resume"):
        run(resume=True)
    run()
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run; add --resume or give another folder"):
        run()
    for model in ({"readout_size": 64}, {"variant": "open"}):
        with pytest.raises(ValueError, match="checkpoint-1 is of another model than the recipe describes; resume"):
            run(resume=True, model=settings(files)["model"] | model)
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    run(resume=True)  # a run that had finished
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is no folder to write to .*; give another one"):
        run(output=tmp_path / "file")


def test_settings_that_contradict_each_other(files, tmp_path):
    recipe = Recipe(**settings(files, eval_strategy="steps"))
    with pytest.raises(ValueError, match="^training: .*eval_strategy.*; correct the recipe.$"):
        train(recipe, train_file=files / "rows.jsonl", output_dir=tmp_path)


def test_unknown_training_field(files, tmp_path):
    recipe = Recipe(**settings(files, learning_rat=1))
    with pytest.raises(ValueError, match="training.learning_rat is not a field of EvidenceTrainingArguments"):
        train(recipe, train_file=files / "rows.jsonl", output_dir=tmp_path)


def test_from_yaml(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("base_model: some/encoder\nmodel: {variant: pair}\nlora: null\nseed: 3\n")
    recipe = Recipe.from_yaml(path, {"model.variant": "open", "training.learning_rate": 0.5, "lora.r": 4})
    assert recipe.lora.r == 4, "a group that is empty in the file"
    assert (recipe.model, recipe.training, recipe.seed) == ({"variant": "open"}, {"learning_rate": 0.5}, 3)


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("base_model: [", {}, "is not YAML \\(line [12]\\); correct it"),
        ("- a\n", {}, "is not a recipe; it must be a mapping with the key base_model"),
        ("seed: 1\n", {}, "give either base_model \\(an encoder\\) or start_from \\(a selector\\)"),
        ("start_from: a\nmodel: {variant: open}\n", {}, "with start_from, the settings are those of the selector"),
        ("base_model: a\nspeed: 3\n", {}, "speed is not a field of a recipe; remove it"),
        ("base_model: a\n1: 2\n", {}, "1 is 1: keys should be strings"),
        ("base_model: ''\n", {}, "base_model is '': string should have at least 1 character"),
        ("base_model: a\ndata: {size: many}\n", {}, "data.size is 'many': input should be a valid integer"),
        ("base_model: a\ndata: {size: 0}\n", {}, "data.size is 0: input should be greater than or equal to 1"),
        ("base_model: a\ndata: {none_rate: 2}\n", {}, "data.none_rate is 2: input should be less than or equal"),
        ("base_model: a\nlora: {r: 0}\n", {}, "lora.r is 0: input should be greater than or equal to 1"),
        ("base_model: a\nseed: -1\n", {}, "seed is -1: input should be greater than or equal to 0"),
        ("base_model: a\n", {"base_model.b": 1}, "base_model is not a group of settings"),
    ],
)
def test_bad_recipe(tmp_path, text, changes, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Recipe.from_yaml(path, changes)


def test_recipe_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="cannot be read \\(FileNotFoundError\\); give a YAML recipe"):
        Recipe.from_yaml(tmp_path / "none.yaml")
