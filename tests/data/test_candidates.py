"""Candidate lists: what is kept, what counts as hard, and that only (seed, row) decide."""

import os
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from warrant_hf.data import (
    CandidateDataset,
    DataError,
    EvidenceRow,
    EvidenceWorld,
    build_candidates,
    missing_gold,
    random_sublist,
    without_evidence,
)


def make_row(golds=2, distractors=12, id="row"):
    candidates = [{"text": f"gold {i}", "title": "T", "label": 1} for i in range(golds)]
    # Distractor i shares i words with the question, so the last ones are the hardest.
    words = "who wrote the long book about seven red ships in port".split()
    candidates += [{"text": " ".join(["x", *words[:i]]), "label": 0, "n": i} for i in range(distractors)]
    return EvidenceRow(id=id, question="Who wrote the long book about seven red ships in port?", candidates=candidates)


def test_all_golds_the_hardest_and_random_ones():
    built = build_candidates(make_row(), size=8, hard=4)
    assert Counter(built.kinds) == {"gold": 2, "hard": 4, "random": 2}
    assert {c.n for c in built.candidates if c.kind == "hard"} == {11, 10, 9, 8}
    assert all((c.kind == "gold") == (c.label == 1) for c in built.candidates)
    assert all(c.title == "T" for c in built.candidates if c.label)
    assert make_row().kinds == [None] * 14  # the input row is untouched


def test_more_golds_than_room_grows_the_list_and_few_distractors_shorten_it():
    assert build_candidates(make_row(golds=10), size=8).kinds == ["gold"] * 10
    assert Counter(build_candidates(make_row(golds=7), size=8, hard=4).kinds) == {"gold": 7, "hard": 1}
    assert len(build_candidates(make_row(distractors=1), size=8).candidates) == 3
    assert Counter(build_candidates(make_row(golds=0), size=8).kinds) == {"hard": 4, "random": 4}
    assert len(build_candidates(make_row(), size=None).candidates) == 14


def test_equal_overlaps_count_in_input_order():
    row = EvidenceRow(
        id="t",
        question="alpha beta",
        candidates=[{"text": t, "label": 0, "n": n} for n, t in enumerate(["beta", "x", "alpha", "Alpha!", "y"])],
    )
    built = build_candidates(row, size=3, hard=2)
    assert sorted(c.n for c in built.candidates if c.kind == "hard") == [0, 2]


def test_given_kinds_are_respected():
    row = make_row()
    marked = row.with_candidates([c.model_copy(update={"kind": "hard"} if c.label == 0 and c.n < 2 else {})
                                  for c in row.candidates])  # fmt: skip
    built = build_candidates(marked, size=8, hard=4)
    assert {c.n for c in built.candidates if c.kind == "hard"} == {0, 1}
    assert Counter(built.kinds) == {"gold": 2, "hard": 2, "random": 4}


def test_order_and_choice_depend_on_seed_and_id_only():
    def drawn(seed, id="row"):
        return [c.text for c in build_candidates(make_row(id=id), seed=seed).candidates]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(20)}) == 20
    assert drawn(1) != drawn(1, id="other")
    first = [drawn(seed).index("gold 0") for seed in range(800)]
    assert all(70 <= first.count(position) <= 130 for position in range(8))  # 100 expected in each place


def test_hard_pool_varies_the_hard_ones():
    seen = set()
    for seed in range(40):
        built = build_candidates(make_row(), size=8, hard=2, hard_pool=5, seed=seed)
        hard = {c.n for c in built.candidates if c.kind == "hard"}
        assert len(hard) == 2 and hard <= {11, 10, 9, 8, 7}
        seen |= hard
    assert seen == {11, 10, 9, 8, 7}


def test_missing_gold_rates():
    rows = [make_row(golds=3, id=str(n)) for n in range(2000)]
    left = Counter(sum(missing_gold(row, seed=5).labels) for row in rows)
    assert set(left) == {0, 2, 3} and 430 < left[0] < 570 and 430 < left[2] < 570
    assert not missing_gold(rows[0], none_rate=1, one_rate=0).has_evidence
    assert len(missing_gold(rows[0], none_rate=1, one_rate=0).candidates) == 12
    only_gold = make_row(golds=2, distractors=0)
    assert missing_gold(only_gold, none_rate=1, one_rate=0) == only_gold
    with pytest.raises(ValueError, match="none_rate=0.8, one_rate=0.5"):
        missing_gold(rows[0], none_rate=0.8, one_rate=0.5)


def test_random_sublists_have_uniform_sizes_and_keep_order():
    sizes = Counter()
    for n in range(2800):
        row = make_row(id=str(n))
        part = random_sublist(row, seed=1)
        sizes[len(part.candidates)] += 1
        positions = [row.candidates.index(c) for c in part.candidates]
        assert positions == sorted(positions)
    assert set(sizes) == set(range(1, 15)) and all(140 < count < 260 for count in sizes.values())


