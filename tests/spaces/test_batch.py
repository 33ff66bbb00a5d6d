import copy
import csv
import io

import pytest

pytest.importorskip("gradio")

from warrant_hf.diagnostics.ledger_files import read_ledger  # noqa: E402
from warrant_hf.space import batch, uploads  # noqa: E402
from warrant_hf.space.selectors import Selectors  # noqa: E402


@pytest.fixture(scope="module")
def selector(tiny_model):
    return Selectors({"tiny": tiny_model})["tiny"]


def finished(selector, file, stop=lambda: False):
    return list(batch.run(selector, uploads.read_batch(str(file), "sentence"), stop))[-1]


def test_a_batch_gives_what_rank_gives_and_a_ledger_of_it(selector, rows_file, tmp_path):
    file, rows = rows_file(4)
    done = finished(selector, file)
    (tmp_path / "ledger.jsonl").write_bytes(done.ledger)
    records = list(read_ledger(tmp_path / "ledger.jsonl"))
    assert len(records) == sum(len(row["candidates"]) for row in rows)
    assert {record.question_id for record in records} == {row["id"] for row in rows}
    for row, shown in zip(rows, done.rows, strict=True):
        texts = [{"title": c.get("title"), "text": c["text"]} for c in row["candidates"]]
        evidence = selector.model.rank(row["question"], texts)["evidence"]
        assert shown[batch.HEADERS.index("probability")] == pytest.approx(evidence[0]["probability"], abs=5e-4)
        golds = [at for at, candidate in enumerate(row["candidates"]) if candidate.get("label") == 1]
        first = {item["index"] for item in evidence[: len(golds)]}
        assert shown[batch.HEADERS.index("evidence missed")] == (len(set(golds) - first) if golds else "")
        selected = {record.index for record in records if record.question_id == row["id"] and record.selected}
        assert selected == (first if golds else set())
    assert done.told() == "Done: 4 of 4 questions."
    missed = [row[batch.HEADERS.index("evidence missed")] for row in done.rows]
    labelled = [count for count in missed if count != ""]
    some = sum(count > 0 for count in labelled)
    assert done.summary() == f"Some evidence was missed in {some} of the {len(labelled)} that have labels."


def test_a_summary_says_what_labels_and_calibration_allow():
    rows = [[1, "q", "best", 0.5, 0.7, missed, 0, 0, "a", ""] for missed in (2, 0, "")]
    both = batch.Batch(3, rows, answerable=1)
    assert both.summary() == "Some evidence was missed in 1 of the 2 that have labels. 1 of 3 are judged answerable."
    assert batch.Batch(1, rows[2:], answerable=0).summary() == "0 of 1 are judged answerable."
    assert batch.Batch(1, rows[2:]).summary() == batch.Batch(1).summary() == ""


def test_lists_with_enough_evidence_are_counted_where_that_is_calibrated(tiny_model, rows_file):
    calibrated = copy.deepcopy(tiny_model)
    calibrated.config.answerability_calibration = {"questions": 398, "size": 8}
    calibrated.readout.mass_bias.data += 3.0
    done = finished(Selectors({"tiny": calibrated})["tiny"], rows_file(3)[0])
    assert done.answerable == sum(row[batch.HEADERS.index("answerable")] >= 0.5 for row in done.rows)


def test_filters_keep_rows_with_more_than_none(selector, rows_file):
    done = finished(selector, rows_file(6)[0])
    assert batch.filtered(done, []) == done.rows
    for name in batch.FILTERS:
        column = batch.HEADERS.index(name)
        assert batch.filtered(done, [name]) == [row for row in done.rows if row[column] not in ("", 0)]
    assert batch.filtered(None, []) == []
    with pytest.raises(ValueError, match="Filters must be"):
        batch.filtered(done, ["other"])


