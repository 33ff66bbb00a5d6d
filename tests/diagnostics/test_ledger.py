"""The ledger: what a record holds, files that survive a kill, and a replay that finds what was changed."""

import copy
import json
import math
import os
import pickle
import signal
from datetime import date

import numpy as np
import pytest
import torch

from warrant_hf.data.schema import DataError
from warrant_hf.diagnostics import (
    LedgerRecord,
    LedgerWriter,
    describe_model,
    ledger_records,
    read_ledger,
    replay,
    rescore,
    write_parquet,
)
from warrant_hf.diagnostics.ledger_files import ledger_features
from warrant_hf.diagnostics.ledger_schema import ledger_record, text_digest

QUESTION = "where was ada\u2028 born?"
PASSAGES = [
    {
        "id": 5,
        "text": "ada was born in york.",
        "title": "ada",
        "source": {"file": "a", "page": 3},
        "effective_time": date(2020, 1, 2),
        "extraction_method": "ocr\x85",
    },
    "york is a city.",
    {
        "text": "the thames is a river.",
        "source": "é\u2029 \U0001f469\u200d\U0001f4bb",
        "score": 99,
        "log_precision": 3.0,
    },
    {"text": " York  is a CITY."},
    {"text": "york is a city.", "duplicate_cluster": "c1"},
]


@pytest.fixture(scope="module")
def facts(tiny_model):
    return describe_model(tiny_model)


@pytest.fixture(scope="module")
def result(tiny_model):
    return tiny_model.rank(QUESTION, PASSAGES)


@pytest.fixture
def records(result, facts):
    return ledger_records(result, PASSAGES, facts, question_ids=7, top_k=2)


@pytest.fixture(scope="module")
def base_model(tiny_model):
    from warrant_hf import WarrantEncoderForEvidenceSelection

    config = copy.deepcopy(tiny_model.config)
    config.variant = "base"
    torch.manual_seed(0)
    model = WarrantEncoderForEvidenceSelection(config).eval()
    model.processor = tiny_model.processor
    return model


def synthetic(decisions, size=8, seed=0):
    """Records of made-up decisions that replay without a difference."""
    random = np.random.default_rng(seed)
    text = dict(question_sha256="q", text_sha256="t", weights_sha256="w", reader="r", variant="pair", dtype="float32")
    fixed = dict(beta=1.1, bias=-0.1, mass_floor=1e-9, mass_scale=0.7, mass_bias=0.6, rule="top_k", top_k=2)
    fixed |= dict(schema_version="1.0", warrant_hf="0", revoked=False, record_count=size, candidate_count=size)
    for number in range(decisions):
        attention, permission = random.dirichlet(np.ones(size)), random.uniform(0.05, 1, size)
        effective = attention * permission
        score = 1.1 * np.log(size * effective) - 0.1
        rank = np.argsort(np.argsort(-score)) + 1
        mass = float(effective.sum())
        for at in range(size):
            yield LedgerRecord(
                record_id=f"{number:032x}/{at}",
                decision_id=f"{number:032x}",
                index=at,
                attention=float(attention[at]),
                permission=float(permission[at]),
                effective=float(effective[at]),
                contribution_norm=float(effective[at]),
                score=float(score[at]),
                probability=1 / (1 + math.exp(-score[at])),
                rank=int(rank[at]),
                selected=bool(rank[at] <= 2),
                mass=mass,
                answerability=1 / (1 + math.exp(-(0.7 * math.log(mass) + 0.6))),
                **text,
                **fixed,
            )


def written(path, records):
    with LedgerWriter(path) as ledger:
        ledger.append(records)
    return path


# --- records ----------------------------------------------------------------------------------------------------


def test_a_record_holds_what_the_model_gave_and_what_the_caller_said(tiny_model, result, records):
    by_index = {item["index"]: item for item in result["evidence"]}
    assert [record.index for record in records] == [0, 1, 2, 3, 4]
    for record in records:
        item = by_index[record.index]
        for name in ("attention", "permission", "effective", "score", "probability", "rank"):
            assert getattr(record, name) == item[name]
        assert record.selected == (item["rank"] <= 2)
        assert record.record_id == f"{record.decision_id}/{record.index}"
        assert record.mass == result["mass"] and record.authorises is False
        assert record.relevance_logit is record.log_precision is record.precision_clipped is record.written_at is None
    first = records[0]
    assert first.question_id == "7" and first.question_sha256 == text_digest(QUESTION)
    assert first.candidate_id == "5" and first.text_sha256 == text_digest("ada was born in york.")
    assert first.title_sha256 == text_digest("ada") and records[1].title_sha256 is None
    assert first.source == '{"file": "a", "page": 3}' and first.effective_time == "2020-01-02"
    assert records[1].source is None and records[2].source == PASSAGES[2]["source"]
    assert first.model_id == tiny_model.name_or_path and first.model_revision is None
    assert QUESTION not in first.model_dump_json()


