"""The loop over Accelerate against the Trainer, several processes against one, scoring that is killed and resumed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from transformers import T5Config, T5ForConditionalGeneration

from tests.modeling.conftest import byte_tokenizer
from training import train_accelerate
from warrant_hf import AutoModelForEvidenceSelection, EvidenceWorld
from warrant_hf.data.readers import read_rows
from warrant_hf.recipes import Recipe, save, train_rows

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "training" / "accelerate_configs"


@pytest.fixture(scope="module")
def files(tiny_encoder_dir, tmp_path_factory):
    """A folder with labelled rows; recipes start from the tiny encoder."""
    folder = tmp_path_factory.mktemp("accelerate")
    rows = [json.dumps(row.to_dict()) for row in EvidenceWorld(seed=1, candidates=4, hard=2).generate(20)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def recipe(tiny_encoder_dir, dropout=0.1, lora=None, **training):
    """Dropout in the encoder (of BERT's config), the readout and LoRA."""
    off = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return {
        "base_model": str(tiny_encoder_dir),
        "model": {"readout_size": 32, "readout_heads": 2, "gate_size": 16, "readout_dropout": dropout},
        "encoder": off,
        "lora": lora,
        "data": {"size": 4, "hard": 2, "lists_per_question": 2, "max_length": 128, "max_question_tokens": 48},
        "training": {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            **training,
        },
    }


def loop(values, files, output, *options):
    """Runs the script in this process."""
    config = output.with_name(output.name + ".json")  # JSON is YAML
    config.write_text(json.dumps(values))
    rows = str(files / "rows.jsonl")
    train_accelerate.main(["--config", str(config), "--train", rows, "--output", str(output), *map(str, options)])


def logged(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"')]
    return [line for line in lines if "loss" in line]


def weights(folder):
    return AutoModelForEvidenceSelection.from_pretrained(folder).state_dict()


def assert_same(one, other, tolerance):
    assert set(one) == set(other)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=tolerance, rtol=0, msg=name)


# The loop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 4},  # 10 batches an epoch: the last group of an epoch has two
        {"max_steps": 13, "warmup_steps": 3, "lr_scheduler_type": "cosine", "gate_lr_multiplier": 0.5},
        {"lora": {"r": 4, "dropout": 0.1}},
        {"train_sampling_strategy": "group_by_length", "activation_checkpointing": True, "max_grad_norm": 0.1},
    ],
    ids=["accumulation", "schedule", "lora", "grouped"],
)
def test_loop_ends_where_the_trainer_does(changes, tiny_encoder_dir, files, tmp_path, capsys):
    values = recipe(tiny_encoder_dir, **changes)
    loop(values, files, tmp_path / "loop")
    lines = logged(capsys.readouterr().out)
    trainer = train_rows(Recipe(**values), read_rows(files / "rows.jsonl"), output_dir=tmp_path / "trainer")
    expected = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [line["step"] for line in expected] and len(lines) >= 6
    for name in ("loss", "grad_norm", "learning_rate"):
        got, wanted = ([line[name] for line in found] for found in (lines, expected))
        assert got == pytest.approx(wanted, abs=1e-5), name
    save(trainer.model, trainer.processing_class, Recipe(**values), tmp_path / "trainer")
    assert_same(weights(tmp_path / "loop"), weights(tmp_path / "trainer"), 1e-5)


@pytest.mark.parametrize("step", [4, 5], ids=["mid-epoch", "epoch-boundary"])
def test_loop_resumes_to_the_same_weights(step, tiny_encoder_dir, files, tmp_path, capsys):
    values = recipe(tiny_encoder_dir, gradient_accumulation_steps=2, save_strategy="steps", save_steps=1)
    values["training"]["save_total_limit"] = 20
    loop(values, files, tmp_path / "whole")
    whole = logged(capsys.readouterr().out)
    assert len(whole) == 10 and not list((tmp_path / "whole").glob(".*"))
    half = tmp_path / "half"
    half.mkdir()
    shutil.copytree(tmp_path / "whole" / f"state-{step}", half / f"state-{step}")
    (half / ".state-9.partial").mkdir()  # killed while it was written
    loop(values, files, half, "--resume")
    assert logged(capsys.readouterr().out) == whole[step:]
    assert_same(weights(half), weights(tmp_path / "whole"), 0)
    loop(values, files, half, "--resume")  # a run that had finished
    assert logged(capsys.readouterr().out) == []
    assert_same(weights(half), weights(tmp_path / "whole"), 0)


