"""One definition of attention dropout for the backends that have it."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows of one head that draw from one random state; blocks of a backend are multiples of it.
TILE_ROWS = 128


def dropout_rows(
    shape: tuple[int, int, int, int], rate: float, seed: int, rows: slice, heads: slice, batch: slice, like: Tensor
) -> Tensor:
    """The part of the mask `[B, H, Q, K]` that lies in the given slices: 0 with probability `rate`, else 1/(1 - rate).

    An entry depends on the seed and its place only, not on the block that asks for it.

    Args:
        shape: B, H, Q, K.
        rows: starts at a multiple of `TILE_ROWS`.
        like: gives dtype and device.
    """
    _, head_count, query_count, keys = shape
    tiles_per_head = -(-query_count // TILE_ROWS)
    generator = torch.Generator(device=like.device)
    out = like.new_empty(batch.stop - batch.start, heads.stop - heads.start, rows.stop - rows.start, keys)
    for b, of_row in zip(range(batch.start, batch.stop), out):
        for h, of_head in zip(range(heads.start, heads.stop), of_row):
            for start in range(rows.start, rows.stop, TILE_ROWS):
                tile = (b * head_count + h) * tiles_per_head + start // TILE_ROWS
                # A whole tile is drawn even where fewer rows are wanted, so that the cut does not matter.
                count = min(TILE_ROWS, query_count - start)
                generator.manual_seed((seed + tile) % 2**63)
                drawn = torch.rand(count, keys, generator=generator, device=like.device)
                kept = (drawn >= rate)[: rows.stop - start]
                of_head[start - rows.start : start - rows.start + TILE_ROWS] = kept / (1.0 - rate)
    return out


__all__ = ["TILE_ROWS", "dropout_rows"]