def test_half_a_surrogate_pair_can_be_written(tmp_path, tiny_model, facts):
    passages = [{"text": "x", "source": "a\ud800b", "extraction_method": ["\udc00"]}]
    path = written(tmp_path / "l", ledger_records(tiny_model.rank("a?", passages), passages, facts))
    (record,) = read_ledger(path)
    assert record.source == "a\\ud800b" and record.extraction_method == '["\\udc00"]'


def test_equal_texts_share_a_cluster_unless_one_is_given(records):
    clusters = [record.duplicate_cluster for record in records]
    assert clusters[0] is clusters[2] is None
    assert clusters[1] == clusters[3] == f"text-sha256:{text_digest('york is a city.')}"
    assert clusters[4] == "c1"


def test_the_weights_have_a_digest(tiny_model, facts):
    same, other = copy.deepcopy(tiny_model), copy.deepcopy(tiny_model).to(torch.bfloat16)
    assert describe_model(same)["weights_sha256"] == facts["weights_sha256"]
    with torch.no_grad():
        same.readout.gate.score.bias += 1e-6
    digests = {
        facts["weights_sha256"],
        describe_model(same)["weights_sha256"],
        describe_model(other)["weights_sha256"],
    }
    assert len(digests) == 3
    with pytest.raises(ValueError, match="model is a Linear, not an evidence selector"):
        describe_model(torch.nn.Linear(1, 1))


def test_signals_are_not_taken_from_a_passage(result, facts):
    own = [{}, {"relevance_logit": 1.5}, {"log_precision_raw": 5.0, "log_precision": 4.0}, {}, {}]
    own[2] |= {"precision_bound": 4.0, "precision_clipped": True}
    records = ledger_records(result, PASSAGES, facts, signals=own)
    assert records[1].relevance_logit == 1.5 and records[1].log_precision is None
    assert records[2].log_precision_raw == 5.0 and records[2].precision_clipped is True
    assert not replay(records).differences
    own[2] |= {"log_precision": 5.0, "precision_clipped": False}
    found = replay(ledger_records(result, PASSAGES, facts, signals=own)).differences
    assert [difference.field for difference in found] == ["log_precision", "precision_clipped"]


def test_rules(result, facts):
    plain = ledger_records(result, PASSAGES, facts)
    assert {record.selected for record in plain} == {record.rule for record in plain} == {None}
    at = sorted(record.probability for record in plain)[2]
    chosen = [record for record in ledger_records(result, PASSAGES, facts, threshold=at) if record.selected]
    assert sorted(record.index for record in chosen) == [r.index for r in plain if r.probability >= at]
    assert not any(record.selected for record in ledger_records(result, PASSAGES, facts, top_k=0))


@pytest.mark.parametrize("way, candidates", [("gate", 5), ("mask", 4)])
def test_revoked_passages(tiny_model, facts, way, candidates):
    result = tiny_model.rank(QUESTION, PASSAGES, revoke=[1], revoke_by=way)
    records = ledger_records(result, PASSAGES, facts, revoke_by=way, top_k=5)
    assert {record.candidate_count for record in records} == {candidates}
    assert [record.revoke_by for record in records] == [None, way, None, None, None]
    assert [record.selected for record in records] == [True, False, True, True, True]
    assert not replay(records).differences
    again = rescore(records, tiny_model, [(QUESTION, PASSAGES)])
    assert again.decisions == 1 and not again.differences
    wrong = ledger_records(result, PASSAGES, facts, revoke_by="mask" if way == "gate" else "gate")
    assert {difference.field for difference in replay(wrong).differences} == {"score"}