def test_dataset_items():
    rows = [make_row(id=str(n)) for n in range(50)]
    dataset = CandidateDataset(rows, size=8, seed=3, draws=4, lists_per_question=4)
    assert len(dataset) == 200
    items = [dataset[i] for i in range(len(dataset))]
    for i, item in enumerate(items):
        assert item["id"] == str(i % 50) and set(item["passages"][0]) >= {"title", "text"}
        assert not {"label", "kind"} & {key for passage in item["passages"] for key in passage}
        assert len(item["labels"]) == len(item["kinds"]) == len(item["passages"]) == 8
        assert item["lists"][0] == list(range(8)) and len(item["lists"]) == 4
        for part in item["lists"]:
            assert part == sorted(set(part)) and part and 0 <= part[0] and part[-1] < 8
    assert items[0]["passages"] != items[50]["passages"]  # another draw, other distractors
    golds = [sum(item["labels"][i] for i in part) for item in items for part in item["lists"][1:]]
    assert 0.45 < sum(count == 0 for count in golds) / len(golds) < 0.7
    for index in (-1, 200):
        with pytest.raises(IndexError, match=str(index)):
            dataset[index]


def test_separate_lists_hold_nothing_else():
    rows = [make_row(id=str(n)) for n in range(40)]
    together = CandidateDataset(rows, size=8, draws=3, lists_per_question=3)
    separate = CandidateDataset(rows, size=8, draws=3, lists_per_question=3, separate_lists=True)
    for index in range(len(separate)):
        whole, part = together[index], separate[index]
        wanted = whole["lists"][index // len(rows)]
        assert part["passages"] == [whole["passages"][at] for at in wanted]
        assert part["labels"] == [whole["labels"][at] for at in wanted]
        assert part["lists"] == [list(range(len(wanted)))]
    assert any(not any(separate[index]["labels"]) for index in range(len(separate)))


def test_dataset_without_randomness_in_lists():
    dataset = CandidateDataset([make_row()], lists_per_question=1, size=None)
    assert dataset[0]["lists"] == [list(range(14))]
    all_gone = CandidateDataset([make_row()], none_rate=1.0, one_rate=0.0, lists_per_question=6)[0]
    assert not any(all_gone["labels"][i] for part in all_gone["lists"][1:] for i in part)


def test_dataset_does_not_depend_on_row_order_or_history():
    rows = [make_row(id=str(n)) for n in range(6)]
    dataset = CandidateDataset(rows, seed=9)
    copy = pickle.loads(pickle.dumps(dataset))
    expected = [dataset[i] for i in range(6)]
    assert [copy[i] for i in reversed(range(6))] == expected[::-1]
    assert [CandidateDataset(rows[::-1], seed=9)[i] for i in range(6)] == expected[::-1]
    assert CandidateDataset(rows, seed=10)[0] != expected[0]


def test_unlabelled_and_empty_data_are_refused():
    row = EvidenceRow(id="u", question="Q?", candidates=[{"text": "a", "label": 1}, "b"])
    for use in (build_candidates, missing_gold, lambda row: CandidateDataset([row])):
        with pytest.raises(DataError, match=r"row 'u': `candidates\[1\].label` is missing"):
            use(row)
    with pytest.raises(DataError, match="no rows"):
        CandidateDataset([])
    with pytest.raises(ValueError, match="size=0"):
        build_candidates(make_row(), size=0)


SCRIPT = """
from warrant_hf.data import CandidateDataset, EvidenceWorld
import hashlib, json
rows = list(EvidenceWorld(seed=4, reliability=(1.0, 0.6), candidates=20).generate(20))
dataset = CandidateDataset(rows, seed=2, draws=2)
text = json.dumps([[row.to_dict() for row in rows], [dataset[i] for i in range(len(dataset))]])
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_hash_seed_does_not_matter():
    digests = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        digests.add(result.stdout)
    # The value itself is fixed too: other platforms and Python versions must produce the same data.
    assert digests == {"da0fde9591e2de848a1344345e19d779b92f630a0008ce3c796e29f297c359ee\n"}


def test_list_without_evidence_keeps_its_length():
    row = next(row for row in EvidenceWorld(3, candidates=30, missing_rate=0.0).generate(5) if sum(row.labels) >= 2)
    listed = build_candidates(row, size=8, seed=1)
    emptied = without_evidence(row, listed, seed=1)
    assert len(emptied.candidates) == len(listed.candidates) and not emptied.has_evidence
    hard = [candidate.text for candidate in listed.candidates if candidate.kind == "hard"]
    assert set(hard) <= {candidate.text for candidate in emptied.candidates}
    only_gold = row.with_candidates([candidate for candidate in row.candidates if candidate.label])
    assert without_evidence(only_gold, only_gold) is None
