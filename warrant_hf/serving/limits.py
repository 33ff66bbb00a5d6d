"""What a server takes on: the bounds of one request, of the queue, and of one batch."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ServingLimits:
    """Bounds of a server; all above 0.

    Args:
        max_body_bytes (`int`): bytes of a request's body.
        max_candidates (`int`): texts, documents or passages of a request.
        max_characters (`int`): characters of a request's question and candidates, titles included.
        max_waiting (`int`): requests that wait for the model; the next one is turned away with status 429.
        request_seconds (`float`): how long a body may take to arrive, and how long its answer may take after that.
        batch_candidates (`int`), batch_characters (`int`): what is read at one time. A request that is larger than
            either is read alone.
        batch_wait_ms (`float`): milliseconds that the first request of a batch waits for company, unless the batch
            before it was one request.

    Raises:
        ValueError: a bound that is not above 0.
    """

    max_body_bytes: int = 2 * 1024 * 1024
    max_candidates: int = 1_000
    max_characters: int = 400_000
    max_waiting: int = 64
    request_seconds: float = 60.0
    batch_candidates: int = 128
    batch_characters: int = 65_536
    batch_wait_ms: float = 2.0

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{field.name} is {value!r}; give a number above 0.")
