import pytest

pytest.importorskip("sentencex")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402

from warrant_hf.integrations.context import context, rank, split_sentences  # noqa: E402

QUESTION = "where was ada born?"
LONG = "Dr. Ada was born in York, U.K. on Jan. 5.  York is a city. \n\nThe Thames is a river! Is it? 😀 Yes."
PASSAGES = [LONG, {"text": "York has a wall. It is old.", "title": "york", "page": 3}]


def test_rank_has_the_form_of_sentence_transformers(tiny_model):
    documents = ["york is a city.", "ada was born in york.", "the thames is a river."]
    expected = tiny_model.rank(QUESTION, documents)["evidence"]
    assert rank(tiny_model, QUESTION, documents) == [
        {"corpus_id": item["index"], "score": pytest.approx(item["probability"], abs=1e-6)} for item in expected
    ]
    assert rank(tiny_model, QUESTION, documents, top_k=1, return_documents=True) == [
        {
            "corpus_id": expected[0]["index"],
            "score": pytest.approx(expected[0]["probability"], abs=1e-6),
            "text": expected[0]["text"],
        }
    ]


def test_sentences_are_found_where_they_stand():
    found = [LONG[start:end] for start, end in split_sentences(LONG)]
    assert found[:3] == ["Dr. Ada was born in York, U.K. on Jan. 5.", "York is a city.", "The Thames is a river!"]
    assert split_sentences("  ") == []


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(st.text(max_size=60) | st.text(alphabet="aB. \n!?é😀。\r\u2028", max_size=60))
def test_no_character_but_white_space_is_lost(text):
    spans = split_sentences(text)
    inside = "".join(text[start:end] for start, end in spans)
    assert "".join(inside.split()) == "".join(text.split())
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))


def test_what_supports_is_kept_with_its_place(tiny_model):
    everything = context(tiny_model, QUESTION, PASSAGES, threshold=0.0)
    texts = [LONG, PASSAGES[1]["text"]]
    sentences = [(at, *span) for at, text in enumerate(texts) for span in split_sentences(text)]
    assert [(part["passage"], part["start"], part["end"]) for part in everything["kept"]] == sentences
    assert everything["left_out"] == 0 and everything["text"].count("\n") == 1 and "…" not in everything["text"]
    for part in everything["kept"]:
        assert texts[part["passage"]][part["start"] : part["end"]] == part["text"]
    given = [{"text": texts[at][start:end], **({"title": "york"} if at else {})} for at, start, end in sentences]
    expected = {item["index"]: item for item in tiny_model.rank(QUESTION, given)["evidence"]}
    for number, part in enumerate(everything["kept"]):
        for name in ("probability", "attention", "permission", "effective"):
            assert part[name] == pytest.approx(expected[number][name], abs=1e-5)

    middle = sorted(part["probability"] for part in everything["kept"])[len(sentences) // 2]
    some = context(tiny_model, QUESTION, PASSAGES, threshold=middle)
    assert some["kept"] == [part for part in everything["kept"] if part["probability"] >= middle]
    assert 0 < some["left_out"] == len(sentences) - len(some["kept"])
    assert context(tiny_model, QUESTION, PASSAGES, threshold=1.0)["text"] == ""


def test_what_was_left_out_leaves_a_mark(tiny_model):
    everything = context(tiny_model, QUESTION, LONG, threshold=0.0)["kept"]
    least = min(everything[1:-1], key=lambda part: part["probability"])
    threshold = least["probability"] + 1e-7
    kept = [part for part in everything if part["probability"] >= threshold]
    text = context(tiny_model, QUESTION, LONG, threshold=threshold)["text"]
    assert least["text"] not in text and text.replace(" … ", " ") == " ".join(part["text"] for part in kept)
    assert "…" in text or kept[0]["start"] > least["start"] or kept[-1]["end"] < least["start"]


def test_whole_passages(tiny_model):
    found = context(tiny_model, QUESTION, PASSAGES, threshold=0.0, unit="passage")
    assert [(part["passage"], part["start"], part["end"]) for part in found["kept"]] == [
        (0, 0, len(LONG)),
        (1, 0, len(PASSAGES[1]["text"])),
    ]
    assert found["text"] == f"{LONG}\n{PASSAGES[1]['text']}"


@pytest.mark.parametrize(
    "passages, settings, part",
    [
        (PASSAGES, {"threshold": 2}, "threshold is 2; give a probability"),
        (PASSAGES, {"threshold": None}, "threshold is None; give a probability"),
        (PASSAGES, {"unit": "word"}, "unit is 'word'; choose 'sentence' or 'passage'"),
        (["york.", " "], {}, r"passages\[0\]\[1\] has an empty text"),
        (["york.", 3], {}, r"passages\[0\]\[1\] is 3; give a text"),
        (["york.", 3], {"unit": "passage"}, r"passages\[0\]\[1\] is 3; give a text"),
    ],
)
def test_a_wrong_argument_is_one_sentence(tiny_model, passages, settings, part):
    with pytest.raises(ValueError, match=part):
        context(tiny_model, QUESTION, passages, **settings)