def test_a_model_without_a_path_has_nulls(base_model):
    results = base_model.rank_batch([QUESTION] * 2, [PASSAGES, PASSAGES[:1]])
    records = ledger_records(results, [PASSAGES, PASSAGES[:1]], base_model, question_ids=["a", None], threshold=0.5)
    assert len(records) == 6 and len({record.decision_id for record in records}) == 2
    for name in ("attention", "effective", "contribution_norm", "mass", "beta", "mass_floor"):
        assert {getattr(record, name) for record in records} == {None}
    assert not replay(records).differences
    changed = records[0].model_copy(update={"probability": 0.1234})
    assert "probability" in {difference.field for difference in replay([changed, *records[1:]]).differences}


def test_the_pipeline_gives_records(tiny_model):
    from warrant_hf import EvidenceSelectionPipeline

    pipe = EvidenceSelectionPipeline(tiny_model)
    assert not replay(ledger_records(pipe(QUESTION, PASSAGES), PASSAGES, pipe.model)).differences


def test_a_bfloat16_encoder_with_equal_passages(tiny_model_dir):
    from warrant_hf import AutoModelForEvidenceSelection

    model = AutoModelForEvidenceSelection.from_pretrained(tiny_model_dir, dtype=torch.bfloat16).eval()
    texts = [f"ada {n % 7} was born in york {'x ' * (n % 5)}" for n in range(40)]
    records = ledger_records(model.rank(QUESTION, texts), texts, model)
    assert records[0].dtype == "bfloat16" and not replay(records).differences


@pytest.mark.parametrize(
    "change, message",
    [
        ({"passages": PASSAGES[:4]}, "result 0 holds 5 of 4 passages; rank without top_k"),
        ({"passages": PASSAGES[::-1]}, "passage 0 is not the one that was ranked"),
        ({"passages": [{**PASSAGES[0], "source": {1}}, *PASSAGES[1:]]}, "passage 0: source is a set .* give a text"),
        ({"threshold": 0.5, "top_k": 1}, "two rules; give one"),
        ({"threshold": 1.5}, "threshold is 1.5; give a probability"),
        ({"threshold": True}, "threshold is True"),
        ({"top_k": -1}, "top_k is -1; give a whole number"),
        ({"revoke_by": "x"}, "revoke_by is 'x'; choose"),
        ({"signals": [{}]}, "signals has 1 entries for 5 passages"),
        ({"signals": [{"permission": 1.0}, {}, {}, {}, {}]}, "signals: 'permission' is unknown; give any of"),
        ({"signals": [{"relevance_logit": math.nan}, {}, {}, {}, {}]}, "relevance_logit is nan, but input should be"),
    ],
)
def test_what_is_no_record_is_one_sentence(result, facts, change, message):
    with pytest.raises(ValueError, match=message):
        ledger_records(result, **({"passages": PASSAGES, "model": facts} | change))


# --- files ------------------------------------------------------------------------------------------------------


def test_lines_give_the_same_records_again(tmp_path, records):
    path = written(tmp_path / "l.jsonl", records[:2])
    written(path, iter(records[2:]))
    again = list(read_ledger(path))
    assert all(record.written_at.endswith("+00:00") for record in again)
    assert [
        record.model_copy(update={"written_at": None}) for record in again
    ] == records  # each float to the last bit
    assert path.read_bytes().isascii() and len(path.read_bytes().splitlines()) == 5
    copied = list(read_ledger(written(tmp_path / "copy.jsonl", again)))
    assert copied == again  # a record that was written before keeps its time


