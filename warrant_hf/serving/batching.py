"""Requests that arrive together are read together: one thread owns the model and takes them in the order they came."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .limits import ServingLimits

logger = logging.getLogger(__name__)
_ROWS_AT_ONCE = 16  # questions that are padded to one another; those of a batch are put in order of length first


class QueueFull(Exception):
    """No room for another request; `seconds` is when there should be some."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full for about {seconds} s")
        self.seconds = seconds


class Closed(Exception):
    """The batcher takes no more requests."""


class _Abandoned(Exception):
    """Nobody waits for what is being read."""


@dataclass(eq=False)
class Job:
    """A question with its passages, and where the result of `rank` goes; the settings are those of `rank`."""

    question: str
    passages: list
    revoke: list[int] = field(default_factory=list)
    revoke_by: str = "gate"
    return_tokens: bool = False
    arrived: float = field(default_factory=time.monotonic)
    answer: Future = field(default_factory=Future)
    abandoned: bool = False

    @property
    def candidates(self) -> int:
        return len(self.passages)

    @property
    def characters(self) -> int:
        return len(self.question) + sum(
            len(passage) if isinstance(passage, str) else len(passage["text"]) + len(passage.get("title") or "")
            for passage in self.passages
        )


class Batcher:
    """Gathers jobs and has them ranked in one thread.

    A job gets what it would get alone, up to rounding: candidates of different questions do not see each other. If a
    batch fails, its jobs are run one by one, so that only the one to blame fails.

    Args:
        ranker: has `rank_batch(questions, passages, *, batch_size, revoke, revoke_by, return_tokens, progress)`, as
            the selectors do.
        limits ([`ServingLimits`]).
        observe (callable, *optional*): hears `(jobs, candidates, seconds)` of each batch, in the worker's thread.
    """

    def __init__(self, ranker: Any, limits: ServingLimits, observe: Callable[[int, int, float], None] | None = None):
        self._ranker, self._limits, self._observe = ranker, limits, observe
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._in_company = True  # whether the last batch had several jobs; the first one may
        self._seconds_each = 0.0  # of a candidate, lately
        self._thread = threading.Thread(target=self._work, name="warrant-batcher", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Puts a job in line; `job.answer` will hold the result, or the exception of the model.

        Raises:
            QueueFull: as many requests wait as may wait.
            Closed: after `close`.
        """
        with self._changed:
            if self._closing:
                raise Closed
            if len(self._waiting) >= self._limits.max_waiting:
                raise QueueFull(self._seconds_to_wait())
            self._waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> None:
        """Nobody waits for this job any more: it leaves the line, or is given up while it is read."""
        job.abandoned = True
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self) -> None:
        """Takes no more jobs, and comes back when all that were taken are answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def _seconds_to_wait(self) -> int:
        seconds = self._seconds_each * sum(job.candidates for job in self._waiting)
        return max(1, min(math.ceil(seconds), math.ceil(self._limits.request_seconds)))

    def _work(self) -> None:
        while (batch := self._gather()) is not None:
            self._in_company = len(batch) > 1
            began, candidates = time.monotonic(), sum(job.candidates for job in batch)
            kinds: dict[tuple, list[Job]] = {}
            for job in batch:
                kinds.setdefault((job.revoke_by, job.return_tokens), []).append(job)
            for jobs in kinds.values():
                self._answer(jobs)
            seconds = time.monotonic() - began
            each = seconds / max(candidates, 1)
            self._seconds_each = each if not self._seconds_each else 0.8 * self._seconds_each + 0.2 * each
            if self._observe is not None:
                self._observe(len(batch), candidates, seconds)

    def _gather(self) -> list[Job] | None:
        """The next batch; `None` when the batcher is closed and nobody waits."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            batch = [self._waiting.popleft()]
            candidates, characters = batch[0].candidates, batch[0].characters
            # Somebody who asks alone, one question after the other, would wait each time for nobody.
            until = batch[0].arrived + (self._limits.batch_wait_ms / 1000 if self._in_company else 0)
            while True:
                while self._waiting:
                    candidates += self._waiting[0].candidates
                    characters += self._waiting[0].characters
                    if candidates > self._limits.batch_candidates or characters > self._limits.batch_characters:
                        return batch
                    batch.append(self._waiting.popleft())
                left = until - time.monotonic()
                if left <= 0 or self._closing:
                    return batch
                self._changed.wait(left)

    def _answer(self, jobs: list[Job]) -> None:
        """Ranks jobs of one kind."""
        jobs = [job for job in jobs if not job.abandoned]
        if not jobs:
            return

        def progress(done: int, total: int) -> None:
            if all(job.abandoned for job in jobs):
                raise _Abandoned

        try:
            results = self._ranker.rank_batch(
                [job.question for job in jobs],
                [job.passages for job in jobs],
                batch_size=_ROWS_AT_ONCE,
                revoke=[job.revoke for job in jobs],
                revoke_by=jobs[0].revoke_by,
                return_tokens=jobs[0].return_tokens,
                progress=progress,
            )
        except _Abandoned:
            return
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            if not isinstance(error, ValueError):  # a ValueError is about the input, and its sender is told
                logger.exception("The model failed.")
            jobs[0].answer.set_exception(error)
        else:
            for job, result in zip(jobs, results, strict=True):
                job.answer.set_result(result)
