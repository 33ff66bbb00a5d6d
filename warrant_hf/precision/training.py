"""Training of the two paths: the task teaches relevance, residuals teach precision, and neither touches the other."""

from __future__ import annotations

import math

import torch

from .information_boundary import check_information_boundary
from .losses import PRECISION_LOSSES
from .model import PrecisionModel
from .sensor_world import SensorBatch

LOSSES = (*PRECISION_LOSSES, "task")


def fit_precision_model(
    model: PrecisionModel,
    train: SensorBatch,
    held_out: SensorBatch,
    *,
    loss: str = "gaussian",
    steps: int = 600,
    batch_size: int = 256,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> PrecisionModel:
    """Trains in place with Adam, its rate falling linearly to 0, and gives the model back in eval mode.

    The relevance path gets the squared error of the prediction. With a loss of `PRECISION_LOSSES` the head gets that
    loss of its log-precision, unbounded, on the residuals of repeated readings, and no gradient of the task; then one
    number is added to all log-precisions, so that on `held_out` the mean of exp(l) r^2 is 1. With `loss="task"` the
    head is a source-specific bias: it gets the task's gradient, no variance target and no such number.

    Raises:
        LeakError: evidence determines the target or an error.
        ValueError: an unknown loss, a number out of range.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; choose one of {', '.join(LOSSES)}.")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more.")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate is {learning_rate}; give a number above 0, such as 0.01.")
    error = train.reading - train.truth
    labels = {"the target": train.target, "what a sensor reports on": train.truth, "the error of a reading": error}
    labels |= {"the size of an error": error.abs(), "the size of a residual": train.residual().abs()}
    check_information_boundary(train.evidence.numpy(), {name: label.numpy() for name, label in labels.items()})

    model.head.standardise(train.evidence)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    model.train()
    for _ in range(steps):
        batch = train.rows(torch.randint(len(train), (batch_size,), generator=generator))
        if loss == "task":
            total = (model.predict(batch) - batch.target).square().mean()
        else:
            raw = model.head(batch.evidence)
            prediction = model.predict(batch, log_precision=raw.detach())
            total = (prediction - batch.target).square().mean() + PRECISION_LOSSES[loss](raw, batch.residual())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    if loss != "task":
        with torch.no_grad():
            surprise = (model.head(held_out.evidence).exp() * held_out.residual().square()).mean()
            model.head.score.bias -= surprise.log()
    return model


__all__ = ["LOSSES", "fit_precision_model"]
