"""From rows of one's own to a RAG framework: train, push, load elsewhere by name, serve, ask from LangChain."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.hub.hub_server import HubServer
from warrant_hf.data.evidence_world import EvidenceWorld

RECIPE = """\
start_from: default
lora: {r: 8}
data: {size: 4, hard: 2}
training: {max_steps: 3, per_device_train_batch_size: 2, learning_rate: 1.0e-4, use_cpu: true, save_strategy: "no"}
licence: apache-2.0
"""
QUESTION = "Where was Ada Holm born?"
PASSAGES = ["Ada Holm was born in Bergen.", "Bergen is a city by the sea.", "Tom Reed was born in York."]
RANK = f"""
import json
from warrant_hf import AutoModelForEvidenceSelection
model = AutoModelForEvidenceSelection.from_pretrained("ann/mine")
print(json.dumps(model.rank({QUESTION!r}, {PASSAGES!r})["evidence"]))
"""
ASK = f"""
import json, sys
from langchain_core.documents import Document
from warrant_hf.integrations.langchain import WarrantCompressor
kept = WarrantCompressor(model=sys.argv[1], top_n=2).compress_documents(
    [Document(page_content=text, metadata={{"page": at}}) for at, text in enumerate({PASSAGES!r})], {QUESTION!r}
)
print(json.dumps([[each.page_content, each.metadata] for each in kept]))
"""


class Machine:
    """Processes with a home of their own."""

    def __init__(self, home, **environment):
        dropped = ("HF_TOKEN", "HF_HUB_CACHE", "HF_MODULES_CACHE", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        settings = {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "localhost,127.0.0.1"}
        self.environment = {**kept, **settings, **environment}

    def run(self, *arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout

    def start(self, *arguments):
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, *arguments], env=self.environment, text=True, **pipes)


@pytest.mark.slow
def test_from_rows_to_langchain(tmp_path):
    pytest.importorskip("langchain_core")
    rows, recipe, trained = (tmp_path / name for name in ("rows.jsonl", "recipe.yaml", "trained"))
    rows.write_text("".join(json.dumps(row.to_dict()) + "\n" for row in EvidenceWorld(5).generate(12)))
    recipe.write_text(RECIPE)
    here = Machine(tmp_path / "here", HF_HUB_OFFLINE="1")
    here.run("-m", "warrant_hf_cli", "train", "--config", recipe, "--train", rows, "--output", trained)
    with HubServer({"hf_ann": "ann"}) as hub:
        shared = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_ann"}
        pushing = Machine(tmp_path / "here", **shared)
        said = pushing.run("-m", "warrant_hf_cli", "push", trained, "ann/mine", "--private")
        assert "ann/mine" in said
        files = hub.repositories["ann/mine"]
        files = files.commits[files.branches["main"]]
        assert b"license: apache-2.0" in files["README.md"] and "model.safetensors" in files

        elsewhere = Machine(tmp_path / "elsewhere", **shared)
        expected = json.loads(elsewhere.run("-c", RANK).splitlines()[-1])
    # Without the Hub from here on: what was loaded once is on that machine.
    offline = Machine(tmp_path / "elsewhere", HF_HUB_OFFLINE="1")
    server = offline.start("-m", "warrant_hf_cli", "serve", "--model", "ann/mine", "--port", "0")
    try:
        address = None
        for line in server.stderr:
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address:
                break
        assert address, "the server has not said where it listens"
        kept = json.loads(offline.run("-c", ASK, address.group()).splitlines()[-1])
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0
    assert [text for text, _ in kept] == [item["text"] for item in expected[:2]]
    for (_, metadata), item in zip(kept, expected):
        assert metadata["page"] == item["index"]
        assert metadata["permission"] == pytest.approx(item["permission"], abs=1e-5)
