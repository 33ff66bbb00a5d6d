import math
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio")

from tests.spaces.conftest import HOSTILE, PASSAGES, QUESTION  # noqa: E402
from warrant_hf.space import compare, intervene, render  # noqa: E402
from warrant_hf.space.inputs import MAX_PASSAGES, read_passage_list  # noqa: E402
from warrant_hf.space.intervene import Edit, read_edit  # noqa: E402
from warrant_hf.space.page import Page  # noqa: E402
from warrant_hf.space.selectors import Selectors  # noqa: E402
from warrant_hf.space.sessions import Asked  # noqa: E402

LISTED = read_passage_list(PASSAGES)
LEARNED = (None,) * len(LISTED)


@pytest.fixture(scope="module")
def selectors(tiny_model, tiny_fid):
    return Selectors({"tiny": tiny_model, "tiny fid": tiny_fid})


@pytest.mark.parametrize("name", ["tiny", "tiny fid"])
@pytest.mark.parametrize("permissions", [(None, 0.0, None, None), (0.25, None, 1.0, 0.0), (0.5,) * 4])
def test_scores_are_those_of_permission_override(selectors, overridden, name, permissions):
    result = selectors[name].rank(QUESTION, LISTED, permissions)
    output = overridden(selectors[name].model, QUESTION, PASSAGES, permissions)
    for item in result["evidence"]:
        at = item["index"]
        assert item["score"] == float(output.logits[0, at])
        for field in ("attention", "permission", "effective"):
            assert item[field] == float(output[field][0, at])
        assert item["revoked"] is (permissions[at] == 0)
        if permissions[at] is not None:
            assert {token["permission"] for token in item["tokens"]} == {permissions[at]}
    assert result["mass"] == float(output.mass[0])
    assert [item["rank"] for item in result["evidence"]] == [1, 2, 3, 4]
    scores = [item["score"] for item in result["evidence"]]
    assert scores == sorted(scores, reverse=True)


def test_what_a_slider_adds_to_a_logit_is_the_log_of_its_permission(selectors):
    edit = Edit((None, 0.25, None, None))
    outcome = intervene.apply(selectors["tiny"], QUESTION, LISTED, edit)
    beta = selectors["tiny"].model.readout.beta.item()
    learned = {item["index"]: item["permission"] for item in outcome["before"]["evidence"]}[1]
    effects = {change["index"]: change["effect"] for change in outcome["changes"]}
    assert effects[1]["total"] == pytest.approx(beta * math.log(0.25 / learned), abs=1e-4)
    assert effects[1]["permission"] == pytest.approx(effects[1]["total"], abs=1e-5)
    for at in (0, 2, 3):
        assert effects[at]["total"] == pytest.approx(0, abs=1e-5)
    said = intervene.told(outcome, edit, render.numbered_names(LISTED))
    item = {item["index"]: item for item in outcome["after"]["evidence"]}[1]
    assert f"Set “<bdi>Passage 2: york</bdi>”: permission {learned:.3f} → 0.250; probability of support" in said
    assert f"{item['probability']:.3f}, rank" in said and "Answerable " in said and "logit" not in said
    assert "The other passages keep their attention and score" in said
    assert "by attention" not in intervene.table(outcome, render.numbered_names(LISTED))


def test_passage_probability_and_rank_come_first_and_the_floor_is_explained(selectors):
    outcome = intervene.apply(selectors["tiny"], QUESTION, LISTED, Edit((None, 0.0, None, None)))
    shown = intervene.table(outcome, render.numbered_names(LISTED))
    heads = re.findall(r'<th scope="col">(.*?)</th>', shown)
    assert heads == ["passage", "probability", "rank", "permission", "logit", "change"]
    closed = {item["index"]: item for item in outcome["after"]["evidence"]}[1]
    assert f"−{-closed['score']:.4f} is the lowest score there is: permission 0." in shown
    opened = intervene.apply(selectors["tiny"], QUESTION, LISTED, Edit(LEARNED))
    assert "lowest" not in intervene.table(opened, render.numbered_names(LISTED))


