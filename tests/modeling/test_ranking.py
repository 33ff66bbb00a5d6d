"""`rank` and `rank_batch`: what a person gets back, and what withdrawing a permission does."""

import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

QUESTION = "Who wrote Emma?"
PASSAGES = [
    "Jane Austen wrote Emma.",
    {"title": "Stone", "text": "Emma Stone acts.", "id": "s-2", "source": {"year": 2010}, "score": 9.5},
    "Nothing to see here",
    {"text": "An Emma by any other name"},
    "Jane Austen wrote Emma.",
]
FIELDS = {
    "index": int,
    "rank": int,
    "text": str,
    "score": float,
    "probability": float,
    "attention": float,
    "permission": float,
    "effective": float,
    "revoked": bool,
}


def by_index(result):
    return sorted(result["evidence"], key=lambda item: item["index"])


def test_fields_and_types(tiny_model):
    given = copy.deepcopy(PASSAGES)
    result = tiny_model.rank(QUESTION, PASSAGES, return_tokens=True)
    assert PASSAGES == given, "the caller's passages were changed"
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {"question", "evidence", "mass", "answerability", "notes"}
    assert result["question"] == QUESTION and result["notes"] == []
    assert type(result["mass"]) is float and type(result["answerability"]) is float
    items = by_index(result)
    for at, (item, passage) in enumerate(zip(items, PASSAGES)):
        assert item["index"] == at
        assert {name: type(item[name]) for name in FIELDS} == FIELDS
        assert item["text"] == (passage if isinstance(passage, str) else passage["text"])
        assert 0 <= item["probability"] <= 1
        assert item["probability"] == pytest.approx(1 / (1 + math.exp(-item["score"])))
        assert item["effective"] == pytest.approx(item["attention"] * item["permission"], rel=1e-5)
    assert (items[1]["id"], items[1]["title"], items[1]["source"]) == ("s-2", "Stone", {"year": 2010})
    assert items[1]["score"] != 9.5 and (items[0]["id"], items[0]["title"]) == (None, None)
    assert [item["rank"] for item in result["evidence"]] == [1, 2, 3, 4, 5]
    scores = [item["score"] for item in result["evidence"]]
    assert scores == sorted(scores, reverse=True)
    assert sum(item["attention"] for item in items) == pytest.approx(1, abs=1e-5)
    assert result["mass"] == pytest.approx(sum(item["effective"] for item in items), abs=1e-6)


def test_tokens_lie_in_their_field(tiny_model):
    for item in tiny_model.rank(QUESTION, PASSAGES, return_tokens=True)["evidence"]:
        assert item["tokens"] and {token["field"] for token in item["tokens"]} <= {"title", "text"}
        for field in ("title", "text"):
            tokens = [token for token in item["tokens"] if token["field"] == field]
            text = item[field] or ""
            assert "".join(text[token["start"] : token["end"]] for token in tokens) == text.replace(" ", "")
        assert sum(token["attention"] for token in item["tokens"]) <= item["attention"] + 1e-6
        assert all(type(token["attention"]) is type(token["permission"]) is float for token in item["tokens"])
    assert "tokens" not in tiny_model.rank(QUESTION, PASSAGES)["evidence"][0]


def test_title_tokens_of_a_byte_vocabulary_end_with_the_title(selector):
    model = selector("roberta")
    (item,) = model.rank("q", [{"title": "été 😀", "text": " x"}], return_tokens=True)["evidence"]
    assert all(0 <= token["start"] < token["end"] <= len(item[token["field"]]) for token in item["tokens"])
    assert {token["field"] for token in item["tokens"]} == {"title", "text"}


def test_variant_without_a_path(selector):
    model = selector("bert", variant="base")
    result = model.rank(QUESTION, PASSAGES, return_tokens=True)
    assert result["mass"] is None and json.dumps(result)
    assert all(item[name] is None for item in result["evidence"] for name in ("attention", "permission", "effective"))
    assert all(item["tokens"] == [] for item in result["evidence"])
    with pytest.raises(ValueError, match="'gate' needs a permission on .*, and variant 'base' has none; use 'mask'"):
        model.rank_batch([QUESTION] * 20, [PASSAGES] * 20, revoke=[[]] * 19 + [[1]])
    assert by_index(model.rank(QUESTION, PASSAGES, revoke=[1], revoke_by="mask"))[1]["rank"] == 5