def test_a_stopped_batch_keeps_what_it_has(selector, rows_file, tmp_path):
    asked = iter([False, False, True])
    done = finished(selector, rows_file(5)[0], lambda: next(asked))
    assert done.stopped and len(done.rows) == 2 and "Stopped after 2 of 5" in done.told()
    (tmp_path / "ledger.jsonl").write_bytes(done.ledger)
    assert len({record.decision_id for record in read_ledger(tmp_path / "ledger.jsonl")}) == 2


def test_a_table_is_no_program():
    done = batch.Batch(1, [[1, "-q", "@x", 0.5, 0.5, "", 0, 0, "=1+1", ""]])
    head, row = csv.reader(io.StringIO(batch.table_file(done).decode()))
    assert tuple(head) == batch.HEADERS and row[:4] == ["1", "'-q", "'@x", "0.5"] and row[8] == "'=1+1"


def test_a_table_is_read_again_as_it_was():
    rows = [[1, 'q "quoted"\r\nand, more\r', "x\ny", 0.5, 0.25, "", 0, 2, "a\rb", "note"]]
    head, row = csv.reader(io.StringIO(batch.table_file(batch.Batch(1, rows)).decode(), newline=""))
    assert tuple(head) == batch.HEADERS and row == [str(cell) for cell in rows[0]]


def test_what_was_cut_or_split_is_noted(selector, tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text('{"question": "' + "why " * 200 + '?", "candidates": ["a", "b"]}\n')
    (row,) = finished(selector, file).rows
    assert len(row) == len(batch.HEADERS) and "only its first" in row[batch.HEADERS.index("notes")]


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.jsonl", b"not json\n", r"^a\.jsonl, line 1: this is not JSON"),
        ("a.jsonl", b'{"question": "q"}\n', r"^a\.jsonl, line 1: the format is unknown"),
        ("a.jsonl", b"", r"^a\.jsonl: it holds no rows"),
        ("a.jsonl", b"\xff\xfe", r"^a\.jsonl, line 1: byte 0"),
        ("a.jsonl", b"\x1f\x8b\x08", "is compressed"),
        ("a.parquet", b"PAR1", "named .jsonl or .json"),
        ("a.jsonl", b'{"question": "q", "candidates": ["x"]}\n' * 101, "more than 100 rows"),
        ("a.jsonl", b" " * 2_000_001, "larger than 2 MB"),
        ("a.json", b'[{"question": "q", "candidates": ["x' + b'", "x' * 128 + b'"]}]', "Row 1 has 129 candidates"),
        ("a.json", b'[{"question": "q", "candidates": ["' + b"x" * 100_001 + b'"]}]', "100,001 characters"),
        ("a.json", b'[{"question": "' + b"q" * 1001 + b'", "candidates": ["x"]}]', "Row 1: The question has 1,001"),
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path, name, content, expected):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=expected) as caught:
        uploads.read_batch(str(file), "sentence")
    assert str(tmp_path) not in str(caught.value)


def test_one_row_of_a_file(rows_file, tmp_path):
    file, rows = rows_file(3)
    question, passages, count = uploads.read_row(str(file), 2)
    assert question == rows[1]["question"] and count == 3
    assert [text for _, text in passages] == [candidate["text"] for candidate in rows[1]["candidates"]]
    for number in (0, 4, 1.5, None):
        with pytest.raises(ValueError, match="from 1 to 3"):
            uploads.read_row(str(file), number)
    hotpot = tmp_path / "h.json"
    hotpot.write_text('[{"_id": "a", "question": "q", "context": [["T", ["One.", " Two."]], ["U", ["Three."]]]}]')
    assert uploads.read_row(str(hotpot), 1)[1] == (("T", "One. Two."), ("U", "Three."))
    hotpot.write_text('[{"question": "q", "candidates": ["' + '", "'.join("x" * 33) + '"]}]')
    with pytest.raises(ValueError, match="Row 1: There are more than 32"):
        uploads.read_row(str(hotpot), 1)
    for wrong in (None, ""):
        with pytest.raises(ValueError, match="no file"):
            uploads.read_row(wrong, 1)
    with pytest.raises(ValueError, match="level must be"):
        uploads.read_file(str(file), "word")
