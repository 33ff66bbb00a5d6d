"""Text to windows: nothing is lost, nothing is read twice, and text never becomes a control token."""

import time

import numpy as np
import pytest

from warrant_hf import EvidenceProcessor
from warrant_hf.modeling.processing_evidence import full_text

TOKENIZER_NAMES = ["character", "byte", "piece"]
QUESTION = "who was it?"


def pieces_of(encoded):
    """Per candidate: the offsets of its tokens in input order, separators left out."""
    found = [[] for _ in range(encoded.candidates)]
    for segments, spans in zip(encoded.segment_ids, encoded.offsets):
        for segment, (start, end) in zip(segments, spans):
            if segment > 0 and end > start:
                found[encoded.item_candidates[segment - 1]].append((int(start), int(end)))
    return found


def check_windows(processor, encoded, limit):
    """What holds for every packed row, whatever the text."""
    tokenizer = processor.tokenizer
    assert encoded.input_ids.shape == encoded.segment_ids.shape == encoded.offsets.shape[:2]
    assert encoded.input_ids.shape[1] <= limit
    assert sorted(set(encoded.item_candidates)) == list(range(encoded.candidates)), "a candidate was dropped"
    assert set(encoded.segment_ids[encoded.segment_ids > 0] - 1) == set(range(len(encoded.item_candidates)))
    for ids, segments in zip(encoded.input_ids, encoded.segment_ids):
        real = segments >= 0
        assert real[: real.sum()].all(), "padding stands at the end"
        assert ids[0] == tokenizer.cls_token_id and segments[0] == 0
        runs = segments[real][np.flatnonzero(np.diff(segments[real], append=-9))]
        assert len(set(runs)) == len(runs), "the tokens of an item stand together"
        ends = np.flatnonzero(np.diff(segments[real], append=-9))
        assert (ids[ends] == tokenizer.sep_token_id).all(), "question and items end with a separator"
        special = np.isin(ids[real], sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))
        assert special.sum() == 1 + len(ends), "text became a special token"


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@pytest.mark.parametrize("limit", [64, 128, 512])
def test_every_token_is_read_once(tokenizers, name, limit):
    processor = EvidenceProcessor(tokenizers[name](), max_length=limit, max_question_tokens=20)
    for length in range(480, 541, 3):
        text = ("ab " * length)[: length - 4] + " end"
        passages = ["short one", text, "x", *(f"number {at}" for at in range(9))]
        for listed in (passages, passages[::-1]):
            (encoded,) = processor.encode([QUESTION], [listed])
            check_windows(processor, encoded, limit)
            whole = processor._tokenize(listed)
            for candidate, spans in enumerate(pieces_of(encoded)):
                assert spans == [(int(a), int(b)) for a, b in whole[candidate][1] if b > a]
            parts = (encoded.item_candidates == listed.index(text)).sum()
            split = [note for note in encoded.notes if f"Passage {listed.index(text)} " in note]
            assert (parts > 1) == bool(split), "splitting is reported, and only splitting"
            if parts > 1:
                assert f"read in {parts} parts" in split[0]


def test_same_windows_whatever_the_pad_side(tokenizers):
    left = tokenizers["character"]()
    left.padding_side = left.truncation_side = "left"
    passages = ["one two", "three " * 30]
    one = EvidenceProcessor(left)([QUESTION, QUESTION], [passages, passages[:1]])
    two = EvidenceProcessor(tokenizers["character"]())([QUESTION, QUESTION], [passages, passages[:1]])
    assert all((one[name] == two[name]).all() for name in one)


