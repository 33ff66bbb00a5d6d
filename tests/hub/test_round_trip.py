"""A selector goes to the Hub and comes back, over HTTP on the loopback; what goes wrong is said in one sentence."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import BertConfig

from tests.hub.hub_server import HubServer, Repository

SESSION = Path(__file__).with_name("hub_session.py")


def start(hub, home, *arguments, **environment):
    """A process that has the Hub and a home of its own."""
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0",
        "NO_PROXY": "localhost,127.0.0.1",
        "WARRANT_HF_CPU_KERNEL": "0",
    }
    dropped = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HF_MODULES_CACHE", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return subprocess.Popen(
        [sys.executable, str(SESSION), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, **settings, **environment},
    )


def result(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output.strip().splitlines()[-1])


def repository(folder, **settings):
    """One of bob's, with the files of a folder."""
    made = Repository("bob", **settings)
    made.lfs.add("model.safetensors")
    made.commit({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    return made


@pytest.fixture(scope="module")
def hub(tiny_model_dir, tmp_path_factory):
    with HubServer({"hf_ann": "ann", "hf_bob": "bob", "hf_eve": "eve"}) as server:
        other = tmp_path_factory.mktemp("other")
        BertConfig().save_pretrained(other)
        server.repositories["bob/ready"] = repository(tiny_model_dir)
        server.repositories["bob/gated"] = repository(tiny_model_dir, gated=True, readers={"eve"})
        server.repositories["bob/other"] = repository(other)
        server.repositories["bob/empty"] = repository(tiny_model_dir)
        files = server.repositories["bob/empty"].commits
        files[server.repositories["bob/empty"].branches["main"]].pop("model.safetensors")
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def killed(hub, home):
    """The cache of a process that was killed in the middle of a download."""
    hub.faults["stall"] = 1
    process = start(hub, home, "download", home / "killed")
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in (home / "killed").rglob("*.incomplete")):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    hub.faults["stall"] = 0
    return home / "killed"


@pytest.fixture(scope="module")
def online(hub, home, killed, tiny_model_dir):
    return result(start(hub, home, "online", home, tiny_model_dir))


def value(online, step):
    assert "error" not in online[step], online[step]
    return online[step]["value"]


# Push ----------------------------------------------------------------------------------------------------------------


def test_push_and_load_by_name(online):
    first, second = value(online, "first"), value(online, "second")
    assert first != second
    assert value(online, "load_commit") == first  # the branch has moved on
    assert value(online, "load_main") == value(online, "auto_model") == second
    assert value(online, "pipeline") == first
    assert value(online, "auto_processor") == "EvidenceProcessor"


@pytest.mark.parametrize("name", ["plain", "pipeline", "saved", "command"])
def test_other_ways_to_push(hub, online, name):
    value(online, f"push_{'without_code' if name == 'plain' else name}")
    assert value(online, f"load_{name}") == value(online, "second")
    found = hub.repositories[f"ann/{name}"]
    files = found.commits[found.branches["main"]]
    assert found.private and {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)
    assert ("checkpoint_code.py" in files) == (b"auto_map" in files["config.json"]) == (name != "plain")
    assert ("reliability.png" in files) == (name == "command") and "notes.txt" not in files


def test_trainer_pushes(hub, online):
    assert value(online, "load_trained") == value(online, "train")
    found = hub.repositories["ann/trained"]
    filled = [files for files in found.commits.values() if "model.safetensors" in files]
    assert found.private and len(filled) >= 3  # two steps and the end
    for files in filled:
        assert {"checkpoint_code.py", "processor_config.json", "tokenizer.json"} <= set(files)
        assert b"auto_map" in files["config.json"]
    assert b"auto_map" in filled[-1]["processor_config.json"]
    assert not [path for path in filled[-1] if path.startswith("checkpoint-")]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("push_wrong_token", "The Hub does not accept the token that was given for ann/other; give a valid one by"),
        ("push_no_token", "The Hub wants to know who you are before it does this to ann/other; give a token by"),
        ("train_wrong_token", "The Hub does not accept the token that was given for ann/trained; give a valid one by"),
        ("push_no_right", "The token that was given may not do this to bob/first; give one with more rights by"),
        ("push_refused", "The Hub answered 500 when asked for ann/first; try again later."),
    ],
)
def test_errors_of_a_push(online, step, message):
    assert online[step]["type"] == "OSError" and online[step]["error"].startswith(message)
    assert "\n" not in online[step]["error"]


def test_refused_pushes_leave_nothing(hub, online):
    assert "error" in online["push_no_token"]
    assert set(hub.repositories) & {"ann/other", "bob/first", "bob/command"} == set()


def test_push_command(hub, online):
    exit_code, output, wrong_exit_code, wrong_output = value(online, "push_command")
    assert exit_code == 0 and hub.url + "/ann/command" in output
    found = hub.repositories["ann/command"]
    assert b"Our card." in found.commits[found.branches["main"]]["README.md"]
    assert wrong_exit_code == 2 and "Error: The token that was given may not do this to bob/command" in wrong_output


@pytest.mark.parametrize("kind", ["none", "link", "folder"])
def test_push_command_without_a_card(hub, online, kind):
    """A card that claims nothing goes up, not the form that transformers would send, and people are told."""
    exit_code, output = value(online, f"push_no_card_{kind}")
    assert exit_code == 0 and "has no readable README.md; a short card goes up" in output
    found = hub.repositories[f"ann/no-card-{kind}"]
    files = found.commits[found.branches["main"]]
    card = files["README.md"].decode()
    assert "Nobody has written down here" in card and "More Information Needed" not in card
    assert f'model="ann/no-card-{kind}"' in card and "reliability.png" not in files
    assert len(found.commits) == 2, "weights and card come in one commit, after that of the new repository"


