"""Trains one contestant's readout on cached states, and what it predicts."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from warrant_hf.data.schema import EvidenceRow
from warrant_hf.evaluation.predictions import Prediction

#: What all contestants of a grid share; see `Budget` in grid.py.
WARM_UP = 0.1
WEIGHT_DECAY = 0.01


def fresh_selector(base, changes: dict, seed: int):
    """A selector of `base`'s kind with fresh weights: the same seed gives the same ones, whatever the variant."""
    fields = {name: copy.deepcopy(getattr(base.config, name)) for name in base.config.own_fields()}
    torch.manual_seed(seed)
    return type(base)(type(base.config)(**fields | changes))


def train_readout(
    readout, cached, items: Sequence[dict], *, rate: float, batch_size: int, seed: int, trains: str = ""
):
    """One pass over `items` in an order drawn from `seed`: AdamW, linear warm-up over a tenth of it, linear decay."""
    for name, parameter in readout.named_parameters():
        if not name.startswith(trains):
            parameter.requires_grad_(False)
    moving = [parameter for parameter in readout.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in moving if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in moving if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)
    steps = math.ceil(len(items) / batch_size)
    warm = max(1, round(WARM_UP * steps))

    def factor(step):
        return min((step + 1) / warm, (steps - step) / max(1, steps - warm))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(items), generator=generator).tolist()
    torch.manual_seed(seed)  # dropout
    readout.train()
    for start in range(0, len(order), batch_size):
        batch = cached.collate([items[at] for at in order[start : start + batch_size]])
        loss = readout(**batch).loss
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()} at step {start // batch_size} with rate {rate:g}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(moving, 1.0)
        optimizer.step()
        scheduler.step()
    return readout.eval()


@torch.inference_mode()
def predict_cached(readout, cached, rows: Sequence[EvidenceRow], batch_size: int = 32) -> list[Prediction]:
    """As `warrant_hf.evaluation.predict`, from cached states."""
    found = []
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        items = [
            {"id": row.id, "passages": [c.to_passage() for c in row.candidates], "labels": row.labels} for row in chunk
        ]
        batch = cached.collate(items)
        del batch["labels"]
        output = readout(**batch)
        for at, row in enumerate(chunk):
            size = len(row.candidates)

            def numbers(values, at=at, size=size):
                return None if values is None else values[at, :size].double().tolist()

            has_path = output.mass is not None
            found.append(
                Prediction(
                    id=row.id,
                    scores=numbers(output.logits),
                    labels=row.labels,
                    kinds=row.kinds,
                    probabilities=numbers(output.logits.sigmoid()),
                    permission=numbers(output.permission) if has_path else None,
                    attention=numbers(output.attention) if has_path else None,
                    effective=numbers(output.effective) if has_path else None,
                    mass=float(output.mass[at]) if has_path else None,
                    answerability=float(output.answerability_logits[at].sigmoid()),
                )
            )
    return found