def test_long_question_is_cut_and_reported(tokenizers):
    processor = EvidenceProcessor(tokenizers["character"](), max_length=64, max_question_tokens=16)
    (encoded,) = processor.encode(["a" * 40], [["text"]])
    assert (encoded.segment_ids == 0).sum() == 18
    assert encoded.notes == ["The question has 40 tokens; only its first 16 were read."]


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
def test_longer_windows_take_more_candidates_and_split_none_differently(tokenizers, name):
    passages = ["ab " * length for length in (3, 40, 5, 90, 2, 7, 11, 30, 1)]
    short, long = (
        EvidenceProcessor(tokenizers[name](), 64, 20, window_length=length).encode([QUESTION], [passages])[0]
        for length in (None, 150)
    )
    for encoded, limit in ((short, 64), (long, 150)):
        check_windows(EvidenceProcessor(tokenizers[name]()), encoded, limit)
    assert long.input_ids.shape[0] < short.input_ids.shape[0] and long.input_ids.shape[1] > 64
    assert long.item_candidates.tolist() == short.item_candidates.tolist() and long.notes == short.notes
    items = [
        [encoded.input_ids[encoded.segment_ids == item + 1].tolist() for item in range(len(encoded.item_candidates))]
        for encoded in (short, long)
    ]
    assert items[0] == items[1]


def test_scores_are_the_same_in_windows_of_any_length(tiny_model, monkeypatch):
    tokenizer = tiny_model.processor.tokenizer
    passages = [f"{at} " + "ab " * length for at in range(6) for length in (3, 40, 5, 90, 2, 7, 11, 30, 1)]
    scores = []
    for length in (None, 150, 900):  # the last is longer than the positions of the encoder reach
        processor = EvidenceProcessor(tokenizer, 64, 20, window_length=length)
        monkeypatch.setattr(tiny_model, "_processor", processor)
        found = tiny_model.rank(QUESTION, passages)["evidence"]
        scores.append([item["score"] for item in sorted(found, key=lambda item: item["index"])])
    assert processor.encode([QUESTION], [passages])[0].input_ids.shape[1] > tiny_model.longest_input()
    assert scores[1] == pytest.approx(scores[0], abs=1e-5) and scores[2] == pytest.approx(scores[0], abs=1e-5)


def test_tokenizer_limit_wins_over_max_length(tokenizers):
    tokenizer = tokenizers["character"]()
    tokenizer.model_max_length = 40
    processor = EvidenceProcessor(tokenizer)  # 512 tokens, 128 for the question
    (encoded,) = processor.encode(["q " * 300], [["a " * 100, "b"]])
    check_windows(processor, encoded, 40)
    assert "only its first 20 were read" in encoded.notes[0]
    tokenizer.model_max_length = 7
    with pytest.raises(ValueError, match="model_max_length is 7; it must be at least 8"):
        processor.encode([QUESTION], [["a"]])


def test_roberta_positions_are_never_exceeded(selector):
    import torch

    model = selector("roberta", max_question_tokens=8)
    tokenizer = model.processor.tokenizer
    tokenizer.model_max_length = 10**30
    assert model.longest_input() == 512
    for length in range(499, 506):  # with 11 tokens around them: 510 ... 512, then two parts
        result = model.rank("question", ["a" * length])
        assert np.isfinite(result["evidence"][0]["score"])
        assert bool(result["notes"]) == (length > 501)
    model.processor.max_length = 516
    for packing in ("isolated", "joint"):
        model.config.packing = packing
        with pytest.raises(ValueError, match="the encoder has 512; make the processor with max_length=512"):
            model.rank("question", ["a" * 505])
    with torch.no_grad():  # a window that is only padded beyond the limit is fine
        inputs = model.processor.pad(model.processor.encode(["q"], [["a" * 480]]), pad_to_multiple_of=1024)
        assert torch.isfinite(model(**inputs).logits).all()


SPELLED = "[CLS] a [SEP][PAD] [MASK] [UNK] <s> </s> <pad><mask> <unk> </s><s>[sep] ［ＳＥＰ］ <|endoftext|> [C1]"


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@pytest.mark.parametrize("added", [(), ("[C1]",)], ids=["plain", "with an added token"])
def test_text_that_spells_a_special_token_stays_text(tokenizers, name, added):
    tokenizer = tokenizers[name]()
    tokenizer.add_tokens(list(added), special_tokens=False)
    processor = EvidenceProcessor(tokenizer, 128, 60)
    passages = [{"title": SPELLED, "text": "plain"}, SPELLED, "plain"]
    (encoded,) = processor.encode(["[C1] </s> [SEP]?"], [passages])
    check_windows(processor, encoded, 128)
    text, covered = full_text(passages[0]), pieces_of(encoded)[0]
    read = {at for start, end in covered for at in range(start, end)}
    assert read >= {at for at, character in enumerate(text) if not character.isspace()}