def test_masking_is_leaving_out(selectors, tiny_model):
    outcome = intervene.apply(selectors["tiny"], QUESTION, LISTED, Edit(LEARNED, masked=(0,)))
    alone = tiny_model.rank(QUESTION, PASSAGES[1:])
    assert [item["score"] for item in outcome["after"]["evidence"]] == [item["score"] for item in alone["evidence"]]
    gone = outcome["changes"][-1]
    assert gone["index"] == 0 and gone["after"] is None and gone["effect"] is None
    for change in outcome["changes"][:-1]:
        effect = change["effect"]
        assert effect["total"] == pytest.approx(effect["permission"] + effect["attention"] + effect["list"])
        assert effect["permission"] == pytest.approx(0, abs=1e-4)  # a gate does not see the other passages
    assert "by attention" in intervene.table(outcome, render.numbered_names(LISTED))


def test_a_copy_shares_the_attention_and_a_swap_changes_nothing(selectors):
    outcome = intervene.apply(selectors["tiny"], QUESTION, LISTED, Edit((0.0, None, None, None), copied=(0,)))
    copy = outcome["changes"][-1]
    old = {item["index"]: item for item in outcome["before"]["evidence"]}
    assert copy["copy"] and copy["index"] == 0 and copy["after"]["permission"] == pytest.approx(old[0]["permission"])
    assert copy["after"]["attention"] < old[0]["attention"]
    swapped = intervene.apply(selectors["tiny"], QUESTION, LISTED, Edit(LEARNED, swapped=(0, 3)))
    assert [change["index"] for change in swapped["changes"]] == [3, 1, 2, 0]
    for change in swapped["changes"]:
        assert change["after"]["text"] == LISTED[change["index"]][1]
        assert change["effect"]["total"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"permissions": [1]}, "1 entries for 4"),
        ({"permissions": [1, 2, 1, 1]}, r"permissions\[1\]"),
        ({"permissions": [1, float("nan"), 1, 1]}, r"permissions\[1\]"),
        ({"permissions": [True, 1, 1, 1]}, r"permissions\[0\]"),
        ({"masked": [4]}, "masked must hold"),
        ({"masked": [0, 1, 2, 3]}, "Every passage is masked"),
        ({"copied": "0"}, "duplicated must be a list"),
        ({"swapped": [1]}, "two passages to swap"),
    ],
)
def test_edits_are_checked(changes, expected):
    with pytest.raises(ValueError, match=expected):
        read_edit(LISTED, **({"permissions": [], "masked": [], "copied": [], "swapped": []} | changes))


def test_copies_count_towards_the_limit(selectors):
    many = tuple((None, f"text {at}") for at in range(MAX_PASSAGES))
    with pytest.raises(ValueError, match="more than 32"):
        intervene.apply(selectors["tiny"], QUESTION, many, Edit((None,) * MAX_PASSAGES, copied=(0,)))


def test_the_answer_follows_the_gates(selectors, tiny_fid, overridden):
    import torch

    permissions = (0.0, None, 0.0, 1.0)
    assert selectors["tiny fid"].answer(QUESTION, LISTED) == tiny_fid.answer(QUESTION, PASSAGES)["answer"]
    values = torch.tensor([[math.nan if value is None else value for value in permissions]])
    inputs = tiny_fid.processor([QUESTION], [PASSAGES])
    tokens = tiny_fid.generate(**inputs, permission_override=values, max_new_tokens=32)
    expected = tiny_fid.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0].strip()
    assert selectors["tiny fid"].answer(QUESTION, LISTED, permissions) == expected


def test_all_gates_open_is_override_1_and_differences_are_named(selectors, overridden):
    assert selectors.views == ("tiny", "tiny, all gates open", "tiny fid", "tiny fid, all gates open")
    learned = selectors.view("tiny", QUESTION, LISTED)
    opened = selectors.view("tiny, all gates open", QUESTION, LISTED)
    output = overridden(selectors["tiny"].model, QUESTION, PASSAGES, (1.0,) * 4)
    assert {item["index"]: item["score"] for item in opened["evidence"]} == dict(enumerate(output.logits[0].tolist()))
    twins = {item["index"]: item for item in opened["evidence"]}
    for item in learned["evidence"]:
        marked = compare.differences(item, twins[item["index"]])
        assert ("permission" in marked) == (1 - item["permission"] >= 0.2)
        assert ("rank" in marked) == (item["rank"] != twins[item["index"]]["rank"])
    same = compare.side_by_side(learned, learned, ("tiny", "tiny"))
    assert "0 of 4 passages differ." in same and 'class="eg-differs"' not in same
    assert "attention, A" in same and "Passage 2: york" in same


