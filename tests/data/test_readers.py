"""Reading rows: every published shape, every way a file can be wrong, and nothing lost on the way."""

import gzip
import json

import pytest

from warrant_hf.data import Candidate, DataError, EvidenceRow, EvidenceWorld, read_rows, rows_from

CONTEXT = [
    ["Ada Lovelace", ["Ada Lovelace was a mathematician.", " She worked with Babbage."]],
    ["Ada (language)", ["Ada is a language.", "", " It was named after Ada Lovelace."]],
    ["Charles Babbage", [" Charles Babbage designed engines. "]],
]
FACTS = [["Ada (language)", 2], ["Ada Lovelace", 0]]
RAW = {"_id": "q1", "question": "Whom is Ada named after?", "answer": "Ada", "type": "bridge"}


def hotpot(**changes):
    return {**RAW, "context": CONTEXT, "supporting_facts": FACTS, **changes}


def write_lines(path, *records):
    path.write_bytes(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))
    return path


SHAPES = {
    "raw": hotpot(),
    "hub": hotpot(
        context={"title": [title for title, _ in CONTEXT], "sentences": [texts for _, texts in CONTEXT]},
        supporting_facts={"title": [title for title, _ in FACTS], "sent_id": [index for _, index in FACTS]},
    ),
    "hub 2wiki": hotpot(
        context={"title": [title for title, _ in CONTEXT], "content": [texts for _, texts in CONTEXT]},
        evidences=[],
    ),
    "objects": hotpot(
        context=[{"title": title, "sentences": texts} for title, texts in CONTEXT],
        supporting_facts=[{"title": title, "sent_id": index} for title, index in FACTS],
    ),
    "json text": hotpot(context=json.dumps(CONTEXT), supporting_facts=json.dumps(FACTS)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_published_hotpotqa_shape_gives_the_same_row(shape):
    (row,) = rows_from([SHAPES[shape]])
    assert row.id == "q1"
    assert [(c.title, c.text, c.label, c.kind, c.source) for c in row.candidates] == [
        ("Ada Lovelace", "Ada Lovelace was a mathematician.", 1, None, {"passage": 0, "sentence": 0}),
        ("Ada Lovelace", "She worked with Babbage.", 0, None, {"passage": 0, "sentence": 1}),
        ("Ada (language)", "Ada is a language.", 0, None, {"passage": 1, "sentence": 0}),
        # The empty sentence is no candidate, and the next one keeps its index.
        ("Ada (language)", "It was named after Ada Lovelace.", 1, None, {"passage": 1, "sentence": 2}),
        ("Charles Babbage", "Charles Babbage designed engines.", 0, None, {"passage": 2, "sentence": 0}),
    ]
    assert row.type == "bridge" and row.answer == "Ada" and row.supporting_facts == FACTS
    assert "context" not in row.to_dict() and "_id" not in row.to_dict()


def test_passage_level_joins_sentences_and_keeps_titles_apart():
    (row,) = rows_from([hotpot()], level="passage")
    assert row.labels == [1, 1, 0]
    assert row.candidates[1].text == "Ada is a language. It was named after Ada Lovelace."
    assert row.candidates[1].source == {"passage": 1}


def test_one_json_list_gzip_and_byte_order_mark(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([hotpot(), hotpot(_id="q2")], indent=1))
    (tmp_path / "rows.bin").write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(hotpot()).encode()))
    assert [row.id for row in read_rows(tmp_path / "list.json")] == ["q1", "q2"]
    assert [row.id for row in read_rows(str(tmp_path / "rows.bin"))] == ["q1"]
    assert [row.id for row in read_rows(tmp_path / "list.json", limit=1)] == ["q1"]


def test_datasets_and_parquet(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list([SHAPES["hub"]])
    (row,) = rows_from(dataset)
    assert row.labels == [1, 0, 0, 1, 0]
    dataset.to_parquet(str(tmp_path / "rows.parquet"))
    assert read_rows(tmp_path / "rows.parquet") == [row]


def test_a_damaged_parquet_file(tmp_path, capfd):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(DataError, match="rows.parquet: the Parquet file is damaged .*; fetch it again"):
        read_rows(tmp_path / "rows.parquet")
    assert capfd.readouterr().err == ""


def test_facts_that_cannot_be_read_are_listed_and_the_row_stays():
    facts = [["Ada Lovelace", 7], ["Ada (language)", 1], ["Nowhere", 0]]
    (row,) = rows_from([hotpot(supporting_facts=facts)])
    assert row.labels == [0] * 5 and not row.has_evidence
    assert row.missing_gold == [{"title": title, "sent_id": index} for title, index in facts]
    (row,) = rows_from([hotpot(supporting_facts=facts)], level="passage")
    assert row.labels == [1, 1, 0] and row.missing_gold == [{"title": "Nowhere", "sent_id": 0}]


def test_a_repeated_title_is_keyed_by_position():
    context = [["T", ["Other."]], ["T", ["Other.", "The fact."]], ["T", ["Third.", "The fact."]], ["T", ["4.", "No."]]]
    (row,) = rows_from([hotpot(context=context, supporting_facts=[["T", 1]])])
    assert [c.source["passage"] for c in row.candidates if c.label] == [1, 2]  # the first, and its literal copy
    (row,) = rows_from([hotpot(context=context, supporting_facts=[["T", 1]])], level="passage")
    assert row.labels == [0, 1, 1, 0]


def test_rows_of_a_hidden_test_set_are_unlabelled():
    for record in (
        {**RAW, "context": CONTEXT},
        hotpot(supporting_facts=None),
        hotpot(supporting_facts=[], answer=None),
    ):
        (row,) = rows_from([record])
        assert row.labels is None and row.candidates[0].label is None
    (row,) = rows_from([hotpot(supporting_facts=[])])
    assert row.labels == [0] * 5


@pytest.mark.parametrize("text_key", ["paragraph_text", "text"])
@pytest.mark.parametrize("level", ["sentence", "passage"])
def test_musique_is_paragraph_level_at_either_level(text_key, level):
    record = {
        "id": "2hop__1_2",
        "question": "Who?",
        "answer": "X",
        "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "A", text_key: " One. Two. ", "is_supporting": False},
            {"idx": 1, "title": "B", text_key: "Three.", "is_supporting": True},
        ],
    }
    (row,) = rows_from([record], level=level)
    assert [c.text for c in row.candidates] == ["One. Two.", "Three."]
    assert row.labels == [0, 1] and row.candidates[1].source == {"passage": 1} and row.answerable is True


