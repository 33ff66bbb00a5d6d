import threading
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from tests.serving.running import Gated  # noqa: E402
from warrant_hf.serving import Batcher, Job, ServingLimits  # noqa: E402
from warrant_hf.serving.batching import Closed  # noqa: E402

QUESTION = "where was ada born?"


def batcher(ranker, **bounds):
    """A batcher, and the sizes of the batches that it reads."""
    sizes = []
    return Batcher(
        ranker, ServingLimits(**bounds), lambda jobs, candidates, seconds: sizes.append((jobs, candidates))
    ), sizes


def submit(batcher, *counts, text="ada was born in york."):
    jobs = [Job(QUESTION, [f"{text} {at}" for at in range(count)]) for count in counts]
    for job in jobs:
        batcher.submit(job)
    return jobs


@pytest.mark.parametrize(
    "bounds, sizes",
    [
        ({}, [(1, 1), (5, 26)]),
        ({"batch_candidates": 6}, [(1, 1), (2, 6), (1, 6), (1, 12), (1, 2)]),
        ({"batch_characters": 60}, [(1, 1), (1, 2), (1, 4), (1, 6), (1, 12), (1, 2)]),
    ],
)
def test_batches_keep_the_order_and_the_budget(tiny_model, bounds, sizes):
    ranker = Gated(tiny_model)
    line, seen = batcher(ranker, batch_wait_ms=0.01, **bounds)
    first = submit(line, 1)
    assert ranker.begun.acquire(timeout=10)
    jobs = first + submit(line, 2, 4, 6, 12, 2)
    ranker.open.set()
    line.close()
    assert seen == sizes
    for job in jobs:
        alone = tiny_model.rank(QUESTION, job.passages)
        assert [item["score"] for item in job.answer.result(0)["evidence"]] == pytest.approx(
            [item["score"] for item in alone["evidence"]], abs=1e-5
        )


def test_the_first_one_waits_for_company(tiny_model):
    line, seen = batcher(tiny_model, batch_wait_ms=300)
    submit(line, 1, 1, 1)
    line.close()
    assert seen == [(3, 3)]


def test_who_asks_alone_does_not_wait(tiny_model):
    line, seen = batcher(tiny_model, batch_wait_ms=2_000)
    submit(line, 1)[0].answer.result(10)
    began = time.monotonic()
    for _ in range(3):
        submit(line, 1)[0].answer.result(10)
    assert time.monotonic() - began < 2
    line.close()
    assert seen == [(1, 1)] * 4


def test_only_the_one_to_blame_fails(tiny_model):
    ranker = Gated(tiny_model)
    line, _ = batcher(ranker, batch_wait_ms=0.01)
    submit(line, 1)
    assert ranker.begun.acquire(timeout=10)
    (good,), bad, (other,) = submit(line, 2), Job(QUESTION, ["york."], revoke=[5]), submit(line, 3)
    line.submit(bad)
    ranker.open.set()
    line.close()
    assert len(good.answer.result(0)["evidence"]) == 2 and len(other.answer.result(0)["evidence"]) == 3
    with pytest.raises(ValueError, match="5 is not a passage"):
        bad.answer.result(0)


def test_kinds_are_not_mixed(tiny_model):
    line, _ = batcher(tiny_model, batch_wait_ms=300)
    passages = ["ada was born in york.", "york is a city."]
    jobs = [
        Job(QUESTION, passages, revoke=[0], revoke_by=by, return_tokens=tokens)
        for by in ("gate", "mask")
        for tokens in (False, True)
    ]
    for job in jobs:
        line.submit(job)
    line.close()
    for job in jobs:
        result = job.answer.result(0)
        alone = tiny_model.rank(QUESTION, passages, revoke=[0], revoke_by=job.revoke_by)
        assert result["mass"] == pytest.approx(alone["mass"], abs=1e-6)
        assert ("tokens" in result["evidence"][0]) == job.return_tokens


def test_a_failing_model_does_not_end_the_thread(tiny_model, caplog):
    class Failing:
        broken = True

        def rank_batch(self, *given, **settings):
            if self.broken:
                raise RuntimeError("out of memory")
            return tiny_model.rank_batch(*given, **settings)

    ranker = Failing()
    line, _ = batcher(ranker)
    (job,) = submit(line, 1)
    with pytest.raises(RuntimeError):
        job.answer.result(10)
    ranker.broken = False
    (job,) = submit(line, 1)
    assert job.answer.result(10)["evidence"]
    line.close()
    assert "The model failed." in caplog.text


def test_who_withdraws_leaves_the_line(tiny_model):
    ranker = Gated(tiny_model)
    line, seen = batcher(ranker, batch_wait_ms=0.01)
    first = submit(line, 1)[0]
    assert ranker.begun.acquire(timeout=10)
    jobs = submit(line, 2, 3)
    line.withdraw(jobs[0])
    line.withdraw(first)  # while it is read
    ranker.open.set()
    line.close()
    assert jobs[1].answer.done() and not jobs[0].answer.done()
    assert (1, 3) in seen and (1, 2) not in seen


def test_close_answers_who_waits_and_takes_no_more(tiny_model):
    ranker = Gated(tiny_model)
    line, _ = batcher(ranker)
    jobs = submit(line, 1, 2, 3)
    threading.Timer(0.1, ranker.open.set).start()
    line.close()
    assert all(job.answer.done() for job in jobs)
    with pytest.raises(Closed):
        submit(line, 1)


def test_limits_are_checked():
    with pytest.raises(ValueError, match="max_waiting is 0; give a number above 0"):
        ServingLimits(max_waiting=0)