def test_parquet_gives_the_same_records_again(tmp_path, records):
    import datasets

    strange = ledger_record({**records[0].model_dump(), "schema_version": "1.7", "later": {"a": [1, None]}}, where="x")
    all_records = [*records, strange.model_copy(update={"notes": ["one", "two"]})]
    assert write_parquet(iter(all_records), tmp_path / "l.parquet") == 6
    assert list(read_ledger(tmp_path / "l.parquet")) == all_records
    assert os.listdir(tmp_path) == ["l.parquet"]
    table = datasets.Dataset.from_parquet(str(tmp_path / "l.parquet"), cache_dir=str(tmp_path / "cache"))
    assert table.features == ledger_features()
    assert table.features["log_precision"].dtype == "float64" and table.features["authorises"].dtype == "bool"
    assert table["score"][:5] == [record.score for record in records]
    with pytest.raises(ValueError, match="there are no records to write"):
        write_parquet([], tmp_path / "l.parquet")
    assert len(list(read_ledger(tmp_path / "l.parquet"))) == 6
    content = (tmp_path / "l.parquet").read_bytes()
    (tmp_path / "l.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="l.parquet: the Parquet file is damaged .*; export it again"):
        list(read_ledger(tmp_path / "l.parquet"))


def test_versions(records):
    values = records[0].model_dump()
    newer = ledger_record({**values, "schema_version": "1.12", "later": 3}, where="x")
    assert newer.later == 3 and newer.schema_version == "1.12"
    for version, message in {
        "2.0": "x: `schema_version` is '2.0', and this version of warrant-hf reads 1.x; update warrant-hf",
        "0.9": "reads 1.x; write the ledger again",
        "one": '`schema_version` is "one"; write major.minor, such as 1.1',
        1.0: "`schema_version` is 1.0; write major.minor",
    }.items():
        with pytest.raises(DataError, match=message):
            ledger_record({**values, "schema_version": version, "score": "of another kind"}, where="x")


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "l.jsonl, line 2: this is not JSON"),
        ("[1]", "line 2: it has no `schema_version`, so it is no ledger record"),
        ({"score": "high"}, 'line 2: `score` is "high", but input should be a valid number'),
        ({"score": math.nan}, "line 2: this is not JSON .NaN is no JSON number"),
        ({"index": -1}, "`index` is -1, but input should be greater than or equal to 0"),
        ({"rank": 10**400}, "`rank` is 1000"),
        ({"selected": 1}, "`selected` is 1, but input should be a valid boolean"),
        ({"authorises": True}, "`authorises` is true, but a ledger record authorises nothing; write false"),
        ({"question_sha256": None, "reader": None}, "`question_sha256` is null, but .* .1 more in this record"),
    ],
)
def test_a_damaged_line_is_one_sentence(tmp_path, records, line, message):
    path = written(tmp_path / "l.jsonl", records[:1])
    line = line if isinstance(line, str) else json.dumps({**records[1].model_dump(), **line})
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message) as error:
        list(read_ledger(path))
    assert "\n" not in str(error.value)


def test_a_missing_field_is_named(records):
    values = records[0].model_dump()
    del values["score"]
    with pytest.raises(DataError, match="x: the field `score` is missing"):
        ledger_record(values, where="x")


def test_a_torn_last_line_is_dropped_wherever_it_was_cut(tmp_path, records):
    path = written(tmp_path / "l.jsonl", records[:2])
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in [*range(start + 1, len(whole) - 1, 97), len(whole) - 2]:
        path.write_bytes(whole[:cut])
        notes = []
        assert [record.index for record in read_ledger(path, on_note=notes.append)] == [0]
        assert notes == [f"{path}, line 2: the last record is torn and is left out; its writer was interrupted."]
        with LedgerWriter(path, on_note=notes.append) as ledger:
            ledger.append(records[2:3])
        assert len(notes) == 2 and f"the last record was torn and has been dropped ({cut - start} bytes)" in notes[1]
        assert [record.index for record in read_ledger(path)] == [0, 2]
    path.write_bytes(whole[:-1])  # only the line feed is missing
    with LedgerWriter(path, on_note=notes.append) as ledger:
        ledger.append(records[2:3])
    assert [record.index for record in read_ledger(path)] == [0, 1, 2] and not notes[2:]


def test_a_torn_first_line_is_dropped(tmp_path, records):
    path = written(tmp_path / "l.jsonl", records[:1])
    path.write_bytes(path.read_bytes()[:40])
    assert list(read_ledger(path, on_note=lambda note: None)) == []
    written(path, records[1:2])
    assert [record.index for record in read_ledger(path)] == [1]