def test_push_command_without_a_card_leaves_the_one_that_is_there(hub, online):
    exit_code, output = value(online, "push_no_card_again")
    assert exit_code == 0 and "the card that ann/command has stays as it is" in output
    found = hub.repositories["ann/command"]
    assert b"Our card." in found.commits[found.branches["main"]]["README.md"]


def test_calibrate_takes_the_card_from_the_hub(online):
    exit_code, output, card, files = value(online, "calibrate_command")
    assert exit_code == 0, output
    assert "Our card." in card and card.count("## Answerability") == 1 and "reliability.png" in files
    exit_code, output, card, _ = value(online, "calibrate_no_card")
    assert exit_code == 0 and "bob/ready has no README.md that can be read" in output
    assert "A copy of `bob/ready`" in card and card.count("## Answerability") == 1


def test_interrupted_push_goes_on(hub, online):
    """The upload was refused once and went through; then the commit failed, and the next push sends no weights."""
    puts = hub.requests("PUT", "/store/", since="push_refused", until="push_again")
    assert [put.status for put in puts] == [503, 200]
    assert not hub.requests("PUT", "/store/", since="push_again", until="load_commit")
    value(online, "push_again")


# Load ----------------------------------------------------------------------------------------------------------------


def test_nothing_is_fetched_twice(hub, online):
    assert hub.requests("GET", "/store/", since="load_main", until="load_cached")
    for step, until in (("load_cached", "load_cached_commit"), ("load_cached_commit", "pipeline")):
        assert value(online, step)
        assert not hub.requests("GET", "/store/", since=step, until=until)
        assert not hub.requests("GET", "/resolve/", since=step, until=until)
    assert not hub.requests("HEAD", "/resolve/", since="load_cached_commit", until="pipeline")


def test_one_commit_for_one_load(hub, online):
    """All files are those of the commit that the config was read from."""
    of_config, *others = hub.requests("HEAD", "/resolve/", since="load_main", until="load_cached")
    commit = hub.repositories["ann/first"].branches["main"]
    assert others and all(f"/resolve/{commit}/" in request.path for request in others)
    assert of_config.path.endswith("config.json")


def test_content_network_gets_no_token(hub, online):
    assert not any(request.has_token for method in ("GET", "PUT") for request in hub.requests(method, "/store/"))


def test_offline_afterwards(hub, home, online):
    before = len(hub.log)
    found = result(start(hub, home, "offline", value(online, "end"), HF_HUB_OFFLINE="1"))
    assert found["main"] == found["pipeline"] == value(online, "second")
    assert found["commit"] == value(online, "first")
    assert "ann/never-loaded is neither a folder" in found["error"] and "load it once with a network" in found["error"]
    assert len(hub.log) == before


def test_without_the_package(hub, home, online):
    found = result(start(hub, home, "without_package", value(online, "end"), HF_TOKEN="hf_ann"))
    assert found["model"] == found["pipeline"] == value(online, "first")
    assert found["module"] == f"transformers_modules.ann.first.{value(online, 'end')}.modeling_encoder"


# What goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "kind", "message"),
    [
        ("wrong_token", "OSError", "The Hub does not accept the token that was given for ann/first; give a valid one"),
        (
            "no_token",
            "OSError",
            "ann/first is not on the Hub, or is private; check the name, or give a token that may",
        ),
        ("missing", "OSError", "ann/nothing is not on the Hub, or is private; check the name, or give a token"),
        ("missing_revision", "OSError", "ann/first is on the Hub, but has no such revision; check the name of the"),
        ("gated", "OSError", "bob/gated is gated; ask for access on its page, and give a token that has it by"),
        ("other_model", "ValueError", "bob/other is a 'bert' checkpoint, not an evidence selector; to train one on"),
        ("no_weights", "OSError", "bob/empty has no readable model.safetensors; load it again, or see what the repo"),
        ("corrupt", "OSError", "A weight file of ann/first is damaged"),
        ("corrupt_again", "OSError", "A weight file of ann/first is damaged"),
        ("short", "OSError", "ann/first has no readable model.safetensors; load it again, or see what the repository"),
    ],
)
def test_errors_of_a_load(online, step, kind, message):
    assert online[step]["type"] == kind and online[step]["error"].startswith(message), online[step]
    assert "\n" not in online[step]["error"], "one sentence"


def test_remedy_for_a_damaged_file(online):
    assert online["corrupt"]["error"].endswith("load it once with force_download=True.")
    assert value(online, "corrupt_mended") == value(online, "second")
    assert value(online, "short_mended") == value(online, "second")


def test_gated_for_a_reader(online):
    assert value(online, "gated_for_a_reader") == value(online, "first")


def test_a_download_goes_on_where_the_line_was_cut(hub, online):
    assert value(online, "cut") == value(online, "second")
    first, *others = hub.requests("GET", "/store/", since="cut", until="killed")
    assert first.range is None and [request.range for request in others] == ["bytes=1000-"]


def test_a_download_recovers_from_a_killed_process(online):
    """What the dead process left is not read: the client starts over."""
    assert value(online, "killed") == value(online, "first")