def test_our_jsonl_keeps_unknown_keys_and_invents_none(tmp_path):
    records = [
        {
            "id": "a",
            "question": "Q?",
            "candidates": ["one", {"text": "two", "url": "u", "label": 1}],
            "topic": [1, "x"],
        },
        {"id": 7, "question": "Q?", "passages": [{"text": "x", "source": {"n": 1}, "title": "T"}], "answer": None},
        {"question": "Q?", "candidates": ["no id"]},
    ]
    rows = read_rows(write_lines(tmp_path / "rows.jsonl", *records))
    assert rows[0].to_dict() == {**records[0], "candidates": [{"text": "one"}, records[0]["candidates"][1]]}
    assert rows[1].to_dict() == {
        "id": "7",
        "question": "Q?",
        "candidates": records[1]["passages"],
        "answer": None,
    }
    assert rows[0].candidates[0].to_dict() == {"text": "one"}
    assert rows[2].id == "3" and rows[0].labels is None and rows[0].candidates[1].url == "u"


def test_only_line_feed_ends_a_line(tmp_path):
    text = "a\u2028b\u2029c\u0085d\u000be\u001ff \U0001f469\u200d\U0001f52c e\u0301 \u202e\u05d0"
    good = {"id": "1", "question": f"{text}?", "candidates": [text]}
    path = write_lines(tmp_path / "sep.jsonl", good, good)
    with path.open("ab") as file:
        file.write(b"\r\n\r \n" + json.dumps({"id": "3", "question": "?", "candidates": [3]}).encode())
    with pytest.raises(DataError, match=r"line 5: `candidates\[0\]` is 3"):
        read_rows(path)
    rows = read_rows(path, limit=2)
    assert [row.candidates[0].text for row in rows] == [text, text] and rows[0].question == f"{text}?"