def test_every_spelled_token_keeps_its_text_in_a_byte_vocabulary(tokenizers):
    processor = EvidenceProcessor(tokenizers["byte"](), 256)
    (encoded,) = processor.encode(["q"], [[SPELLED]])
    ids = encoded.input_ids[encoded.segment_ids == 1][:-1]
    assert processor.tokenizer.decode(ids) == SPELLED


TRICKY = [
    "line\u2028separator\u2029and\u0085next",
    "emoji 😀👩‍👩‍👧 flag 🇩🇪",
    "עברית مرحبا right to left",
    "e\u0301 combining n\u0303 a\u030a",
    "bell\x07 null\x00 tab\t end\x1b",
    "ﬁ ligature Ⅷ ǅ ß İstanbul",
]


@pytest.mark.parametrize("name", TOKENIZER_NAMES)
@pytest.mark.parametrize("text", TRICKY)
def test_offsets_are_characters_of_the_original_text(tokenizers, name, text):
    processor = EvidenceProcessor(tokenizers[name]())
    (encoded,) = processor.encode([QUESTION], [[{"title": "T 😀", "text": text}]])
    check_windows(processor, encoded, 512)
    full = full_text({"title": "T 😀", "text": text})
    spans = pieces_of(encoded)[0]
    assert all(0 <= start < end <= len(full) for start, end in spans)
    assert spans == sorted(spans)
    ascii_tokens = [full[start:end] for start, end in spans if full[start:end].isascii()]
    ids = encoded.input_ids[encoded.segment_ids == 1][:-1]
    decoded = processor.tokenizer.convert_ids_to_tokens(ids.tolist())
    assert len(decoded) == len(spans)
    assert {token.strip().lower() for token in ascii_tokens} >= {"t", ":"}
    for token, (start, end) in zip(decoded, spans):
        plain = token.lstrip("#▁Ġ").lower()
        if plain.isalpha() and plain.isascii() and len(plain) == 1:
            assert plain in full[start:end].lower() or not full[start:end].isascii()


def test_passage_that_the_tokenizer_drops_is_still_a_candidate(tiny_model):
    result = tiny_model.rank("who?", ["\x00\x01\x02", "text", "\u200b"])
    assert sorted(item["index"] for item in result["evidence"]) == [0, 1, 2]
    assert all(np.isfinite(item["score"]) for item in result["evidence"])


def test_a_thousand_candidates_and_a_long_passage(tokenizers):
    processor = EvidenceProcessor(tokenizers["character"]())
    started = time.process_time()
    (many,) = processor.encode([QUESTION], [[f"passage number {at} with some words" for at in range(1000)]])
    (long,) = processor.encode([QUESTION], [["word " * 20_000, "b"]])
    spent = time.process_time() - started
    assert many.candidates == 1000 and (long.item_candidates == 0).sum() > 150
    assert spent < 5


def test_round_trip(tokenizers, tmp_path):
    tokenizer = tokenizers["byte"]()
    tokenizer.model_max_length = 300
    EvidenceProcessor(tokenizer, max_length=200, max_question_tokens=50).save_pretrained(tmp_path)
    loaded = EvidenceProcessor.from_pretrained(tmp_path)
    assert (loaded.max_length, loaded.max_question_tokens, loaded.tokenizer.model_max_length) == (200, 50, 300)
    one, two = (p([QUESTION], [[SPELLED, "b"]]) for p in (loaded, EvidenceProcessor(tokenizer, 200, 50)))
    assert all((one[name] == two[name]).all() for name in one)
    assert not any(path.suffix in (".bin", ".pkl", ".pt") for path in tmp_path.iterdir())


