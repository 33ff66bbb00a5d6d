"""The folder of the Space on its own, as Hugging Face runs it: its files, and this package from a wheel."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

gradio_client = pytest.importorskip("gradio_client")
pytest.importorskip("gradio")

from warrant_hf import load_default  # noqa: E402

ROOT = Path(__file__).parents[2]
PATIENCE = 300  # seconds until the page is there


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel holds. Everything else comes from this environment."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "installed"))
    # Built from a copy: setuptools leaves folders beside what it builds.
    shutil.copytree(ROOT / "warrant_hf", source / "warrant_hf", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("warrant_hf_cli.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


@pytest.mark.slow
def test_it_answers_without_the_checkout_and_offline(installed, tmp_path):
    folder = shutil.copytree(ROOT / "spaces" / "evidence_gates", tmp_path / "space")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(installed), "GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    settings = {"cwd": folder, "env": environment, "text": True}
    where = "import importlib.util as u; print(u.find_spec('warrant_hf').origin)"
    found = subprocess.run([sys.executable, "-c", where], capture_output=True, check=True, **settings).stdout
    assert Path(found.strip()) == installed / "warrant_hf" / "__init__.py"
    with (tmp_path / "log.txt").open("w") as log:
        server = subprocess.Popen([sys.executable, "app.py"], stdout=log, stderr=log, **settings)
    address = f"http://127.0.0.1:{port}/"
    try:
        wait_for(address, server, tmp_path / "log.txt")
        passages = ["Ada was born in London.", {"title": "London", "text": "London lies on the Thames."}]
        question = "Where was Ada born?"
        result = gradio_client.Client(address, verbose=False).predict(question, passages, api_name="/select")
    finally:
        server.terminate()
        server.wait(60)
    expected = load_default().rank(question, passages)
    assert [item["index"] for item in result["evidence"]] == [item["index"] for item in expected["evidence"]]
    for item, other in zip(result["evidence"], expected["evidence"], strict=True):
        assert item["score"] == pytest.approx(other["score"], abs=1e-4)


def wait_for(address, server, log):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        try:
            return urllib.request.urlopen(address, timeout=10)
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    pytest.fail(f"The page did not come: {log.read_text()}")
