"""Six tests before a score may be called a precision (PFA, "six tests before the label is earned").

They are redundant on purpose: a head can be calibrated and ignored, swap well and be miscalibrated, or win by a leak.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..evaluation.bootstrap import interval, resample_counts
from .contract_report import ContractReport, ContractTest
from .model import FactorisedModel
from .sensor_world import PrecisionPairs, SensorBatch, with_swapped_evidence

#: What a test demands of its statistic; the whole interval must lie on the right side.
LEAST_IMPROVEMENT = 0.05  # of the squared error, beside the same model with equal precisions
LARGEST_VARIANCE_FACTOR = 1.25  # between predicted and found variance, in the worst of the bins
LARGEST_RELEVANCE_SHIFT = 0.01  # in standard deviations of the relevance logits
LEAST_MONOTONE_SHARE = 0.95
LEAST_SWAP_SHARE = 0.95
LARGEST_NULL_CHANGE = 0.05  # of the squared error, in either direction, where noise is equal

BINS = 5
_SMALLEST_FALL = 1e-4  # of a log-precision; below it is rounding
_SMALLEST_MOVE = 0.01  # of the distance between the two readings
_FEWEST_LISTS = 100


def check_precision_contract(
    model: FactorisedModel, pairs: PrecisionPairs, *, resamples: int = 1000, seed: int = 0
) -> ContractReport:
    """Puts a model to the six tests, each with a 95 % bootstrap interval over lists.

    1. *Task error*: the squared error falls by 5 % or more against the same model with equal precisions.
    2. *Calibration*: in five bins of equal size by predicted variance, predicted and found variance differ by a
       factor of at most 1.25.
    3. *Relevance invariance*: more corruption of a sensor leaves every relevance logit where it was.
    4. *Monotonicity*: more corruption of a sensor lowers its log-precision, in 95 % of the pairs or more.
    5. *Swap*: when a precise and an imprecise sensor, tied in relevance, exchange their evidence, and relevance and
       readings are held fixed, the output moves towards the reading of the one that now looks precise, by 1 % of the
       distance between the two or more, in 95 % of the pairs or more.
    6. *Homoscedastic null*: where noise is equal, the squared error with the model's log-precisions and with equal
       ones differ by at most 5 %, in either direction.

    Args:
        model: anything with `relevance`, `log_precision` and `predict`; an `nn.Module` in eval mode.
        pairs: from data on which nothing was trained or chosen, such as `SensorWorld.pairs`.
        resamples: of the bootstrap.

    Raises:
        ValueError: fewer than 100 lists, or the model gives numbers that are not finite or shapes that do not fit.
    """
    if len(pairs.base) < _FEWEST_LISTS:
        raise ValueError(f"pairs holds {len(pairs.base)} lists; give {_FEWEST_LISTS} or more.")
    counts = resample_counts(len(pairs.base), resamples, seed)
    with torch.no_grad():
        base = _Seen(model, pairs.base)
        clipped = getattr(model, "clipped_share", None)
        corrupted, equal = _Seen(model, pairs.corrupted), _Seen(model, pairs.homoscedastic)
        tests = (
            _task_error(base, counts),
            _calibration(base, counts),
            _relevance_invariance(base, corrupted, counts),
            _monotonicity(base, corrupted, pairs.changed, counts),
            _swap(model, pairs, counts),
            _homoscedastic_null(equal, counts),
        )
    return ContractReport(
        tests=tests, lists=len(pairs.base), clipped_share=None if clipped is None else float(clipped)
    )


class _Seen:
    """What the model makes of a batch, checked."""

    def __init__(self, model: FactorisedModel, batch: SensorBatch):
        lists, sensors = batch.reading.shape
        self.batch = batch
        self.relevance = _checked("relevance", model.relevance(batch), (lists, sensors))
        self.log_precision = _checked("log_precision", model.log_precision(batch), (lists, sensors))
        self.prediction = _checked("predict", model.predict(batch), (lists,))
        flat = model.predict(batch, log_precision=torch.zeros_like(self.log_precision))
        self.squared_error = self._squared_error(self.prediction)
        self.flat_squared_error = self._squared_error(_checked("predict", flat, (lists,)))

    def _squared_error(self, prediction: Tensor) -> np.ndarray:
        return _numpy((prediction - self.batch.target).square())


def _task_error(base: _Seen, counts: np.ndarray) -> ContractTest:
    change = _relative_change(base, counts)
    return ContractTest(
        name="task_error",
        asks="relative change of the squared error against equal precisions",
        demands=f"at most -{LEAST_IMPROVEMENT:g}",
        passed=change["high"] <= -LEAST_IMPROVEMENT,
        **change,
    )


def _calibration(base: _Seen, counts: np.ndarray) -> ContractTest:
    predicted = _numpy((-base.log_precision).exp())
    found = _numpy((base.batch.reading - base.batch.truth).square())
    ranks = np.argsort(np.argsort(predicted, axis=None, kind="stable")).reshape(predicted.shape)
    bins = ranks * BINS // predicted.size

    def per_list(values: np.ndarray) -> np.ndarray:
        return np.stack([(values * (bins == number)).sum(1) for number in range(BINS)], 1)

    sums_predicted, sums_found = per_list(predicted), per_list(found)

    def worst(weights: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(np.abs(np.log(weights @ sums_found) - np.log(weights @ sums_predicted)).max(-1))

    factor = interval(float(worst(np.ones(len(bins)))), worst(counts))
    return ContractTest(
        name="calibration",
        asks="factor between predicted and found variance, worst bin",
        demands=f"at most {LARGEST_VARIANCE_FACTOR:g}",
        passed=factor["high"] <= LARGEST_VARIANCE_FACTOR,
        **factor,
    )


def _relevance_invariance(base: _Seen, corrupted: _Seen, counts: np.ndarray) -> ContractTest:
    scale = float(base.relevance.std().clamp(min=1e-12))
    shift = _share(_numpy((corrupted.relevance - base.relevance).abs().amax(1)) / scale, counts)
    return ContractTest(
        name="relevance_invariance",
        asks="largest shift of a list's relevance under corruption, in standard deviations",
        demands=f"at most {LARGEST_RELEVANCE_SHIFT:g}",
        passed=shift["high"] <= LARGEST_RELEVANCE_SHIFT,
        **shift,
    )


def _monotonicity(base: _Seen, corrupted: _Seen, changed: Tensor, counts: np.ndarray) -> ContractTest:
    fall = (base.log_precision - corrupted.log_precision).gather(1, changed[:, None])[:, 0]
    share = _share(_numpy(fall > _SMALLEST_FALL), counts)
    return ContractTest(
        name="monotonicity",
        asks="share of pairs in which corruption lowers the log-precision",
        demands=f"at least {LEAST_MONOTONE_SHARE:g}",
        passed=share["low"] >= LEAST_MONOTONE_SHARE,
        **share,
    )


def _swap(model: FactorisedModel, pairs: PrecisionPairs, counts: np.ndarray) -> ContractTest:
    tied, lists = pairs.tied, (len(pairs.tied),)
    before = _checked("predict", model.predict(tied), lists)
    # The evidence of the tied lists, the log-precisions of the swapped ones: relevance cannot move the output.
    log_precision = model.log_precision(with_swapped_evidence(tied, pairs.swap))
    after = _checked("predict", model.predict(tied, log_precision=log_precision), lists)
    now_imprecise, now_precise = tied.reading.gather(1, pairs.swap).unbind(1)
    distance = now_precise - now_imprecise
    step = (after - before) * distance.sign()
    share = _share(_numpy(step >= _SMALLEST_MOVE * distance.abs()), counts)
    return ContractTest(
        name="swap",
        asks="share of pairs whose output follows a swap of evidence",
        demands=f"at least {LEAST_SWAP_SHARE:g}",
        passed=share["low"] >= LEAST_SWAP_SHARE,
        **share,
    )


def _homoscedastic_null(equal: _Seen, counts: np.ndarray) -> ContractTest:
    change = _relative_change(equal, counts)
    return ContractTest(
        name="homoscedastic_null",
        asks="relative change of the squared error against equal precisions, under equal noise",
        demands=f"within ±{LARGEST_NULL_CHANGE:g}",
        passed=-LARGEST_NULL_CHANGE <= change["low"] and change["high"] <= LARGEST_NULL_CHANGE,
        **change,
    )


def _relative_change(seen: _Seen, counts: np.ndarray) -> dict[str, float]:
    mine, flat = seen.squared_error, seen.flat_squared_error
    return interval(mine.sum() / flat.sum() - 1, (counts @ mine) / (counts @ flat) - 1)


def _share(values: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    return interval(values.mean(), counts @ values / len(values))


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().double().numpy()


def _checked(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(values.shape) != tuple(shape):
        raise ValueError(f"{name} gives shape {list(values.shape)}; the contract needs {list(shape)}.")
    if not values.isfinite().all():
        raise ValueError(
            f"{name} gives numbers that are not finite; train the model again or bound its log-precision."
        )
    return values


__all__ = ["check_precision_contract"]