@pytest.mark.parametrize(("top_k", "count"), [(None, 5), (99, 5), (3, 3), (0, 0)])
def test_top_k(tiny_model, top_k, count):
    full = tiny_model.rank(QUESTION, PASSAGES)["evidence"]
    assert tiny_model.rank(QUESTION, PASSAGES, top_k=top_k)["evidence"] == full[:count]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": -1}, "top_k is -1; give a whole number of 0 or more"),
        ({"top_k": "2"}, "top_k is '2'"),
        ({"top_k": True}, "top_k is True"),
        ({"revoke_by": "delete"}, "revoke_by is 'delete'; choose 'gate' or 'mask'"),
        ({"revoke": [5]}, "revoke: 5 is not a passage of question 0; give positions from 0 to 4"),
        ({"revoke": [-1]}, "revoke: -1 is not a passage"),
        ({"revoke": [True]}, "revoke: True is not a passage"),
        ({"revoke": 1}, "revoke is 1 for question 0; give a list of positions"),
        ({"revoke": "12"}, "revoke is '12'"),
    ],
)
def test_bad_options(tiny_model, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_model.rank(QUESTION, PASSAGES, **options)


def test_bad_batches(tiny_model):
    with pytest.raises(ValueError, match="questions is one text; give a list"):
        tiny_model.rank_batch(QUESTION, [PASSAGES])
    with pytest.raises(ValueError, match="2 questions, 1 passage lists and 2 revoke lists"):
        tiny_model.rank_batch([QUESTION] * 2, [PASSAGES])
    with pytest.raises(ValueError, match="batch_size is 0"):
        tiny_model.rank_batch([QUESTION], [PASSAGES], batch_size=0)
    for wrong in (None, iter([QUESTION]), {QUESTION}, {QUESTION: 1}, 3):
        kind = type(wrong).__name__
        for call in (tiny_model.rank_batch, tiny_model.processor.encode):
            with pytest.raises(ValueError, match=f"questions is a {kind}; give a list of questions"):
                call(wrong, [PASSAGES])
            with pytest.raises(ValueError, match=f"passages is a {kind}; give a list of lists"):
                call([QUESTION], wrong)
    with pytest.raises(ValueError, match="revoke is a int; give a list of lists of positions"):
        tiny_model.rank_batch([QUESTION], [PASSAGES], revoke=3)
    assert tiny_model.rank_batch([], []) == []


def test_numbers_and_arrays_of_numpy(tiny_model):
    options = {"revoke": np.flatnonzero([0, 1, 0]), "top_k": np.int64(2)}
    found = tiny_model.rank(QUESTION, np.array(PASSAGES[::4], dtype=object), revoke=np.array([1]))
    assert found == tiny_model.rank(QUESTION, PASSAGES[::4], revoke=[1])
    assert tiny_model.rank(QUESTION, PASSAGES, **options) == tiny_model.rank(QUESTION, PASSAGES, revoke=[1], top_k=2)


def test_batches_keep_input_order(tiny_model):
    questions = [f"question {at} {'long ' * (7 * at % 40)}" for at in range(11)]
    lists = [PASSAGES[: 1 + at % 5] for at in range(11)]
    expected = [tiny_model.rank(question, listed) for question, listed in zip(questions, lists)]
    for size in (1, 3, 8):
        results = tiny_model.rank_batch(questions, lists, batch_size=size)
        assert [result["question"] for result in results] == questions
        for one, two in zip(results, expected):
            for item, other in zip(by_index(one), by_index(two)):
                assert item["score"] == pytest.approx(other["score"], abs=1e-5)


def test_a_closed_gate_removes_exactly_its_term(selector):
    for kind in ("bert", "deberta-v2"):
        model = selector(kind)
        before, after = (model.rank(QUESTION, PASSAGES, revoke=revoke) for revoke in ([], [1, 3]))
        for old, new in zip(by_index(before), by_index(after)):
            assert new["attention"] == old["attention"]
            if new["index"] in (1, 3):
                assert (new["permission"], new["effective"], new["revoked"]) == (0.0, 0.0, True)
                assert new["score"] == model.readout.lowest_logit() < old["score"]
            else:
                same = ("permission", "effective", "score", "probability", "revoked")
                assert [new[name] for name in same] == [old[name] for name in same]
        assert {item["index"] for item in after["evidence"][-2:]} == {1, 3}
        kept = np.array([item["effective"] for item in by_index(after)], dtype=np.float32)
        assert after["mass"] == pytest.approx(float(kept.sum()), abs=3e-7)
        assert after["answerability"] != before["answerability"]


def test_a_masked_passage_was_never_there(selector):
    for kind in ("bert", "modernbert", "deberta-v2"):
        model = selector(kind, max_length=64)
        passages = [*PASSAGES, "word " * 40]  # several windows
        for revoke in ([2], [5, 0]):
            masked = model.rank(QUESTION, passages, revoke=revoke, revoke_by="mask", return_tokens=True)
            left = [at for at in range(len(passages)) if at not in revoke]
            without = model.rank(QUESTION, [passages[at] for at in left], return_tokens=True)
            assert [masked[name] for name in ("mass", "answerability")] == [
                without[name] for name in ("mass", "answerability")
            ]
            kept = [item for item in masked["evidence"] if not item["revoked"]]
            assert [item | {"index": left[item["index"]]} for item in without["evidence"]] == kept
            for item in masked["evidence"][-len(revoke) :]:
                assert (item["revoked"], item["attention"], item["effective"], item["tokens"]) == (True, 0.0, 0.0, [])
                assert item["score"] == model.readout.lowest_logit()


def test_scaled_permissions_move_the_logits(tiny_model):
    batch = tiny_model.processor([QUESTION], [PASSAGES])
    with torch.no_grad():
        before = tiny_model(**batch)
        after = tiny_model(**batch, permission_override=before.permission / 2)
    expected = before.logits + float(tiny_model.readout.beta) * math.log(0.5)
    torch.testing.assert_close(after.logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.attention, before.attention, atol=0, rtol=0)
    torch.testing.assert_close(after.mass, before.mass / 2)


def test_duplicates_tie_and_keep_input_order(selector):
    for kind in ("bert", "modernbert"):
        model = selector(kind, max_length=64)
        passages = [text for at in range(12) for text in ("the same text", f"another {at} " * (at % 3 + 1))]
        result = model.rank(QUESTION, passages)
        twins = [item for item in result["evidence"] if item["text"] == "the same text"]
        assert len({(item["score"], item["permission"], item["attention"]) for item in twins}) == 1
        assert [item["index"] for item in twins] == list(range(0, 24, 2))
        closed = model.rank(QUESTION, passages, revoke=[4])
        assert [item["index"] for item in closed["evidence"] if item["revoked"]] == [4]


def test_one_candidate(tiny_model):
    (item,) = tiny_model.rank(QUESTION, ["only one"])["evidence"]
    assert item["attention"] == pytest.approx(1.0, abs=1e-6)


def test_long_passages_are_reported(tiny_model):
    result = tiny_model.rank(QUESTION, ["a " * 1500, "b"])
    assert result["notes"] == ["Passage 0 has 1500 tokens; it was read in 4 parts."]
    assert len(result["evidence"]) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_half_precision(selector, tmp_path, dtype, kind):
    from warrant_hf import AutoModelForEvidenceSelection

    full = selector(kind)
    full.save_pretrained(tmp_path)
    model = AutoModelForEvidenceSelection.from_pretrained(tmp_path, dtype=dtype)
    model.processor = full.processor
    assert model.backbone.dtype == dtype and model.readout.beta.dtype == torch.float32
    result = model.rank(QUESTION, PASSAGES, return_tokens=True)
    assert json.dumps(result) and all(type(item["score"]) is float for item in result["evidence"])
    for item, other in zip(by_index(result), by_index(full.rank(QUESTION, PASSAGES))):
        assert item["permission"] == pytest.approx(other["permission"], abs=0.1)


def test_overflow_is_an_error_that_names_the_remedy(selector):
    model = selector("bert")
    with torch.no_grad():
        model.backbone.encoder.layer[0].output.dense.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match="not finite in torch.float32; load the model in bfloat16 or float32"):
        model.rank(QUESTION, PASSAGES)