def test_loop_measures_and_tells_trackers(tiny_encoder_dir, files, tmp_path, capsys):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = recipe(tiny_encoder_dir, max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=2)
    loop(values, files, tmp_path / "run", "--eval", files / "rows.jsonl", "--report-to", "tensorboard")
    lines = capsys.readouterr().out.splitlines()
    metrics = json.loads(lines[-1])
    assert 0 < metrics["eval_support_mrr"] <= 1
    assert sorted(path.name for path in (tmp_path / "run").glob("state-*")) == ["state-2", "state-3"]
    events = accumulators.EventAccumulator(str(tmp_path / "run" / "logs" / "warrant-hf")).Reload()
    losses = [line["loss"] for line in logged("\n".join(lines))]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses)


def test_errors_of_the_loop(tiny_encoder_dir, files, tmp_path):
    def sentence(*options, output="run", **training):
        values = recipe(tiny_encoder_dir, **({"max_steps": 1, "save_strategy": "steps"} | training))
        with pytest.raises(SystemExit) as caught:
            loop(values, files, tmp_path / output, *options)
        return str(caught.value)

    assert "training.torch_compile is not known to this loop; remove it" in sentence(torch_compile=True)
    assert "training.save_strategy is 'best'; choose from no, steps, epoch" in sentence(save_strategy="best")
    assert "'batch_rebalance'; choose from random" in sentence(train_sampling_strategy="batch_rebalance")
    assert "--report-to abacus: it is not installed here" in sentence("--report-to", "abacus")
    assert "run holds no state to resume from; start without --resume" in sentence("--resume")
    loop(recipe(tiny_encoder_dir, max_steps=1, save_strategy="steps"), files, tmp_path / "run")
    assert "run holds states of an earlier run; add --resume or give another folder" in sentence()
    assert "state-1 is of another recipe or number of processes" in sentence("--resume", learning_rate=1.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu", DistributedType.MULTI_GPU),
        ("multi_gpu", DistributedType.MULTI_GPU),
        ("fsdp2", DistributedType.FSDP),
    ],
)
def test_shipped_configs(name, kind):
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.distributed_type == kind and config.mixed_precision == "no" and config.num_processes == 2
    assert config.use_cpu == (name == "cpu")
    assert config.fsdp_config.get("fsdp_version") == (2 if name == "fsdp2" else None)


def test_fsdp_settings_are_those_of_accelerate():
    """Accelerate reads the settings of FSDP by name and passes over one that it does not know."""
    from accelerate.commands.launch import launch_command_parser

    known = {action.dest for action in launch_command_parser()._actions}
    assert set(load_config_from_file(str(CONFIGS / "fsdp2.yaml")).fsdp_config) <= known


