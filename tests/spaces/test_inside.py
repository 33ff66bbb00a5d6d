import io
import json
from xml.etree import ElementTree

import pytest

pytest.importorskip("gradio")
pytest.importorskip("matplotlib")

from PIL import Image  # noqa: E402

from tests.spaces.conftest import HOSTILE, QUESTION  # noqa: E402
from warrant_hf.space import figure, inside, render  # noqa: E402
from warrant_hf.space.inputs import read_passage_list  # noqa: E402
from warrant_hf.space.verdicts import verdict  # noqa: E402

TEXTS = [{"title": "York", "text": "York is a city,  in the north."}, {"text": "second\ntext"}]


def test_pieces_spell_the_passages_and_values_fit_the_scale(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    top = inside.highest(result)
    for item in result["evidence"]:
        for field in ("title", "text"):
            pieces = inside.pieces(item, field)
            assert "".join(text for text, _ in pieces) == (item[field] or "")
        assert all(
            0 <= inside.strength(token, name) <= top for token in item["tokens"] for name in ("attention", "effective")
        )
    shown = inside.highlights(result)
    assert shown.count("<section") == 3 and "--s:55.0" in shown  # the darkest token


def test_cards_say_what_read_and_may_count_stand_for(tiny_model):
    shown = render.cards(tiny_model.rank(QUESTION, TEXTS))
    assert "here 1/2 = 0.50" in shown and "a permission of 0.5 or more" in shown
    assert shown.index("a permission of 0.5 or more") < shown.index("<ol")
    shown = render.cards(tiny_model.rank(QUESTION, [*TEXTS, "third", "fourth"]))
    assert shown.count("left:25.0%") == shown.count("left:50.0%") == 4  # an even share, and the permission


def test_a_passage_has_one_name_whatever_its_rank(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    last = result["evidence"][-1]
    name, number = render.passage_name(last), f"Passage {last['index'] + 1}"
    assert name.startswith(f"{number}: ") and name == render.numbered_names(read_passage_list(TEXTS))[last["index"]]
    assert f"rank 2</b><span>{number}</span>" in render.cards(result)
    assert f'<bdi>{name}</bdi> <span class="eg-note">rank 2</span>' in inside.heatmap(result)
    assert inside.highlights(result).count(f"<p>{number}. ") == 3


def test_the_gauge_answers_with_its_number_and_says_where_it_is_rough(tiny_model):
    result, fitted = tiny_model.rank(QUESTION, TEXTS), {"questions": 398, "size": 8}
    for value, said in {
        0.714: "Yes: answerable 0.71 is above 0.5.",
        0.06: "No: answerable 0.06 is below 0.5.",
        0.4996: "No: answerable 0.4996 is below 0.5.",
    }.items():
        assert said in render.gauge(result | {"answerability": value}, calibration=fitted)
    assert "This list has 2, so take it as rough." in render.gauge(result, calibration=fitted)
    assert "take it as rough" not in render.gauge(result, calibration=fitted | {"size": 2})


def test_the_legend_names_all_five_numbers():
    shown = render.legend()
    assert "<b>permission (the gate)</b>" in shown and shown.count("eg-swatch") == 4
    assert "<b>probability of support</b> = that a passage supports an answer" in shown and "eg-answer" in shown


def test_little_is_seen_and_told_apart_from_nothing(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    item = result["evidence"][0]
    for token, attention in zip(item["tokens"], (0.0, 1e-6, 0.9), strict=False):
        token["attention"] = attention
    shown = inside.highlights(result)
    assert 'style="--s:0.0" title="0.0000"' in shown and 'style="--s:6.0" title="under 0.0001"' in shown
    assert 'style="--s:55.0" title="0.9000"' in shown


def test_what_the_words_add_up_to_is_said_as_it_is(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    rest = max(item["attention"] - sum(token["attention"] for token in item["tokens"]) for item in result["evidence"])
    assert (
        rest > 0.001
        and f"less what the separators behind passages hold, here up to {rest:.3f}." in inside.highlights(result)
    )
    for item in result["evidence"]:
        for measure in ("attention", "effective"):
            item[measure] = sum(inside.strength(token, measure) for token in item["tokens"])
    shown = inside.highlights(result)
    assert "add up to those of their passage. Permissions" in shown


def test_attention_and_effective_share_a_scale(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    shown = inside.heatmap(result)
    assert all(shown.count(f"eg-in-{measure}") == 2 for measure in render.MEASURES)
    top = max(item["attention"] for item in result["evidence"])
    for item in result["evidence"]:
        share = 0 if item["effective"] < 5e-4 else 6 + 49 * item["effective"] / top
        assert f'eg-in-effective" style="--s:{share:.1f}"' in shown
        for measure in render.MEASURES:
            assert f">{item[measure]:.3f}</td>" in shown


def test_files_of_a_result_can_be_read_again(tiny_model):
    passages = [{"title": HOSTILE, "text": HOSTILE}, {"text": "\ufffe and \uffff and \x00"}, *TEXTS]
    result = tiny_model.rank(QUESTION, passages, return_tokens=True)
    picture = Image.open(io.BytesIO(figure.heatmap_file(result, "png")))
    assert picture.format == "PNG" and picture.width > 800
    texts = "".join(ElementTree.fromstring(figure.heatmap_file(result, "svg")).itertext())
    assert "attention" in texts and "York" in texts and "<img src=x" in texts
    assert json.loads(figure.result_file(result)) == result


def test_a_model_without_permission_says_so(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    for item in result["evidence"]:
        item |= {"attention": None, "permission": None, "effective": None, "tokens": []}
    result["mass"] = None
    assert "no attention" in inside.highlights(result) and "no attention" in inside.heatmap(result)
    assert render.headline(result) == "" and render.cards(result).count("none") == 6
    with pytest.raises(ValueError, match="no heatmap"):
        figure.heatmap_file(result, "png")


@pytest.mark.parametrize(
    "attention, permission, expected",
    [(0.5, 0.5, "counts"), (0.5, 0.49, "blocked"), (0.49, 0.5, "unread"), (0.1, 0.1, "aside"), (0.1, None, None)],
)
def test_verdicts(attention, permission, expected):
    found = verdict({"attention": attention, "permission": permission}, 2)
    assert (found and found[0]) == expected


@pytest.mark.parametrize("count", [*range(1, 33), 128])
def test_equal_passages_are_read_with_an_even_share(tiny_model, count):
    result = tiny_model.rank(QUESTION, ["ada was born in york."] * count)
    assert {verdict(item, count)[0] for item in result["evidence"]} <= {"counts", "blocked"}


def test_a_long_text_is_folded_and_not_cut(tiny_model):
    text = "a<b " * 200
    (passage,) = read_passage_list([text])
    shown = render.cards(tiny_model.rank(QUESTION, [passage[1]]))
    assert "<details>" in shown and shown.count("a&lt;b") == 200


def test_the_headline_names_what_is_read_and_may_count(tiny_model):
    result = tiny_model.rank(QUESTION, ["ada was born in york."] * 6)
    for item in result["evidence"]:
        item["permission"] = 0.4
    assert "No passage is read and may count." in render.headline(result)
    for item in result["evidence"]:
        item["permission"] = 0.6
    shown = render.headline(result)
    assert shown.count("“<bdi>Passage ") == 1 + 4 and "and 2 more." in shown
    result["evidence"][0]["attention"] = 1.0
    for item in result["evidence"][1:]:
        item["attention"] = 0.0
    assert "Read, and may count: “<bdi>Passage 1: ada was born in york.</bdi>”." in render.headline(result)
