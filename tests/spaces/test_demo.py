"""`warrant-hf demo` with several models, started for real; nothing but the wait for its end is left out."""

import shutil
import socket
import sys

import pytest
from typer.testing import CliRunner

gr = pytest.importorskip("gradio")
gradio_client = pytest.importorskip("gradio_client")

from tests.spaces.conftest import PASSAGES, QUESTION  # noqa: E402
from warrant_hf_cli import app  # noqa: E402


@pytest.fixture
def demo(monkeypatch):
    """Runs `warrant-hf demo …`; what it serves is closed at the end."""
    served = []
    monkeypatch.setattr(gr.Blocks, "block_thread", lambda blocks: served.append(blocks))

    def run(*options):
        done = CliRunner().invoke(app, ["demo", "--no-browser", *map(str, options)])
        return done, served

    yield run
    for blocks in served:
        blocks.close()


def refusal(done):
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1, done.output
    return done.stderr


@pytest.fixture
def other_dir(tiny_model_dir, tmp_path):
    return shutil.copytree(tiny_model_dir, tmp_path / "other")


def test_models_become_the_allow_list(demo, tiny_model_dir, other_dir, tiny_model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done, served = demo("--model", tiny_model_dir, "--model", other_dir, "--port", port)
    assert done.exit_code == 0, done.output
    (blocks,) = served
    client = gradio_client.Client(blocks.local_url, verbose=False)
    assert blocks.local_url == f"http://127.0.0.1:{port}/"
    result = client.predict(QUESTION, PASSAGES, tiny_model_dir.name, "other", api_name="/compare")
    scores = [item["score"] for item in tiny_model.rank(QUESTION, PASSAGES)["evidence"]]
    for side in ("first", "second"):
        assert [item["score"] for item in result[side]["evidence"]] == scores
    with pytest.raises(gradio_client.exceptions.AppError, match=f"must be one of: {tiny_model_dir.name}.*; other"):
        client.predict(QUESTION, PASSAGES, "a third", "other", api_name="/compare")


def test_names_must_differ(demo, tmp_path, other_dir):
    done, served = demo("--model", other_dir, "--model", "some-org/other")
    assert "would both be called other" in refusal(done) and not served
    done, served = demo("--model", other_dir, "--model", other_dir)
    assert "would both be called other" in refusal(done) and not served


def test_tools_are_offered_where_they_are_asked_for(demo, tiny_model_dir):
    pytest.importorskip("mcp")
    for options, offered in (((), False), (("--mcp",), True)):
        done, served = demo("--model", tiny_model_dir, *options)
        assert done.exit_code == 0, done.output
        assert ("/gradio_api/mcp/" in done.stdout) == (served[-1].mcp_server_obj is not None) == offered


def test_a_missing_package_is_named(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    done, _ = demo("--mcp", "--model", "nowhere")
    assert "mcp is not installed; run: pip install 'warrant-hf[mcp]'" in refusal(done)


def test_text_takes_one_model(demo, tiny_model_dir):
    done, _ = demo("--text", "--model", tiny_model_dir, "--model", tiny_model_dir)
    assert "--text takes one --model, and 2 are given" in refusal(done)


def test_a_name_that_stands_for_a_variant_is_refused(demo, tiny_model_dir, tmp_path):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "x, all gates open")
    done, served = demo("--model", folder)
    assert "ends with ', all gates open'" in refusal(done) and not served
