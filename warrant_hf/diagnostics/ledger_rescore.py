"""Scoring the decisions of a ledger again, from their texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .ledger import describe_model, ledger_records
from .ledger_replay import Difference
from .ledger_schema import LedgerRecord, text_digest

#: What is compared; the last two once a decision.
RESCORED_FIELDS = ("attention", "permission", "effective", "score", "probability", "mass", "answerability")
RESCORE_TOLERANCE = 1e-3


@dataclass
class Rescore:
    """What a model gave for the decisions whose texts are at hand.

    Args:
        decisions (`int`): how many were scored again.
        without_texts (`int`): how many were not: their texts were not given, or the ledger lacks records of them.
        other_weights (`int`): how many were recorded with other weights than the model has now.
        differences (`list[Difference]`).
    """

    decisions: int = 0
    without_texts: int = 0
    other_weights: int = 0
    differences: list[Difference] = field(default_factory=list)


def rescore(
    records: Iterable[LedgerRecord],
    model,
    texts: Iterable[tuple[str, Sequence]],
    *,
    tolerance: float = RESCORE_TOLERANCE,
    batch_size: int = 8,
) -> Rescore:
    """Scores decisions again from their texts, which are found by their digests.

    Args:
        records: as `read_ledger` gives them; all of them are kept.
        model: an evidence selector.
        texts: `(question, passages)` pairs; those that no decision knows are passed over.
        tolerance (`float`): of `attention`, `permission`, `effective`, `probability`, `mass` and `answerability`, and
            times 1 + |score| of `score`. What float32 rounds differently between batches and processors is less; a
            model in bfloat16 needs a hundred times as much.
        batch_size (`int`): questions encoded at a time.
    """
    decisions = defaultdict(dict)
    for record in records:
        decisions[record.decision_id][record.index] = record
    wanted, result = defaultdict(list), Rescore(without_texts=len(decisions))
    for held in decisions.values():
        if sorted(held) == list(range(held[min(held)].record_count)):
            wanted[_key(held)].append([held[at] for at in sorted(held)])
    facts, batch = describe_model(model), []

    def flush():
        for held, again in zip((held for held, *_ in batch), _scored(model, facts, batch, batch_size), strict=True):
            result.other_weights += held[0].weights_sha256 != facts["weights_sha256"]
            result.differences += _compared(held, again, tolerance)
        result.decisions += len(batch)
        batch.clear()

    for question, passages in texts:
        passages = [{"text": passage} if isinstance(passage, str) else dict(passage) for passage in passages]
        digests = tuple(
            (text_digest(p["text"]), text_digest(p["title"]) if p.get("title") else None) for p in passages
        )
        for held in wanted.pop((text_digest(question), digests), ()):
            batch.append((held, question, passages))
            if len(batch) == 8 * batch_size:
                flush()
    flush()
    result.without_texts -= result.decisions
    return result


def _key(held: dict[int, LedgerRecord]) -> tuple:
    ordered = [held[at] for at in sorted(held)]
    return ordered[0].question_sha256, tuple((record.text_sha256, record.title_sha256) for record in ordered)


def _scored(model, facts, batch, batch_size):
    """The records that the model gives now, in the order of the batch."""
    again = [None] * len(batch)
    for way in ("gate", "mask"):
        places = [at for at, (held, *_) in enumerate(batch) if (_revoke_by(held) or "gate") == way]
        results = model.rank_batch(
            [batch[at][1] for at in places],
            [batch[at][2] for at in places],
            revoke=[[record.index for record in batch[at][0] if record.revoked] for at in places],
            revoke_by=way,
            batch_size=batch_size,
        )
        records = iter(ledger_records(results, [batch[at][2] for at in places], facts, revoke_by=way))
        for at in places:
            again[at] = [next(records) for _ in batch[at][0]]
    return again


def _revoke_by(held: list[LedgerRecord]) -> str | None:
    return next((record.revoke_by for record in held if record.revoke_by), None)


def _compared(held, again, tolerance) -> list[Difference]:
    found = []
    for old, new in zip(held, again, strict=True):
        for name in RESCORED_FIELDS:
            if name in ("mass", "answerability") and old.index:
                continue  # once a decision
            recorded, recomputed = getattr(old, name), getattr(new, name)
            slack = tolerance * (1 + abs(old.score)) if name == "score" else tolerance
            if (recorded is None) != (recomputed is None) or (
                recorded is not None and abs(recorded - recomputed) > slack
            ):
                found.append(Difference(old.record_id, name, recorded, recomputed, slack))
    return found


__all__ = ["RESCORED_FIELDS", "RESCORE_TOLERANCE", "Rescore", "rescore"]