def test_ranking_from_threads_and_back_to_training(selector):
    model = selector("bert").train()
    assert model.rank(QUESTION, PASSAGES) and model.training
    model.eval()
    expected = [model.rank(f"question {at}", PASSAGES[: 1 + at % 5]) for at in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: model.rank(f"question {at}", PASSAGES[: 1 + at % 5]), range(12)))
    assert found == expected


def test_model_without_a_processor(selector):
    model = selector("bert")
    model._processor = None
    with pytest.raises(ValueError, match="model.processor is not set; assign an EvidenceProcessor"):
        model.rank(QUESTION, PASSAGES)


def test_own_keys_with_our_names_are_kept(tiny_model):
    (item,) = tiny_model.rank("q", [{"text": "a", "score": 0.9, "rank": 44, "source": "bm25"}])["evidence"]
    assert (item["input_score"], item["input_rank"], item["source"]) == (0.9, 44, "bm25") and item["rank"] == 1


def test_own_tokens_are_kept_beside_ours(tiny_model):
    passage = {"text": "jane austen", "tokens": 57}
    assert tiny_model.rank(QUESTION, [passage])["evidence"][0]["tokens"] == 57
    item = tiny_model.rank(QUESTION, [passage], return_tokens=True)["evidence"][0]
    assert item["input_tokens"] == 57 and item["tokens"][0]["attention"] > 0


def test_saving_a_model_saves_its_processor(tiny_model_dir, tmp_path):
    from warrant_hf import AutoModelForEvidenceSelection

    model = AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir)
    model.save_pretrained(tmp_path)
    again = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert again.rank("q", ["a", "b"]) == model.rank("q", ["a", "b"])
