"""EvidenceWorld: its rows mean what they say, in the shares that were asked for."""

from collections import Counter, defaultdict
from itertools import islice

import pytest

from warrant_hf.data import CandidateDataset, EvidenceWorld, rows_from
from warrant_hf.data.candidates import question_overlap
from warrant_hf.data.world_relations import BY_SUBJECT, RELATIONS


def rows_of(n=600, **settings):
    return list(EvidenceWorld(**{"seed": 1, **settings}).generate(n))


def test_rows_are_indexable_streaming_and_valid():
    world = EvidenceWorld(seed=5)
    rows = list(world.generate(30))
    assert list(islice(world, 30)) == rows == [EvidenceWorld(seed=5).row(i) for i in range(30)]
    assert list(world.generate(5, start=20)) == rows[20:25]
    assert rows_from([row.to_dict() for row in rows]) == rows
    assert len({row.id for row in rows}) == len({row.question for row in rows}) == 30
    assert EvidenceWorld(seed=6).row(0).question != rows[0].question
    assert len(CandidateDataset(rows)[0]["labels"]) == 8


def test_shares():
    rows = rows_of(1500, missing_rate=0.3)
    hops = Counter(row.hops for row in rows)
    assert all(430 < hops[n] < 570 for n in (1, 2, 3))
    assert 0.26 < sum(not row.answerable for row in rows) / 1500 < 0.34
    assert {len(row.candidates) for row in rows} == {8}
    lengths = {
        answerable: Counter(len(r.candidates) for r in rows if r.answerable is answerable) for answerable in (0, 1)
    }
    assert lengths[0].keys() == lengths[1].keys()  # the length does not give missing evidence away
    partly = [row for row in rows if not row.answerable and row.has_evidence]
    assert partly and all(row.hops > 1 for row in partly)
    assert len({c.relation for row in rows for c in row.candidates}) == len(RELATIONS) >= 6


def test_complete_rows_chain_from_question_to_answer():
    for row in rows_of(missing_rate=0):
        golds = [c for c in row.candidates if c.label]
        assert row.answerable and "missing_gold" not in row.model_extra
        assert {c.hop for c in golds} == set(range(row.hops))
        entity = {c.hop: c.subject for c in golds}
        assert entity[0] in row.question
        for hop in range(1, row.hops):
            assert entity[hop] not in row.question  # it has to be found in the evidence before it
            assert any(entity[hop] in c.text for c in golds if c.hop == hop - 1)
        assert any(row.answer in c.text for c in golds if c.hop == row.hops - 1)
        assert row.answer not in row.question
        assert all((c.kind == "gold") == (c.label == 1) for c in row.candidates)


def test_distractors_are_hard_for_a_reason_and_never_evidence():
    sorts = Counter()
    for row in rows_of(missing_rate=0):
        chain = {(c.subject, c.relation) for c in row.candidates if c.label}
        entities, relations = {s for s, _ in chain}, {r for _, r in chain}
        seen = set()
        for c in row.candidates:
            if not c.label:
                assert (c.subject, c.relation) not in chain | seen  # neither a copy nor a contradiction
                seen.add((c.subject, c.relation))
            if c.kind == "hard":
                assert (c.subject in entities) != (c.relation in relations)
                sorts["entity" if c.subject in entities else "relation"] += 1
                sorts["answer"] += row.answer in c.text
            elif c.kind == "random":
                assert c.subject not in entities and c.relation not in relations
                sorts["random"] += 1
    assert min(sorts[sort] for sort in ("entity", "relation", "answer", "random")) > 100


def test_missing_evidence_is_named():
    for row in rows_of(missing_rate=1.0):
        lacking = {item["hop"] for item in row.missing_gold}
        assert lacking and not row.answerable
        assert not any(c.label and c.hop in lacking for c in row.candidates)


def test_repeated_evidence_comes_from_another_source_in_other_words():
    repeats = 0
    for row in rows_of(missing_rate=0, repeat_rate=1.0):
        by_hop = defaultdict(list)
        for c in row.candidates:
            if c.label:
                by_hop[c.hop].append(c)
        for first, second in by_hop.values():
            assert first.source["id"] != second.source["id"] and first.wording != second.wording
            assert first.subject == second.subject and first.relation == second.relation
            repeats += 1
    assert repeats > 600


def test_sources_are_as_reliable_as_they_say():
    reliability = (1.0, 0.75, 0.25)
    false, total = Counter(), Counter()
    for row in rows_of(900, missing_rate=0, reliability=reliability):
        for c in row.candidates:
            total[c.source["reliability"]] += 1
            false[c.source["reliability"]] += c.corrupted
            assert c.text.startswith(f"According to {c.source['id']}, ")
            if "hop" in c.model_extra:
                assert c.label == (not c.corrupted) and c.kind == ("hard" if c.corrupted else "gold")
                if c.corrupted and c.hop == row.hops - 1:
                    assert row.answer not in c.text
        assert row.answerable == ({c.hop for c in row.candidates if c.label} == set(range(row.hops)))
    for value in reliability:
        assert false[value] / total[value] == pytest.approx(1 - value, abs=0.03)
    assert not any(c.text.startswith("According") for row in rows_of(20) for c in row.candidates)


def test_words_alone_do_not_solve_it_but_help():
    """Overlap of words finds some evidence (it is learnable from) and stays far from all of it (it has to be read)."""
    found, golds = 0, 0
    for row in rows_of(missing_rate=0):
        scores = [question_overlap(row.question, f"{c.title} {c.text}") for c in row.candidates]
        count = sum(row.labels)
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[:count]
        found, golds = found + sum(row.labels[i] for i in best), golds + count
    assert 0.35 < found / golds < 0.75  # chance: about 0.28


def test_any_size():
    row = EvidenceWorld(candidates=1500, hard=700, missing_rate=0).row(0)
    assert len(row.candidates) == 1500 and 690 < row.kinds.count("hard") <= 700
    tiny = rows_of(50, candidates=1, missing_rate=0)
    assert all(row.kinds == ["gold"] * len(row.kinds) and len(row.kinds) >= row.hops for row in tiny)
    assert all(row.hops == 3 for row in rows_of(20, hops=(3,)))


def test_relations_can_be_chained_and_stated():
    for relation in RELATIONS:
        assert len(relation.statements) >= 2 and len(set(relation.phrases)) == len(relation.phrases) >= 2
        assert all("{s}" in s and "{o}" in s for s in relation.statements)
        assert all(phrase.count("{}") == 1 for phrase in relation.phrases)
    assert all(len(options) >= 2 for options in BY_SUBJECT.values())


@pytest.mark.parametrize(
    "wrong", [{"hops": (0,)}, {"hops": ()}, {"candidates": 0}, {"missing_rate": 1.5}, {"reliability": (2.0,)}]
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EvidenceWorld(**wrong)