def test_encoding_from_threads(tokenizers):
    from concurrent.futures import ThreadPoolExecutor

    processor = EvidenceProcessor(tokenizers["byte"]())
    texts = [["a" * at, SPELLED] for at in range(1, 80)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda listed: processor.encode([QUESTION], [listed])[0].input_ids, texts))
    expected = [row.input_ids for row in processor.encode([QUESTION] * len(texts), texts)]
    assert all((one == two).all() for one, two in zip(found, expected))


@pytest.mark.parametrize(
    ("question", "passages", "message"),
    [
        ("", ["a"], "question 0 is ''; give a text"),
        (" \n", ["a"], "question 0 is ' \\\\n'; give a text"),
        (None, ["a"], "question 0 is None; give a text"),
        (["a"], ["a"], "question 0 is \\['a'\\]; give a text"),
        ("q\ud800", ["a"], "question 0 has half a surrogate pair at character 1"),
        ("q", "text", "passages\\[0\\] is a str; give a list"),
        ("q", {"text": "a"}, "passages\\[0\\] is a dict; give a list"),
        ("q", {"a", "b"}, "passages\\[0\\] is a set; give a list"),
        ("q", frozenset("ab"), "passages\\[0\\] is a frozenset; give a list"),
        ("q", (text for text in "ab"), "passages\\[0\\] is a generator; give a list"),
        ("q", np.array("a"), "passages\\[0\\] is a ndarray; give a list"),
        ("q", None, "passages\\[0\\] is a NoneType; give a list"),
        ("q", ["a", ""], "passages\\[0\\]\\[1\\] has an empty text"),
        ("q", ["a", 3], "passages\\[0\\]\\[1\\] is 3; give a text, or a dict"),
        ("q", [{"title": "t"}], "passages\\[0\\]\\[0\\] is {'title': 't'}; give a text, or a dict"),
        ("q", [{"text": "a", "title": 3}], "passages\\[0\\]\\[0\\].title is 3; give a text"),
        ("q", ["\udfff"], "passages\\[0\\]\\[0\\] has half a surrogate pair"),
        ("q", [{"text": "a", "title": "\ud800"}], "passages\\[0\\]\\[0\\].title has half a surrogate"),
    ],
)
def test_bad_input(tiny_model, question, passages, message):
    for call in (tiny_model.processor.encode, tiny_model.rank_batch):
        with pytest.raises(ValueError, match=message):
            call([question], [passages])
    with pytest.raises(ValueError, match=message):
        tiny_model.rank(question, passages)


def test_nothing_to_pack(tiny_model):
    """`rank` has a result for it, see test_readers.py; there are no tensors of it."""
    with pytest.raises(ValueError, match=r"passages\[0\] is empty; give at least one"):
        tiny_model.processor.encode(["q"], [[]])


def test_bad_settings(tokenizers):
    tokenizer = tokenizers["character"]()
    with pytest.raises(ValueError, match="a fast tokenizer is needed"):
        EvidenceProcessor(None)
    with pytest.raises(ValueError, match="max_length is 64; it must be at least 8 and twice"):
        EvidenceProcessor(tokenizer, max_length=64)
    with pytest.raises(ValueError, match="max_question_tokens is 0"):
        EvidenceProcessor(tokenizer, max_question_tokens=0)
    for wrong in ({"window_length": 0}, {"window_length": 384, "packing": "single"}):
        with pytest.raises(
            ValueError, match=f"window_length is {wrong['window_length']} with packing '.*'; give 1 or"
        ):
            EvidenceProcessor(tokenizer, 64, 20, **wrong)
    with pytest.raises(ValueError, match="2 for 1 passage lists"):
        EvidenceProcessor(tokenizer).encode(["a", "b"], [["c"]])
    without = tokenizers["byte"]()
    without.sep_token = without.eos_token = None
    with pytest.raises(ValueError, match="no separator token"):
        EvidenceProcessor(without)
