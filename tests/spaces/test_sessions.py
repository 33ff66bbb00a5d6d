"""Nothing on the page is of another question than the one it names, in whatever order results come."""

import json
from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio")

from tests.spaces.conftest import PASSAGES, QUESTION  # noqa: E402
from warrant_hf.space import sessions  # noqa: E402
from warrant_hf.space.batch import filtered  # noqa: E402
from warrant_hf.space.page import Page  # noqa: E402
from warrant_hf.space.selectors import Selectors  # noqa: E402
from warrant_hf.space.sessions import Asked, Sessions  # noqa: E402

ONE, OTHER = (SimpleNamespace(session_hash=name) for name in ("one", "other"))
ROWS = [[passage.get("title", ""), passage["text"]] for passage in PASSAGES]
LATER = "where is york?"
UNCHANGED = gr.skip()


class Meanwhile:
    """A model while whose next ranking something else happens."""

    def __init__(self, model):
        self._model, self.happens = model, None

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __call__(self, **inputs):
        return self._model(**inputs)

    def rank(self, *values, **settings):
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return self._model.rank(*values, **settings)


@pytest.fixture
def model(tiny_model):
    return Meanwhile(tiny_model)


@pytest.fixture
def page(model, tiny_fid, tmp_path):
    return Page(Selectors({"tiny": model, "tiny fid": tiny_fid}), str(tmp_path))


def test_a_result_that_comes_after_that_of_a_later_question_is_not_shown(page, model):
    later = []
    model.happens = lambda: later.append(page.rank("tiny", LATER, ROWS, ONE))
    assert page.rank("tiny", QUESTION, ROWS, ONE) == UNCHANGED
    asked, number, about, *_ = later[0]
    assert asked.question == LATER and number == asked.number and LATER in about


def test_another_session_is_no_reason_to_wait(page, model):
    model.happens = lambda: page.rank("tiny", LATER, ROWS, OTHER)
    assert page.rank("tiny", QUESTION, ROWS, ONE)[0].question == QUESTION


def test_every_tab_says_what_it_is_about_and_the_comparison_waits_for_its_own(page):
    asked, number, *shown = page.rank("tiny", QUESTION, ROWS, ONE)
    assert sum("eg-asked" in str(value) and QUESTION in value and ">tiny<" in value for value in shown) == 3
    views = "tiny", "tiny, all gates open"
    assert page.compare(asked, number, ONE, *views, "Select") == UNCHANGED
    about, table = page.compare(asked, number, ONE, *views, "Compare")
    assert QUESTION in about and "Only the gates differ." in table


@pytest.mark.parametrize("name", ["files", "reset", "close", "change", "answers", "compare"])
def test_what_belongs_to_another_question_changes_nothing(page, name):
    reader = "tiny fid" if name == "answers" else "tiny"
    asked, number, *_ = page.rank(reader, QUESTION, ROWS, ONE)
    later, *_ = page.rank(reader, LATER, ROWS, ONE)
    settings = {
        "files": [],
        "reset": [],
        "compare": ["tiny", "tiny"],
        **dict.fromkeys(("close", "change", "answers"), [[0], [], [], [], *[0.5] * 32]),
    }[name]
    handler = getattr(page, name)
    assert handler(later, number, ONE, *settings) == UNCHANGED, "the browser still shows the one before"
    assert handler(asked, number, ONE, *settings) == UNCHANGED, "another was ranked meanwhile"
    with pytest.raises(gr.Error, match="Your session has ended"):
        handler(None, number, ONE, *settings)
    assert handler(later, later.number, ONE, *settings) != UNCHANGED
    assert handler(asked, number, OTHER, *settings) != UNCHANGED, "of a session that has shown nothing else"


def test_a_refused_question_leaves_the_one_before(page):
    asked, number, *_ = page.rank("tiny", QUESTION, ROWS, ONE)
    with pytest.raises(gr.Error, match="question is empty"):
        page.rank("tiny", " ", ROWS, ONE)
    assert page.reset(asked, number, ONE) != UNCHANGED


def test_sessions_are_forgotten_after_many_others(monkeypatch):
    monkeypatch.setattr(sessions, "_REMEMBERED", 2)
    known = Sessions()
    for name in "abca":
        assert known.show(SimpleNamespace(session_hash=name), known.next())
    assert list(known._shown) == ["c", "a"]
    assert known.shows(SimpleNamespace(session_hash="b"), 1) and not known.shows(SimpleNamespace(session_hash="a"), 1)


def test_a_refused_edit_says_so_where_the_change_would_stand(page):
    asked, number, *_ = page.rank("tiny", QUESTION, ROWS, ONE)
    learned = page._learned(asked)
    sliders = [*learned, *[0] * 28]
    for masked, swapped, said in (
        ([0, 1, 2, 3], [], "Every passage is masked: leave at least one"),
        ([], [0, 1, 2], "Choose two passages to swap"),
    ):
        _, told, table, gauge = page.change(asked, number, ONE, [], masked, [], swapped, *sliders)
        assert said in told and (table, gauge) == ("", "")


def test_asked_is_what_handlers_take():
    assert Asked(1, "tiny", QUESTION, ((None, "a"),)).list == ("tiny", QUESTION, ((None, "a"),))


def batch(page, file, chosen=()):
    return page.batch("tiny", None if file is None else str(file), "sentence", list(chosen), ONE)


def test_a_filter_ticked_while_a_batch_runs_holds_from_then_on(page, rows_file):
    file, rows = rows_file(6)
    for candidate in rows[0]["candidates"]:  # nothing is known to be missed without labels
        del candidate["label"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    *_, (whole, *_) = batch(page, file)
    kept = filtered(whole, ["evidence missed"])
    assert 0 < len(kept) < 6
    steps = batch(page, file)
    for _ in range(3):
        done, _, table, _, _ = next(steps)
    assert len(table.value["data"]) == len(done.rows) == 1
    page.filter(done, ["evidence missed"], ONE)
    *_, (done, _, table, _, _) = steps
    assert len(table.value["data"]) == len(kept) and len(done.rows) == 6
    assert len(page.filter(done, [], ONE)) == 6 and not page._filters


def test_a_batch_takes_the_one_before_away_and_names_its_file(page, rows_file, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nothing\n")
    steps = batch(page, bad)
    done, progress, table, files, stop = next(steps)
    assert done is None and progress == "" and not (table.visible or files.visible or stop.interactive)
    with pytest.raises(gr.Error, match="bad.jsonl, line 1"):
        next(steps)
    *_, (_, progress, *_) = batch(page, rows_file(2)[0])
    assert "<bdi>questions.jsonl</bdi>: Done: 2 of 2 questions." in progress