def launched(*command, **kwargs):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "cpu.yaml")]
    launcher += ["--main_process_port", "0"]
    done = subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, env=environment, timeout=600, **kwargs
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_two_processes_are_one_with_the_doubled_batch(tiny_encoder_dir, files, tmp_path, capsys):
    loop(recipe(tiny_encoder_dir, dropout=0.0, per_device_train_batch_size=4), files, tmp_path / "one")
    one = logged(capsys.readouterr().out)
    (tmp_path / "two.json").write_text(json.dumps(recipe(tiny_encoder_dir, dropout=0.0)))
    script = ROOT / "training" / "train_accelerate.py"
    options = ("--config", tmp_path / "two.json", "--train", files / "rows.jsonl", "--output", tmp_path / "two")
    two = logged(launched(script, *options))
    assert len(one) == len(two) == 10
    for name in ("loss", "grad_norm", "learning_rate"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], abs=1e-4), name
    # No comparison of weights: some have no gradient but rounding errors, and Adam makes whole steps of these.
    ranked = [
        AutoModelForEvidenceSelection.from_pretrained(tmp_path / name).rank("who?", ["a", "b"])
        for name in ("one", "two")
    ]
    first, second = ({item["index"]: item["score"] for item in result["evidence"]} for result in ranked)
    assert first == pytest.approx(second, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("training", [{}, {"activation_checkpointing": True}])
@pytest.mark.parametrize("variant", ["base", "open", "pair"])
def test_two_processes_train_a_decoder_of_which_only_the_attention_is_read(variant, training, files, tmp_path):
    base = tmp_path / "t5"
    tokenizer = byte_tokenizer()
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": len(tokenizer)}
    T5ForConditionalGeneration(T5Config(**sizes, pad_token_id=1, decoder_start_token_id=1)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    values = recipe(base, max_steps=3, **training)
    values["encoder"], values["model"]["variant"] = {}, variant
    (tmp_path / "fid.json").write_text(json.dumps(values))
    script = ROOT / "training" / "train_accelerate.py"
    options = ("--config", tmp_path / "fid.json", "--train", files / "rows.jsonl", "--output", tmp_path / "out")
    assert len(logged(launched(script, *options))) == 3


# Scoring -------------------------------------------------------------------------------------------------------------

# The parent imports once and forks processes as a launcher would start them, so that they can really be killed.
DRIVER = """
import json, os, signal, socket, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import accelerate, warrant_hf
from warrant_hf.commands import select

source, model, folder = sys.argv[1:]
whole = select._scored

def score(target, rank=None, world=1, port=None, kill_at=None, resume=False):
    child = os.fork()
    if child:
        return child
    sys.stderr = open(f"{target}.{rank}.error", "w")
    if world > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in ranks.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    parts = []

    def scored(*args):
        parts.append(None)
        for row in whole(*args):
            if len(parts) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    select._scored = scored
    try:
        select.run(question=None, passages=[], passages_file=None, jsonl=(Path(source), Path(target)), as_json=False,
                   revoke=[0], revoke_by="gate", top_k=2, ledger=None, model=model, batch_size=1, resume=resume)
    except ValueError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(2)
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

def both(target, kill_at=(None, None), **options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = [score(target, rank, 2, port, kill_at[rank], **options) for rank in (0, 1)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

def one(target, **options):
    return os.waitstatus_to_exitcode(os.waitpid(score(target, **options), 0)[1])

def parts(target):
    return len(list(Path(f"{target}.parts").glob("*.jsonl")))

found = {}
name = f"{folder}/whole"
found["whole"] = [one(name)]
name = f"{folder}/together"
found["together"] = [both(name), parts(name)]
name = f"{folder}/one-killed"
found["one-killed"] = [both(name, kill_at=(None, 2)), Path(name).exists(), parts(name), both(name),
                       Path(f"{name}.0.error").read_text(), both(name, resume=True), parts(name)]
name = f"{folder}/both-killed"
found["both-killed"] = [both(name, kill_at=(2, 1)), Path(name).exists(), parts(name), one(name, resume=True)]
name = f"{folder}/alone"
found["alone"] = [one(name, kill_at=3, resume=True), Path(name).exists(), parts(name)]
cut = Path(f"{name}.parts/00000001.jsonl")
cut.write_text("".join(cut.read_text().splitlines(True)[:-1]))
found["alone"] += [both(name, resume=True)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def scored(tiny_model_dir, tmp_path_factory):
    """Runs of `select --jsonl`, some killed: exit codes and what was there in between, and the folder of outputs."""
    folder = tmp_path_factory.mktemp("scored")
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as file:
        for number in range(37):  # five parts of eight rows, the last one shorter
            candidates = [f"passage {at} of {number}" for at in range(2 + number % 3)]
            file.write(json.dumps({"id": number, "question": f"question {number}?", "candidates": candidates}) + "\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", DRIVER, folder / "rows.jsonl", tiny_model_dir, folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600)
    errors = "".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.error")))
    assert done.returncode == 0, done.stderr[-3000:] + errors
    return json.loads(done.stdout.splitlines()[-1]), folder


def test_processes_share_rows_and_keep_their_order(scored):
    found, folder = scored
    assert found["whole"] == [0] and found["together"] == [[0, 0], 0]
    whole = (folder / "whole").read_bytes()
    assert [json.loads(line)["id"] for line in whole.splitlines()] == list(range(37))
    assert (folder / "together").read_bytes() == whole
    assert not [path.name for path in folder.iterdir() if path.name.endswith((".parts", ".partial"))]


def test_a_killed_process_loses_and_doubles_no_row(scored):
    found, folder = scored
    killed, finished, parts, without, sentence, resumed, left = found["one-killed"]
    assert killed == [0, -9] and not finished and parts == 4
    assert 2 in without and "one-killed.parts holds rows of an earlier run; add --resume, or remove" in sentence
    assert resumed == [0, 0] and left == 0
    assert (folder / "one-killed").read_bytes() == (folder / "whole").read_bytes()


def test_all_killed_and_resumed_by_one(scored):
    found, folder = scored
    assert found["both-killed"] == [[-9, -9], False, 1, 0]
    assert (folder / "both-killed").read_bytes() == (folder / "whole").read_bytes()


def test_one_killed_and_resumed_by_two_with_a_part_that_lost_its_end(scored):
    found, folder = scored
    assert found["alone"] == [-9, False, 2, [0, 0]]
    assert (folder / "alone").read_bytes() == (folder / "whole").read_bytes()


@pytest.mark.slow
def test_select_under_the_launcher(scored, tiny_model_dir, tmp_path):
    _, folder = scored
    options = ("--revoke", 0, "--top-k", 2, "--batch-size", 1, "--model", tiny_model_dir)
    launched("-m", "warrant_hf_cli", "select", "--jsonl", folder / "rows.jsonl", tmp_path / "out", *options, cwd=ROOT)
    assert (tmp_path / "out").read_bytes() == (folder / "whole").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
