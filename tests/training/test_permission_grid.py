"""The grid that puts the papers' claims to the test: equal terms for all, exact cached states, runs that go on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("statsmodels")
pytest.importorskip("pandas")

from training.experiments import run as runner  # noqa: E402
from training.experiments.cached_states import CachedStates  # noqa: E402
from training.experiments.claims import (  # noqa: E402
    CLAIMS,
    NO_DIFFERENCE,
    NOT,
    OPPOSITE,
    REPRODUCED,
    UNDECIDED,
    claim_rows,
)
from training.experiments.contestants import CONTESTANTS, REFERENCE_SUPERVISION  # noqa: E402
from training.experiments.experiment import Experiment  # noqa: E402
from training.experiments.grid import GRIDS, Grid  # noqa: E402
from training.experiments.readout_training import fresh_selector, predict_cached, train_readout  # noqa: E402
from warrant_hf import (  # noqa: E402
    EvidenceProcessor,
    EvidenceWorld,
    WarrantEncoderConfig,
    WarrantEncoderForEvidenceSelection,
)
from warrant_hf.data.candidates import CandidateDataset  # noqa: E402
from warrant_hf.evaluation.predict import predict  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def base(tiny_model_dir):
    model = WarrantEncoderForEvidenceSelection.from_pretrained(tiny_model_dir).eval()
    # Long candidates have parts.
    model.processor = EvidenceProcessor(model.processor.tokenizer, max_length=96, max_question_tokens=40)
    return model


@pytest.fixture(scope="module")
def rows():
    return list(EvidenceWorld(seed=1, candidates=5, hard=2, missing_rate=0.0).generate(6))


@pytest.fixture(scope="module")
def cached(base, rows):
    states = CachedStates(base, torch.float32)
    states.add(rows, batch_size=4)
    return states


@pytest.mark.parametrize("name", [name for name, c in CONTESTANTS.items() if c.starts_from is None])
def test_cached_states_give_what_the_selector_gives(name, base, rows, cached):
    selector = fresh_selector(base, CONTESTANTS[name].config, seed=3).eval()
    selector.backbone.load_state_dict(base.backbone.state_dict())
    selector.processor = base.processor
    items = [CandidateDataset(rows, size=4, seed=2)[at] for at in range(len(rows))]
    batch = cached.collate(items)
    whole = selector(
        **base.processor([item["question"] for item in items], [item["passages"] for item in items]),
        labels=batch["labels"],
        candidate_lists=batch["candidate_lists"],
    )
    part = selector.readout(**batch)
    torch.testing.assert_close(part.logits, whole.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(part.loss, whole.loss, atol=2e-5, rtol=1e-4)
    expected = predict(selector, rows, 4)
    for one, other in zip(predict_cached(selector.readout, cached, rows), expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4) and one.labels == other.labels
        assert (one.mass is None) == (other.mass is None)


def test_what_is_cached_is_not_read_again_and_survives_a_file(base, rows, cached, tmp_path):
    cached.save(tmp_path / "s.safetensors")
    again = CachedStates(base, torch.float32)
    again.load(tmp_path / "s.safetensors")
    read = []
    again.add(rows, advance=read.append)
    assert read == []
    item = CandidateDataset(rows, size=4, seed=2)[0]
    for name, value in again.collate([item]).items():
        torch.testing.assert_close(value, cached.collate([item])[name], msg=name)
    other = list(EvidenceWorld(seed=9, candidates=3).generate(2))
    again.add([rows[0], *other], advance=read.append)
    assert sum(read) == 2
    torch.testing.assert_close(again.collate([item])["states"], cached.collate([item])["states"])


def test_states_that_depend_on_other_candidates_are_not_cached(base):
    config = WarrantEncoderConfig(backbone_config=base.config.backbone_config, packing="joint")
    with pytest.raises(ValueError, match="packing is 'joint'"):
        CachedStates(WarrantEncoderForEvidenceSelection(config))


def test_comparisons_are_on_equal_terms(base):
    """Every contestant: the same config but for what it is named after, the same start, no labels unless named."""
    first = fresh_selector(base, CONTESTANTS["pair"].config, seed=5)
    for name, contestant in CONTESTANTS.items():
        assert set(contestant.config) <= {"variant", "permission_supervision"}, name
        selector = fresh_selector(base, contestant.config, seed=5)
        same = {field: getattr(selector.config, field) for field in first.config.own_fields()}
        for field in ("gate_init", "gate_leak", "readout_dropout", "readout_size", "gate_size", "evidence_loss"):
            assert same[field] == getattr(first.config, field), (name, field)
        supervised = name in ("label_supervised", "marker_label_supervised", "attention_readout")
        assert selector.config.permission_supervision == (REFERENCE_SUPERVISION if supervised else 0.0)
        if not selector.config.variant.startswith("marker"):
            for (key, one), (_, other) in zip(selector.named_parameters(), first.named_parameters(), strict=True):
                assert torch.equal(one, other), (name, key)
        assert selector.readout.dropout.p == first.readout.dropout.p


def test_a_grid_has_no_setting_of_one_contestant():
    fields = set(Grid.model_fields)
    assert {"rates", "seeds", "batch_size", "lists", "config"} <= fields
    for path in GRIDS.glob("*.yaml"):
        grid = Grid.read(path.stem)
        spans = sorted([grid.base.rows, grid.train_rows, grid.tune_rows])
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))
        assert not {"variant", "permission_supervision"} & set(grid.config)
        assert len(grid.rates) > 1 and len(grid.seeds) > 1


def test_only_the_gate_moves_where_only_the_gate_is_trained(base, rows, cached):
    items = [CandidateDataset(rows, size=4, seed=2)[at] for at in range(len(rows))]
    readout = fresh_selector(base, {"variant": "pair"}, seed=0).readout
    before = {name: value.clone() for name, value in readout.state_dict().items()}
    train_readout(readout, cached, items, rate=1e-2, batch_size=2, seed=0, trains="gate.")
    moved = {name for name, value in readout.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("gate.") for name in moved)


@pytest.fixture(scope="module")
def grid_file(tiny_encoder_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    recipe = {
        "base_model": str(tiny_encoder_dir),
        "model": {"variant": "open", "readout_size": 16, "readout_heads": 2, "gate_size": 8},
        "data": {"size": 4, "hard": 2, "max_length": 128, "max_question_tokens": 48},
        "training": {"per_device_train_batch_size": 4, "use_cpu": True, "save_strategy": "no", "disable_tqdm": True},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    grid = {
        "train": "world:24:1",
        "eval": "world:8:2",
        "base": {"recipe": str(folder / "recipe.yaml"), "rows": [0, 8]},
        "train_rows": [8, 16],
        "tune_rows": [16, 24],
        "lists": {"size": 4, "hard": 2, "draws": 1, "lists_per_question": 2},
        "contestants": ["open", "pair", "marker_open", "marker_path", "base", "role_pair"],
        "seeds": [0, 1],
        "rates": [1e-3, 1e-2],
        "batch_size": 4,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(grid))
    return path


def test_a_grid_runs_goes_on_and_reports(grid_file, tmp_path):
    out = tmp_path / "out"
    assert runner.main(["--grid", str(grid_file), "--out", str(out)]) == 0
    runs = sorted(path.parent.name for path in out.glob("runs/*/run.json"))
    assert len(runs) == 12 and len(list(out.glob("tuning/*/run.json"))) == 12
    report = (out / "report.md").read_text()
    for name in ("`open`", "`pair`", "`marker_path`", "`base`", "`role_pair`"):
        assert name in report
    assert "not run" in report  # claims about contestants that this grid lacks
    data = json.loads((out / "report.json").read_text())
    entry = data["sets"]["eval"]["comparisons"]["open"]["pair"]["support_mrr"]
    values = [data["sets"]["eval"]["contestants"][name]["seeds"] for name in ("pair", "open")]
    difference = np.mean([values[0][seed]["support_mrr"] - values[1][seed]["support_mrr"] for seed in ("0", "1")])
    assert entry["questions"]["value"] == pytest.approx(difference)
    assert entry["both"]["value"] == pytest.approx(difference) and entry["seeds"]["of"] == 2
    assert (out / "results.parquet").is_file()

    diverged = out / "runs" / next(name for name in runs if name.startswith("base-seed1"))
    kept = (diverged / "run.json").read_text()
    facts = {"contestant": "base", "seed": 1, "rate": json.loads(kept)["rate"], "failed": "the loss is nan"}
    (diverged / "run.json").write_text(json.dumps(facts | {"metrics": {}}))
    assert runner.main(["--grid", str(grid_file), "--out", str(out), "--report-only"]) == 0
    assert "`base`, seed 1, has no result: the loss is nan." in (out / "report.md").read_text()
    (diverged / "run.json").write_text(kept)

    lost = out / "runs" / next(name for name in runs if name.startswith("pair-seed1"))
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("run.json") if path.parent != lost}
    predicted = (lost / "predictions.parquet").read_bytes()
    shutil.rmtree(lost)
    assert runner.main(["--grid", str(grid_file), "--out", str(out)]) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert (lost / "predictions.parquet").read_bytes() == predicted
    assert (out / "report.md").read_text() == report


def test_the_encoder_can_be_trained_along(grid_file, tmp_path):
    grid = Grid.read(str(grid_file)).model_copy(update={"contestants": ["pair"], "seeds": [0], "rates": [1e-3]})
    experiment = Experiment(grid, tmp_path, unfreeze=True)
    experiment.run_one("pair", 0, 1e-3)
    found = json.loads((experiment.folder("pair", 0, 1e-3) / "run.json").read_text())
    assert found["trained_parameters"] > 10_000 and 0 < found["metrics"]["eval"]["support_mrr"] <= 1


@pytest.mark.slow
def test_processes_share_the_runs(grid_file, tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu"]
    command += ["-m", "training.experiments.run", "--grid", str(grid_file), "--out", str(tmp_path / "two")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    assert runner.main(["--grid", str(grid_file), "--out", str(tmp_path / "one")]) == 0
    for path in tmp_path.glob("one/runs/*/predictions.parquet"):
        assert (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"contestants": ["pairs"]}, "names 'pairs'; choose from"),
        ({"contestants": ["role_pair"]}, "goes on from 'open'; name that too"),
        ({"tune_rows": [4, 12]}, "overlap"),
        ({"seeds": [0, 100]}, "tuning_seed 100 is one of seeds"),
        ({"batchsize": 4}, "batchsize is not a field of a grid"),
        ({"seeds": []}, "seeds or contestants is empty"),
        ({"rates": [float("nan"), 1e-3]}, "give learning rates between 0 and 1"),
    ],
)
def test_bad_grids(grid_file, tmp_path, capsys, change, expected):
    values = yaml.safe_load(grid_file.read_text()) | change
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(values))
    assert runner.main(["--grid", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "o")]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


def test_unknown_grids_and_missing_data(tmp_path, capsys):
    assert runner.main(["--grid", "none", "--out", str(tmp_path)]) == 2
    assert runner.main(["--grid", "hotpotqa", "--out", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "choose one of" in said and "add --train" in said


def test_claims_can_come_out_either_way():
    def report(low, high, gap):
        both = {"value": (low + high) / 2, "low": low, "high": high}
        kinds = {"permission_gold": 0.9, "permission_hard": 0.9 - gap, "permission_random": 0.5}
        names = [name for name in CONTESTANTS if name != "pair"]
        return {
            "comparisons": {
                "open": {"pair": {"support_mrr": {"both": both}, "evidence_f1": {"questions": both}}},
                "pair": {name: {"support_mrr": {"both": both}} for name in names},
            },
            "contestants": {name: {"seeds": {"0": kinds}, "gate_gap": [gap]} for name in CONTESTANTS},
        }

    def verdict(data, claim):
        return next(row["verdict"] for row in claim_rows(data) if row["claim"].startswith(claim))

    up, down, null = report(0.01, 0.03, 0.4), report(-0.03, -0.01, 0.0), report(-0.01, 0.01, 0.04)
    three = (up, down, null)
    assert [verdict(data, "Permission raises MRR over the open") for data in three] == [
        REPRODUCED,
        OPPOSITE,
        UNDECIDED,
    ]
    assert [verdict(data, "Gates of the wrong pair") for data in three] == [OPPOSITE, REPRODUCED, UNDECIDED]
    narrow = report(-0.001, 0.001, 0.4)
    assert [verdict(narrow, claim) for claim in ("Gates of the wrong", "A gate per item")] == [NOT, NO_DIFFERENCE]
    assert [verdict(data, "Gates suppress") for data in (up, down, null)] == [REPRODUCED, NOT, NOT]
    assert len(claim_rows(up)) == len(CLAIMS)
