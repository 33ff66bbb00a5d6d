"""Batch scoring with Ray Data on a local Ray of two workers."""

import json
import os
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'ray[data]'")
pytest.importorskip("ray.data", reason="Ray Data is not installed; pip install 'ray[data]'")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": variables}, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_two_workers_score_every_row_in_order(cluster, tiny_model, tiny_model_dir, tmp_path):
    from training.ray_batch_scoring import score

    rows = [
        {
            "id": number,
            "question": f"question {number}?",
            "candidates": [{"text": f"passage {at} of {number}"} for at in range(2 + number % 3)],
        }
        for number in range(30)
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = score(str(source), str(tiny_model_dir), workers=2, batch_size=4).materialize()
    scored.write_json(str(tmp_path / "out"))
    found = scored.take_all()
    assert [row["id"] for row in found] == list(range(30))
    files = sorted((tmp_path / "out").glob("*.json"))
    assert [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()] == list(range(30))
    for row, got in zip(rows, found, strict=True):
        expected = tiny_model.rank(row["question"], row["candidates"])
        assert [item["index"] for item in got["evidence"]] == [item["index"] for item in expected["evidence"]]
        for one, other in zip(got["evidence"], expected["evidence"], strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert got["mass"] == pytest.approx(expected["mass"], abs=1e-5)
