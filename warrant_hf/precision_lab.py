"""The synthetic intervention lab of PFA, precision-factorised attention ("a benchmark that can return a null").

Relevance is held fixed while the noise of the sources changes. Four sources are attended to with the relevance logits
(2, 2, -1.5, -1.5): two readings of the target, two of a distractor, each pair a clean one (standard deviation 0.25)
and one that is `noise_ratio` times as noisy. Target and distractor are independent standard normal. The prediction is
sum_j w_j x_j, the error is its squared distance from the target, and the weights are

- `softmax`: softmax(r);
- `best_temperature`: softmax(r / T), the T of a declared grid whose error on these very trials is smallest;
- `oracle_precision`: softmax(r + clip(log 1/sigma_j^2, -4, 4));
- `noisy_precision`: the same with normal error of a given standard deviation in each log-precision, before the clip.

With seed 203 and 40 000 trials the tables are those of the paper's listing, to every printed digit. They rest on its
stream of random numbers, which is therefore part of the definition: normal numbers come in pairs by Box and Muller's
method from the 53-bit uniforms of a Mersenne twister seeded with one whole number, as Python's `random.gauss` makes
them; a trial takes target, distractor, then the four errors; condition i of the noise ratios has its trials from
seed + i and its errors of the log-precision from seed + 200 + i; the calibration table has its trials from the seed
and the errors of its row i from seed + 300 + i.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .evaluation.report import write_text

RELEVANCE = (2.0, 2.0, -1.5, -1.5)
CLEAN_DEVIATION = 0.25
TEMPERATURES = (0.20, 0.30, 0.45, 0.67, 1.0, 1.5, 2.2, 3.3, 5.0, 7.5)
NOISE_RATIOS = (1.0, 2.0, 4.0, 8.0, 12.0)
LOG_PRECISION_ERRORS = (0.0, 0.5, 1.0, 1.5, 2.0)
STRESS_RATIO = 8.0
BOUND = 4.0
METHODS = ("softmax", "best_temperature", "oracle_precision", "noisy_precision")
PAPER_SEED, PAPER_TRIALS = 203, 40_000

_NORMAL_95 = 1.959963984540054
_LARGEST_NUMBER = 20_000_000  # trials; six numbers of 8 bytes each, so about a gigabyte


@dataclass(frozen=True)
class LabTrials:
    """Trials of one condition.

    Attributes:
        target: `[T]`.
        values: `[T, 4]`, what the sources report.
        variances: `[4]`, of the sources' errors.
    """

    target: np.ndarray
    values: np.ndarray
    variances: np.ndarray


def draw_trials(*, trials: int = PAPER_TRIALS, noise_ratio: float = 1.0, seed: int = PAPER_SEED) -> LabTrials:
    """Trials of one noise ratio.

    Raises:
        ValueError: trials, noise ratio or seed out of range.
    """
    _check(trials, seed)
    if not 0 < noise_ratio < math.inf:
        raise ValueError(f"noise_ratio is {noise_ratio}; give a finite number above 0, such as 8.")
    deviations = CLEAN_DEVIATION * np.array([1.0, noise_ratio, 1.0, noise_ratio])
    normal = _normal(seed, trials * 6).reshape(trials, 6)
    target, distractor = normal[:, 0], normal[:, 1]
    values = np.stack([target, target, distractor, distractor], axis=1) + normal[:, 2:] * deviations
    return LabTrials(target, values, deviations**2)


def attention_weights(log_precision: np.ndarray | None = None, temperature: float = 1.0) -> np.ndarray:
    """`[4]` or the shape of l: softmax(r / T + clip(l, -4, 4)) over the last axis (the minimal factorisation)."""
    logits = np.array(RELEVANCE) / temperature
    if log_precision is not None:
        logits = logits + np.clip(log_precision, -BOUND, BOUND)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def expected_error(weights: np.ndarray, noise_ratio: float) -> float:
    """The mean squared error that infinitely many trials would have with these weights, `[4]`.

    The error is (w_1 + w_2 - 1) target + (w_3 + w_4) distractor + sum_j w_j e_j, of independent terms.
    """
    deviations = CLEAN_DEVIATION * np.array([1.0, noise_ratio, 1.0, noise_ratio])
    return float((weights[:2].sum() - 1) ** 2 + weights[2:].sum() ** 2 + ((weights * deviations) ** 2).sum())


def noise_ratio_table(
    *,
    trials: int = PAPER_TRIALS,
    seed: int = PAPER_SEED,
    ratios: Sequence[float] = NOISE_RATIOS,
    log_precision_error: float = 1.0,
) -> list[dict]:
    """Mean squared error of the four methods at each noise ratio.

    Each row has `noise_ratio`, `temperature` (the best one), for each of `METHODS` an entry `{"value", "low",
    "high"}` with the normal 95 % interval over trials, and `gain`: softmax - oracle_precision, trial by trial.

    Raises:
        ValueError: an argument is out of range.
    """
    rows = []
    for index, ratio in enumerate(ratios):
        lab = draw_trials(trials=trials, noise_ratio=ratio, seed=seed + index)
        softmax = _squared_errors(lab, attention_weights())
        tempered = {t: _squared_errors(lab, attention_weights(temperature=t)) for t in TEMPERATURES}
        best = min(tempered, key=lambda temperature: tempered[temperature].mean())
        oracle = _precision_errors(lab, 0.0, seed)
        noisy = _precision_errors(lab, log_precision_error, seed + 200 + index)
        columns = zip(METHODS, (softmax, tempered[best], oracle, noisy), strict=True)
        rows.append(
            {
                "noise_ratio": float(ratio),
                "temperature": best,
                **{name: _mean(errors) for name, errors in columns},
                "gain": _mean(softmax - oracle),
            }
        )
    return rows


def calibration_table(
    *, trials: int = PAPER_TRIALS, seed: int = PAPER_SEED, errors: Sequence[float] = LOG_PRECISION_ERRORS
) -> list[dict]:
    """Mean squared error with precision at noise ratio 8, for each standard deviation of error in the log-precision.

    Each row has `log_precision_error` and `precision`, an entry as in `noise_ratio_table`.

    Raises:
        ValueError: an argument is out of range.
    """
    lab = draw_trials(trials=trials, noise_ratio=STRESS_RATIO, seed=seed)
    return [
        {
            "log_precision_error": float(error),
            "precision": _mean(_precision_errors(lab, error, seed + 300 + index)),
        }
        for index, error in enumerate(errors)
    ]


def signature(noise_rows: Sequence[Mapping], calibration_rows: Sequence[Mapping]) -> dict[str, bool]:
    """What the architecture has to reproduce ("reading the benchmark without flattering the method").

    - `null`: where noise is equal, the gain of the oracle is 0 up to rounding, and noisy precision does harm;
    - `growth`: the share of softmax' error that the oracle takes away grows from ratio to ratio;
    - `grace`: error grows with the error in the log-precision, and stays below softmax' at the same noise ratio.

    Rows must be in ascending order, and hold the ratios 1 and 8.
    """
    by_ratio = {row["noise_ratio"]: row for row in noise_rows}
    null, stress = by_ratio[1.0], by_ratio[STRESS_RATIO]
    shares = [row["gain"]["value"] / row["softmax"]["value"] for row in noise_rows]
    losses = [row["precision"]["value"] for row in calibration_rows]
    return {
        "null": abs(shares[0]) < 1e-9 and null["noisy_precision"]["low"] > null["oracle_precision"]["high"],
        "growth": bool(np.all(np.diff(shares) > 0)),
        "grace": bool(np.all(np.diff(losses) > 0)) and losses[-1] < stress["softmax"]["low"],
    }


def plot_lab(path: str | Path, noise_rows: Sequence[Mapping], calibration_rows: Sequence[Mapping]) -> None:
    """Both tables as a picture, in SVG.

    Raises:
        ValueError: the name does not end in .svg, or nothing can be written there.
        ModuleNotFoundError: matplotlib is not installed.
    """
    import io

    check_plot_name(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "precision-lab", "svg.fonttype": "none"}):  # the same bytes every time
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for name in METHODS:
            _line(left, [row["noise_ratio"] for row in noise_rows], [row[name] for row in noise_rows], name)
        left.set(xlabel="noise ratio", ylabel="mean squared error", yscale="log", title="Noise of the sources")
        left.legend(frameon=False)
        deviations = [row["log_precision_error"] for row in calibration_rows]
        _line(right, deviations, [row["precision"] for row in calibration_rows], "precision, ratio 8")
        stress = next((row for row in noise_rows if row["noise_ratio"] == STRESS_RATIO), None)
        if stress is not None:
            for name, style in (("softmax", "--"), ("best_temperature", ":")):
                right.axhline(stress[name]["value"], color="grey", linestyle=style, label=name.replace("_", " "))
        right.set(xlabel="standard deviation of the error in the log-precision", yscale="log", title="Miscalibration")
        right.legend(frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    write_text(path, text.getvalue())


def check_plot_name(path: str | Path) -> None:
    """Raises ValueError unless the name ends in .svg."""
    if Path(path).suffix.lower() != ".svg":
        raise ValueError(f"the plot {path} is not an SVG file; give a name that ends in .svg.")


def _line(axes, places: list[float], entries: list[Mapping], name: str) -> None:
    values = np.array([entry["value"] for entry in entries])
    reach = np.abs(np.array([[entry["low"] for entry in entries], [entry["high"] for entry in entries]]) - values)
    axes.errorbar(places, values, yerr=reach, marker="o", markersize=3, label=name.replace("_", " "))


def _precision_errors(lab: LabTrials, log_precision_error: float, seed: int) -> np.ndarray:
    """Squared errors `[T]` with the true log-precision plus normal error, new in each trial and source."""
    if not 0 <= log_precision_error < math.inf:
        raise ValueError(f"log_precision_error is {log_precision_error}; give a standard deviation of 0 or more.")
    log_precision = -np.log(lab.variances)
    if log_precision_error:
        drawn = _normal(seed, lab.values.size).reshape(lab.values.shape)
        log_precision = log_precision + log_precision_error * drawn
    return _squared_errors(lab, attention_weights(log_precision))


def _squared_errors(lab: LabTrials, weights: np.ndarray) -> np.ndarray:
    return ((weights * lab.values).sum(axis=-1) - lab.target) ** 2


def _mean(values: np.ndarray) -> dict[str, float]:
    mean = float(values.mean())
    reach = _NORMAL_95 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def _normal(seed: int, count: int) -> np.ndarray:
    """`count` (even) numbers of the stream that successive calls of `random.Random(seed).gauss(0, 1)` would give."""
    words = random.Random(seed).getstate()[1]
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(words[:-1], dtype=np.uint32), "pos": words[-1]},
    }
    angle, radius = np.random.Generator(twister).random(count).reshape(-1, 2).T
    angle, radius = 2 * np.pi * angle, np.sqrt(-2 * np.log(1 - radius))
    return np.stack([np.cos(angle) * radius, np.sin(angle) * radius], axis=1).reshape(-1)


def _check(trials: int, seed: int) -> None:
    if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= _LARGEST_NUMBER:
        raise ValueError(f"trials is {trials!r}; give a whole number from 1 to {_LARGEST_NUMBER}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}; give a whole number of 0 or more.")


__all__ = [
    "METHODS",
    "PAPER_SEED",
    "PAPER_TRIALS",
    "LabTrials",
    "attention_weights",
    "calibration_table",
    "check_plot_name",
    "draw_trials",
    "expected_error",
    "noise_ratio_table",
    "plot_lab",
    "signature",
]