@pytest.mark.parametrize("content", [b"notes", b"notes\nmore", b'{"a": 1}', b'{"a": 1}\n', b"\n\nx", b"PAR1"])
def test_somebody_elses_file_is_left_alone(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    for _ in range(2):  # a refusal leaves no lock
        with pytest.raises(DataError, match="f is no ledger|no ledger record|not JSON"):
            LedgerWriter(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == content


def test_a_newer_ledger_is_not_written_to(tmp_path, records):
    (tmp_path / "l").write_text(json.dumps({**records[0].model_dump(), "schema_version": "2.0"}) + "\n")
    with pytest.raises(DataError, match="update warrant-hf"):
        LedgerWriter(tmp_path / "l")


def test_one_writer_at_a_time(tmp_path, records):
    (tmp_path / "link").symlink_to(tmp_path / "l.jsonl")
    with LedgerWriter(tmp_path / "l.jsonl") as ledger:
        for name in ("l.jsonl", "link"):
            with pytest.raises(ValueError, match="is being written by another process or writer"):
                LedgerWriter(tmp_path / name)
        ledger.append(records[:1])
        assert len(list(read_ledger(tmp_path / "l.jsonl"))) == 1  # a reader may come at any time
    assert len(list(read_ledger(written(tmp_path / "link", records[1:])))) == 5


def test_places_that_take_no_ledger(tmp_path):
    with pytest.raises(ValueError, match="is a folder or a device"):
        LedgerWriter(tmp_path)
    with pytest.raises(ValueError, match="does not exist; create it first"):
        LedgerWriter(tmp_path / "no" / "l")
    with pytest.raises(DataError, match="no such file"):
        list(read_ledger(tmp_path / "absent"))


def test_a_full_disk_leaves_whole_records(tmp_path, records, monkeypatch):
    path = tmp_path / "l.jsonl"
    with LedgerWriter(path) as ledger:
        ledger.append(records[:1])
        file = ledger._file

        class Full:
            def __getattr__(self, name):
                return getattr(file, name)

            def write(self, data):
                if len(data) < 500:
                    raise OSError(28, "No space left on device")
                return file.write(data[:300])

        ledger._file = Full()
        with pytest.raises(OSError, match="No space left on device.*l.jsonl"):
            ledger.append(records[1:])
        assert [record.index for record in read_ledger(path)] == [0] and path.read_bytes().endswith(b"\n")
        ledger._file = file
        ledger.append(records[1:])
    assert len(list(read_ledger(path))) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("after", [0, 1, 40])
def test_killing_the_writer_loses_at_most_the_last_record(tmp_path, records, after):
    path, (ready, say) = tmp_path / "l.jsonl", os.pipe()
    child = os.fork()
    if not child:
        try:
            with LedgerWriter(path) as ledger:
                os.write(say, b"o")
                for number in range(1_000_000):
                    ledger.append([records[0].model_copy(update={"index": number})])
                    os.write(say, b".")
        finally:
            os._exit(1)
    try:
        os.close(say)
        said = 0
        while said < after + 1:
            said += len(os.read(ready, after + 1 - said))
        with pytest.raises(ValueError, match="is being written by another process"):
            LedgerWriter(path)
    finally:
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    said += len(os.read(ready, 1_000_000))
    os.close(ready)
    held = [record.index for record in read_ledger(path, on_note=lambda note: None)]
    assert held == list(range(len(held))) and said - 1 <= len(held) <= said
    with LedgerWriter(path, on_note=lambda note: None) as ledger:
        ledger.append(records[:1])
    assert len(list(read_ledger(path))) == len(held) + 1


# --- replay -----------------------------------------------------------------------------------------------------


def test_what_the_model_gave_replays(tmp_path, records):
    found = replay(read_ledger(written(tmp_path / "l", records)))
    assert (found.records, found.decisions, found.differences, found.incomplete) == (5, 1, [], {})
    assert not replay(records[::-1]).differences  # in any order


@pytest.mark.parametrize(
    "change, fields",
    [
        ({"score": -0.1}, {"score", "probability"}),
        ({"attention": 0.9}, {"effective", "sum of attention"}),
        ({"permission": 0.01}, {"effective"}),
        ({"effective": 0.9}, {"effective", "contribution_norm", "score", "mass"}),
        ({"effective": None}, {"effective"}),
        ({"contribution_norm": 0.9}, {"contribution_norm"}),
        ({"probability": 0.123}, {"probability"}),
        ({"rank": 5}, {"rank", "selected"}),
        ({"selected": None}, {"selected"}),
        ({"mass": 2.0}, {"mass", "answerability"}),
        ({"answerability": 0.1}, {"answerability"}),
        ({"beta": 2.0}, {"beta", "score"}),
        ({"candidate_count": 3}, {"candidate_count", "score"}),
        ({"record_count": 4}, {"record_count"}),
        ({"weights_sha256": "0"}, {"weights_sha256"}),
        ({"question_sha256": "0"}, {"question_sha256"}),
        ({"record_id": "x/1"}, {"record_id"}),
        ({"rule": None}, {"rule"}),
        ({"top_k": None, "rule": None}, {"top_k", "rule", "selected"}),
    ],
)
def test_a_change_is_found_and_named(records, change, fields):
    at = next(record.index for record in records[1:] if record.rank in (1, 2))
    changed = [record.model_copy(update=change) if record.index == at else record for record in records]
    found = [d for d in replay(changed).differences if d.field != "rank" or "rank" in change]
    of_decision = {"sum of attention", "mass"}  # named with the first record, unless records disagree
    assert {d.field for d in found} - of_decision == fields - of_decision, list(map(str, found))
    assert of_decision & fields <= {d.field for d in found}
    assert {d.record_id for d in found if d.field not in of_decision} <= {changed[at].record_id}
    for difference in found:
        if difference.field in change and difference.record_id == changed[at].record_id:
            assert difference.recorded == change[difference.field]


def test_a_difference_is_a_sentence(records):
    changed = records[0].model_copy(update={"permission": 0.5, "effective": None, "contribution_norm": None})
    (found, *_) = replay([changed, *records[1:]]).differences
    assert str(found).startswith(f"{records[0].record_id}: effective is null, recomputed 0.")
    assert pickle.loads(pickle.dumps(found)) == found


def test_incomplete_and_doubled_decisions(records):
    found = replay(records[:3])
    assert found.incomplete == {records[0].decision_id: (3, 5)} and not found.differences
    found = replay([*records, records[1]])
    assert [(d.record_id, d.field) for d in found.differences] == [(records[1].record_id, "occurrences in the ledger")]
    with pytest.raises(ValueError, match="there are no records to replay"):
        replay([])


def test_a_difference_below_the_tolerance_is_none(records):
    changed = [records[0].model_copy(update={"permission": records[0].permission * (1 + 1e-4)}), *records[1:]]
    assert [difference.field for difference in replay(changed).differences] == ["effective"]
    assert not replay(changed, tolerance=1e-3).differences


def test_rescoring_finds_its_texts(tiny_model, records, facts):
    other = ["a", "b"]
    more = ledger_records(tiny_model.rank("a?", other), other, facts)
    texts = [("nobody's?", ["x"]), (QUESTION, PASSAGES), (QUESTION, PASSAGES[:2])]
    again = rescore([*records, *more[:1]], tiny_model, iter(texts))
    assert (again.decisions, again.without_texts, again.other_weights, again.differences) == (1, 1, 0, [])
    changed = copy.deepcopy(tiny_model)
    with torch.no_grad():
        changed.readout.bias += 1
    again = rescore([*records, *more], changed, [("a?", other), *texts])
    assert (again.decisions, again.other_weights) == (2, 2)
    assert {difference.field for difference in again.differences} == {"score", "probability"}
    assert len(again.differences) == 14


def test_many_records(tmp_path):
    path = written(tmp_path / "l", synthetic(600))
    found = replay(read_ledger(path))
    assert (found.records, found.decisions, found.differences) == (4800, 600, [])
    lines = path.read_bytes().split(b"\n")
    record = json.loads(lines[3333])
    lines[3333] = json.dumps({**record, "score": record["score"] + 1e-3}).encode()
    path.write_bytes(b"\n".join(lines))
    found = replay(read_ledger(path)).differences
    assert {(d.record_id, d.field) for d in found} == {(record["record_id"], f) for f in ("score", "probability")}


@pytest.mark.slow
def test_a_hundred_thousand_records(tmp_path):
    path = tmp_path / "l"
    with LedgerWriter(path) as ledger:
        for seed in range(25):
            ledger.append(r.model_copy(update=_renamed(r, seed)) for r in synthetic(500, seed=seed))
    assert replay(read_ledger(path)).records == 100_000
    assert write_parquet(read_ledger(path), tmp_path / "l.parquet") == 100_000
    assert not replay(read_ledger(tmp_path / "l.parquet")).differences


def _renamed(record, seed):
    decision = f"{seed}-{record.decision_id}"
    return {"decision_id": decision, "record_id": f"{decision}/{record.index}"}
