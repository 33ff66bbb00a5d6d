"""The synthetic lab: the paper's digits, the same picture with other seeds, and its command."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from warrant_hf.precision_lab import (
    METHODS,
    attention_weights,
    calibration_table,
    draw_trials,
    expected_error,
    noise_ratio_table,
    plot_lab,
    signature,
)
from warrant_hf_cli import app

# softmax, best temperature, oracle precision, noisy precision; what the paper's listing prints with its defaults
PRINTED = {
    1: (0.031004586901703372, 0.03088533670694797, 0.031004586901703372, 0.04188189590413238),
    2: (0.07491523864330438, 0.07491523864330438, 0.048806213472876524, 0.06898015015532769),
    4: (0.2532784241730898, 0.23928702115624848, 0.057279076161709165, 0.08322013147091332),
    8: (0.9580779765610334, 0.7588655326064943, 0.060230103615034114, 0.08449901733304799),
    12: (2.1419143307151267, 1.4938233901493159, 0.060209622552343876, 0.08033502916335329),
}
STRESS = {
    0.0: 0.05958729973388723,
    0.5: 0.06198899093869112,
    1.0: 0.08138693187833003,
    1.5: 0.14768084027049339,
    2.0: 0.2596633429724107,
}
TRUE_LOG_PRECISION = {ratio: -2 * np.log(0.25 * np.array([1, ratio, 1, ratio])) for ratio in (1, 2, 4, 8, 12)}


@pytest.fixture(scope="module")
def paper():
    return noise_ratio_table(), calibration_table()


def test_every_printed_digit(paper):
    noise, calibration = paper
    found = {row["noise_ratio"]: tuple(row[name]["value"] for name in METHODS) for row in noise}
    assert found.keys() == PRINTED.keys()
    for ratio, values in PRINTED.items():
        assert found[ratio] == pytest.approx(values, rel=1e-12)
    assert {r["log_precision_error"]: r["precision"]["value"] for r in calibration} == pytest.approx(STRESS, rel=1e-12)


def test_figures_in_the_text_of_the_paper(paper):
    noise, calibration = paper
    by_ratio = {row["noise_ratio"]: {name: f"{row[name]['value']:.3f}" for name in METHODS} for row in noise}
    assert by_ratio[1]["softmax"] == by_ratio[1]["oracle_precision"] == "0.031"
    assert by_ratio[1]["noisy_precision"] == "0.042"
    assert list(by_ratio[8].values()) == ["0.958", "0.759", "0.060", "0.084"]
    assert f"{calibration[-1]['precision']['value']:.3f}" == "0.260"


def test_the_stream_is_that_of_the_standard_library():
    rng = random.Random(5)
    lab = draw_trials(trials=50, noise_ratio=3.0, seed=5)
    for trial in range(50):
        target, distractor, *errors = (rng.gauss(0, 1) for _ in range(6))
        expected = [target + 0.25 * errors[0], target + 0.75 * errors[1]]
        expected += [distractor + 0.25 * errors[2], distractor + 0.75 * errors[3]]
        assert lab.target[trial] == pytest.approx(target, abs=1e-14)
        assert lab.values[trial] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("seed", [0, 1, 77, 2**33 + 5])
def test_another_seed_gives_the_same_picture(seed):
    noise, calibration = noise_ratio_table(seed=seed, trials=20_000), calibration_table(seed=seed, trials=20_000)
    assert signature(noise, calibration) == {"null": True, "growth": True, "grace": True}
    for row in noise:
        ratio = row["noise_ratio"]
        for name, log_precision in (("softmax", None), ("oracle_precision", TRUE_LOG_PRECISION[ratio])):
            value, entry = expected_error(attention_weights(log_precision), ratio), row[name]
            half = entry["value"] - entry["low"]
            assert abs(entry["value"] - value) < 2.2 * half  # more than four standard errors: never by chance here
            assert entry["low"] < entry["value"] < entry["high"]
        assert row["best_temperature"]["value"] <= row["softmax"]["value"]


def test_the_interval_covers_as_often_as_it_says():
    truth = expected_error(attention_weights(), 4.0)
    rows = [noise_ratio_table(seed=1000 + 10 * seed, trials=200, ratios=(4.0,))[0] for seed in range(150)]
    covered = np.mean([row["softmax"]["low"] <= truth <= row["softmax"]["high"] for row in rows])
    assert 0.88 < covered


def test_signature_says_no():
    noise, calibration = noise_ratio_table(trials=4000, seed=3), calibration_table(trials=4000, seed=3)
    entry = {"value": 0.02, "low": 0.019, "high": 0.021}
    leak = [{**noise[0], "oracle_precision": entry, "gain": {**entry, "value": 0.01}}, *noise[1:]]
    assert not signature(leak, calibration)["null"]  # a gain where none can be
    assert not signature([noise[0], *noise[:0:-1]], calibration)["growth"]
    assert not signature(noise, calibration[::-1])["grace"]


def test_invariants_of_the_factorisation():
    assert attention_weights(np.full(4, 1.7)) == pytest.approx(attention_weights(), abs=1e-15)
    weights = attention_weights(np.array([3.0, 0.0, 1.0, 1.0]))
    swapped = attention_weights(np.array([0.0, 3.0, 1.0, 1.0]))
    assert swapped[[1, 0, 2, 3]] == pytest.approx(weights)
    for temperature in (0.2, 1.0, 7.5):  # no temperature breaks a tie
        tempered = attention_weights(temperature=temperature)
        assert tempered[0] == tempered[1]
    assert attention_weights(np.array([9.0, 0, 0, 0])) == pytest.approx(attention_weights(np.array([4.0, 0, 0, 0])))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"trials": 10**9}, "trials is"),
        ({"seed": -1}, "seed is -1"),
        ({"noise_ratio": 0.0}, "noise_ratio is 0"),
        ({"noise_ratio": float("nan")}, "noise_ratio is nan"),
    ],
)
def test_bad_settings(settings, named):
    with pytest.raises(ValueError, match=named):
        draw_trials(**settings)


def test_the_command_prints_four_decimals_and_writes_json(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "lab.json"
    result = CliRunner().invoke(app, ["precision-lab", "--json", str(out)])
    assert result.exit_code == 0, result.output
    for number in ("0.0310", "0.9581", "0.7589", "0.0602", "0.0845", "0.2597"):
        assert number in result.stdout
    assert result.stdout.count("found: ") == 3 and "NOT FOUND" not in result.stdout
    written = json.loads(out.read_text())
    assert written["config"] == {"seed": 203, "trials": 40_000} and len(written["noise"]) == 5


def test_the_plot(tmp_path, paper):
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "lab.svg", tmp_path / "again.svg"
    plot_lab(first, *paper)
    plot_lab(second, *paper)
    text = first.read_text()
    assert text.startswith("<?xml") and "noise ratio" in text and "oracle precision" in text
    assert text == second.read_text()


def test_the_plot_is_refused_before_the_work(tmp_path):
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(app, ["precision-lab", "--plot", str(tmp_path / "lab.png")])
    assert result.exit_code == 2 and result.stdout == ""
    assert ".svg" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_without_matplotlib_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["precision-lab", "--plot", str(tmp_path / "lab.svg")])
    assert result.exit_code == 2
    assert "pip install 'warrant-hf[experiments]'" in result.stderr


def test_help_does_not_load_the_library():
    code = (
        "import sys, warrant_hf_cli as c\n"
        "try: c.app(['precision-lab', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'warrant_hf'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--plot" in done.stdout and done.stderr.strip() == "[]"
