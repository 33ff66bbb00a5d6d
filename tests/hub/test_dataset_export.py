"""Rows go to `datasets`, to a folder and to a Hub on the loopback, and come back as they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warrant_hf.data import DataError, EvidenceWorld, build_candidates, rows_from

datasets = pytest.importorskip("datasets")

from tests.hub.hub_server import HubServer  # noqa: E402
from warrant_hf.data.export import rows_of, save_dataset, to_dataset_dict, without_nulls  # noqa: E402

ROOT = Path(__file__).parents[2]
FACTS = {"licence": "cc-by-sa-4.0", "source": "Written for a test.", "description": "Lists of four."}
# What one column can hardly hold: keys that only some have, values of several kinds, texts that look like JSON.
ODD = [
    {
        "id": "a",
        "question": "who?",
        "answer": "1815",
        "candidates": [
            {"text": "one", "label": 1, "source": {"passage": 0, "sentence": 2}, "score": 0.5},
            {
                "text": "“two” \U0001f600",
                "title": "T",
                "label": 0,
                "kind": "hard",
                "source": "page 3",
                "pages": [1, 2],
            },
        ],
        "level": "easy",
        "facts": [["T", 0], ["U", 1]],
    },
    {"id": "b", "question": "what?", "answer": ["x", None], "candidates": ["plain", "text"], "size": 3},
    {
        "id": "c",
        "question": "when?",
        "answer": True,
        "candidates": [{"text": "t", "pages": [], "size": 2**40}],
    },
]


def splits():
    world = [build_candidates(row, size=4, hard=2) for row in EvidenceWorld(1).generate(5)]
    return {"train": world + rows_from(ODD), "validation": rows_from(ODD[:1])}


def as_dicts(rows):
    return [without_nulls(row.to_dict()) for row in rows]


def test_dataset_dict_gives_the_rows_back():
    made = to_dataset_dict(splits())
    assert made["train"].features == made["validation"].features
    for name, rows in splits().items():
        assert as_dicts(rows_of(made[name])) == as_dicts(rows)


def test_ordinary_columns_have_ordinary_types():
    made = to_dataset_dict({"train": EvidenceWorld(1).generate(3)})["train"]
    candidate = made.features["candidates"].feature
    assert {made.features[name].dtype for name in ("id", "question", "answer")} == {"string"}
    assert (candidate["text"].dtype, candidate["label"].dtype) == ("string", "int64")


def test_folder(tmp_path):
    save_dataset(splits(), tmp_path / "lists", **FACTS)
    loaded = datasets.load_dataset(str(tmp_path / "lists"), cache_dir=str(tmp_path / "cache"))
    for name, rows in splits().items():
        assert as_dicts(rows_of(loaded[name])) == as_dicts(rows)
    card = (tmp_path / "lists" / "README.md").read_text(encoding="utf-8")
    assert (
        "license: cc-by-sa-4.0" in card and "path: data/train.parquet" in card and "size_categories:\n- n<1K" in card
    )
    assert "| train | 8 | 25 | not labelled |" in card and "| validation | 1 | 2 | 1 |" in card


def test_parquet_of_ordinary_rows_needs_no_datasets_to_be_read(tmp_path):
    from warrant_hf.data import read_rows

    rows = list(EvidenceWorld(1).generate(4))
    save_dataset({"train": rows}, tmp_path, **FACTS)
    assert as_dicts(read_rows(tmp_path / "data" / "train.parquet")) == as_dicts(rows)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({}, "splits is empty; give"),
        ({"train": []}, "'train' has no rows; leave it out"),
        ({"a/b": rows_from(ODD)}, "'a/b' has no usable name; use letters"),
        ({"train": rows_from([ODD[0] | {"answer": {1, 2}}])}, "row 'a' of train holds a value that is not JSON"),
        ({"train": rows_from([ODD[0] | {"answer": 2**70}])}, "row 'a' of train holds 1180.*; write a text"),
    ],
)
def test_what_cannot_be_exported(made, message, tmp_path):
    with pytest.raises(DataError, match=message):
        save_dataset(made, tmp_path / "none", **FACTS)
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Results of dataset_session.py, and the server that it spoke to."""
    home = tmp_path_factory.mktemp("home")
    card = ROOT / "warrant_hf" / "checkpoints" / "minilm-pair" / "README.md"
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    with HubServer({"hf_ann": "ann", "hf_bob": "bob"}) as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "localhost,127.0.0.1"}
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "hub" / "dataset_session.py"), str(home), str(card)],
            env=kept | settings,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout.strip().splitlines()[-1]), hub


@pytest.mark.parametrize("way", ["snapshot", "by_name"])
def test_what_was_pushed_comes_back(session, way):
    results, _ = session
    assert results[way] == {name: as_dicts(rows) for name, rows in splits().items()}


def test_a_push_is_one_commit(session):
    results, hub = session
    pushed = hub.repositories["datasets/ann/lists"]
    assert pushed.private and results["push"].endswith(list(pushed.commits)[1])
    assert set(pushed.commits[pushed.branches["main"]]) >= {
        "README.md",
        "data/train.parquet",
        "data/validation.parquet",
    }


def test_refusals_are_one_sentence(session):
    results, _ = session
    assert "may not do this to bob/lists; give one with more rights" in results["no_right"]
    assert "does not accept the token that was given for ann/lists" in results["wrong_token"]


def test_cards_are_valid_for_the_client(session):
    results, hub = session
    assert (results["dataset_card"], results["model_card"]) == (None, None)
    assert len(hub.requests("POST", "/api/validate-yaml")) >= 2