BAD_ROWS = {
    '{"id": "x", "question": "Q?", "question": "P?", "candidates": []}': "not JSON (the key 'question' stands twice",
    '{"id": "x", "question": "Q?", "candidates": ["a"], "w": NaN}': "not JSON (NaN is no JSON number, write null)",
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "w": -Infinity}]}': "-Infinity is no JSON number",
    '{"id": "x", "question": "Q?", "candidates": ["a"], "w": 1e999}': "not JSON (a number is too large)",
    f'{{"id": {"9" * 5000}}}': "not JSON (a whole number has too many digits)",
    "[" * 100_000: "not JSON (nested too deep)",
    '{"id": "x", "question": "Q?", "candidates": ["a"], "\\ud800": 1}': r'the key "\ud800" holds half of a surrogate',
    f'{{"question": "Q?", "context": "{"9" * 5000}"}}': "`context` is text but not JSON (a whole number",
    '{"question": "Q?", "paragraphs": [{"text": "t", "is_supporting": "no"}]}': "paragraphs[0].is_supporting` is 'no'",
    '{"id": "x", "question": "Q?", "passages": [["nested"]]}': r"`passages[0]` is [\"nested\"]",
    '{"id": "x", "question": "Q?", "candidates": [null]}': "`candidates[0]` is null",
    '{"id": "x", "question": "Q?", "candidates": [{"text": 5}]}': "`candidates[0].text` is 5, not a string",
    '{"id": "x", "question": "Q?", "candidates": [{"title": "t"}]}': "field `candidates[0].text` is missing",
    '{"id": "x", "question": "Q?", "candidates": ["a", {"text": " "}]}': '`candidates[1].text` is " "',
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "title": 1}]}': "`candidates[0].title` is 1",
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "label": 2}]}': "`candidates[0].label` is 2",
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "label": "1"}]}': '`candidates[0].label` is "1"',
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "label": 1.0}]}': "`candidates[0].label` is 1.0",
    '{"id": "x", "question": "Q?", "candidates": []}': "`candidates` is [], but it must hold at least one passage",
    '{"id": "x", "question": "Q?", "candidates": "text"}': '`candidates` is "text"',
    '{"id": "x", "question": "", "candidates": ["a"]}': '`question` is ""',
    '{"id": "x", "candidates": ["a"]}': "field `question` is missing",
    '{"id": [1], "question": "Q?", "candidates": ["a"]}': "`id` is [1]",
    '{"id": "x", "question": "Q?", "candidates": ["\\ud800"]}': r'`candidates[0].text` is "\ud800"',
    '{"id": "x", "question": "Q?", "candidates": [{"text": "a", "title": "\\udfff"}]}': "`candidates[0].title` is",
    '["a", "list"]': "not an object",
    '{"id": "x", "question": "Q?"': "this is not JSON",
    '{"id": "x", "question": "Q?"}': "the format is unknown, the row has `id`, `question`",
    '{"question": "Q?", "context": [["T", "text"]]}': "`context[0]` must be a title and a list",
    '{"question": "Q?", "context": [["T", [1]]]}': "`context[0]` sentence 0 is 1",
    '{"question": "Q?", "context": {"title": ["T"], "sentences": []}}': "`context` must hold lists",
    '{"question": "Q?", "context": "plain"}': "`context` is text but not JSON",
    '{"question": "Q?", "context": [["T", [" "]]]}': "`context` holds no text",
    '{"question": "Q?", "context": [["T", ["s"]]], "supporting_facts": [["T"]]}': "`supporting_facts[0]` is ['T']",
    '{"question": "Q?", "context": [["T", ["s"]]], "supporting_facts": [3]}': "`supporting_facts[0]` is 3",
    '{"question": "Q?", "context": [["T", ["s"]]], "supporting_facts": 3}': "`supporting_facts` must be a list",
    '{"question": "Q?", "paragraphs": [{"title": "T"}]}': "`paragraphs[0].paragraph_text` is None",
}


@pytest.mark.parametrize("line", BAD_ROWS)
def test_a_bad_row_is_named_in_one_sentence(tmp_path, line):
    path = write_lines(tmp_path / "mixed.jsonl", {"id": "1", "question": "Q?", "candidates": ["fine"]})
    with path.open("a") as file:
        file.write("\n" + line + "\n")
    with pytest.raises(DataError) as caught:
        read_rows(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ") and BAD_ROWS[line].replace('\\"', '"') in message
    assert "\n" not in message and message.endswith(".") and ";" in message


def test_bad_files_and_arguments(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", hotpot())
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    with pytest.raises(DataError, match="holds no rows"):
        read_rows(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "1", "question": "Q?", "candidates": ["a"]}\n"\xe9"\n')
    with pytest.raises(DataError, match="line 2: byte 1 is 0xe9, not UTF-8"):
        read_rows(tmp_path / "latin.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(path.read_bytes() * 50)[:-20])
    with pytest.raises(DataError, match="gzip stream is damaged"):
        read_rows(tmp_path / "cut.jsonl.gz")
    (tmp_path / "list.json").write_text('[{"a": 1},\n{"b": }]')
    with pytest.raises(DataError, match="list.json, line 2: this is not JSON"):
        read_rows(tmp_path / "list.json")
    (tmp_path / "items.json").write_text('[{"question": "Q?", "candidates": ["a"]}, 4]')
    with pytest.raises(DataError, match="items.json, item 2: the row is 4"):
        read_rows(tmp_path / "items.json")
    for wrong in ({"format": "squad"}, {"level": "token"}, {"limit": -1}, {"limit": True}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            read_rows(path, **wrong)


def test_validated_rows_pass_through():
    row = EvidenceRow(id="1", question="Q?", candidates=[Candidate(text="t", label=True)])
    assert rows_from([row]) == [row] and row.labels == [1]


def test_generated_rows_by_name():
    rows = read_rows("world:3:7")
    assert rows == list(EvidenceWorld(7).generate(3))
    assert read_rows("world:3") == list(EvidenceWorld(0).generate(3))
    assert len(read_rows("world:3:7", limit=2)) == 2
    for wrong in ("world:many", "world:5:x", "world:-1", "world:"):
        with pytest.raises(DataError, match=f"{wrong}: write world:N or world:N:SEED"):
            read_rows(wrong)
    with pytest.raises(DataError, match="world:0: it holds no rows; ask for at least one"):
        read_rows("world:0")
    with pytest.raises(DataError, match="limit is -1"):
        read_rows("world:3", limit=-1)


def test_labels_of_a_row_are_those_of_its_candidates():
    (row,) = rows_from([{"question": "q", "passages": ["a", {"text": "b", "title": "t"}], "labels": [0, 1]}])
    assert row.labels == [0, 1] and row.candidates[1].title == "t" and "labels" not in row.to_dict()
    for labels in ([1], "10", [0, 2]):
        with pytest.raises(DataError, match="label"):
            rows_from([{"question": "q", "passages": ["a", "b"], "labels": labels}])