def test_a_comparison_says_which_finds_enough_only_where_that_is_calibrated(selectors):
    learned = selectors.view("tiny", QUESTION, LISTED)
    poor, rich = learned | {"answerability": 0.06}, learned | {"answerability": 0.763}
    fitted = {"questions": 398, "size": 8}
    both = compare.side_by_side(poor, rich, ("a", "b"), (fitted, fitted), only_gates=True)
    said = "A: not enough evidence (answerable 0.06). B: enough evidence (answerable 0.76). Only the gates differ."
    assert said in both and both.count("left:50.0%") == 2
    opened = selectors.view("tiny, all gates open", QUESTION, LISTED) | {"answerability": 0.763}
    both = compare.side_by_side(poor, opened, ("a", "b"), (fitted, fitted))
    assert "B: every gate is open, so answerable 0.76 tells of attention alone, not of evidence." in both
    one = compare.side_by_side(poor, rich, ("a", "b"), (None, fitted))
    assert "A: answerable 0.06, which is not calibrated. B: enough evidence" in one
    assert one.count("left:50.0%") == 1 and "Only the gates" not in one


def test_the_page_knows_what_differs_between_two_views(selectors, tmp_path):
    page = Page(selectors, str(tmp_path))
    asked = Asked(1, "tiny", QUESTION, LISTED), 1, SimpleNamespace(session_hash="a")
    assert "Only the gates differ." in page.compare(*asked, "tiny", "tiny, all gates open")[1]
    assert "Only the gates differ." not in page.compare(*asked, "tiny", "tiny fid")[1]
    assert "Only the gates differ." not in page.compare(*asked, "tiny", "tiny")[1]


@pytest.mark.parametrize("closed", [(1,), (0, 3), (2, 4)])
def test_equal_passages_rank_as_in_rank_whatever_is_closed(selectors, tiny_model, closed):
    texts = ["low tide was formed in bergen.", "leeds is a city.", *["low tide was formed in bergen."] * 3]
    passages = read_passage_list(texts)
    ours = selectors["tiny"].rank(QUESTION, passages, tuple(0.0 if at in closed else None for at in range(5)))
    theirs = tiny_model.rank(QUESTION, texts, revoke=list(closed))
    assert [item["index"] for item in ours["evidence"]] == [item["index"] for item in theirs["evidence"]]


@pytest.mark.parametrize("name", ["other", "../tiny", "", 3, None, "tiny, all gates open, all gates open"])
def test_only_models_of_the_allow_list(selectors, name):
    with pytest.raises(ValueError, match="model must be one of: tiny"):
        selectors.view(name, QUESTION, LISTED)
    with pytest.raises(ValueError, match="model must be one of: tiny"):
        selectors[name]


def test_names_in_tables_are_escaped(selectors):
    hostile = read_passage_list([{"title": HOSTILE, "text": HOSTILE}, "x"])
    edit = Edit((0.0, None), copied=(0,))
    outcome = intervene.apply(selectors["tiny"], HOSTILE, hostile, edit)
    names = render.numbered_names(hostile)
    shown = intervene.told(outcome, edit, names) + intervene.table(outcome, names)
    shown += compare.side_by_side(outcome["before"], outcome["before"], ("a", "b"))
    assert "<img" not in shown and "<script" not in shown and "&lt;img" in shown


class Counted:
    """A model that counts how often it ranks."""

    def __init__(self, model):
        self._model, self.ranked = model, 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def rank(self, *values, **settings):
        self.ranked += 1
        return self._model.rank(*values, **settings)


def test_a_question_is_read_once_for_all_tabs(tiny_model, tmp_path):
    counted = Counted(tiny_model)
    page = Page(Selectors({"tiny": counted}), str(tmp_path))
    rows = [[passage.get("title", ""), passage["text"]] for passage in PASSAGES]
    request = SimpleNamespace(session_hash="a")
    asked, number, *_ = page.rank("tiny", QUESTION, rows, request)
    page.compare(asked, number, request, "tiny", "tiny")
    page.files(asked, number, request)
    assert counted.ranked == 1
