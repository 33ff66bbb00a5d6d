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


def test_attention_and_effective_share_a_scale(tiny_model):
    result = tiny_model.rank(QUESTION, TEXTS, return_tokens=True)
    shown = inside.heatmap(result)
    assert shown.count("eg-in-mass") == 4 and shown.count("eg-in-permission") == 2
    for item in result["evidence"]:
        for measure in render.MEASURES:
            assert f">{item[measure]:.3f}</td>" in shown


def test_files_of_a_result_can_be_read_again(tiny_model):
    passages = [{"title": HOSTILE, "text": HOSTILE}, *TEXTS]
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


def test_a_long_text_is_folded_and_not_cut(tiny_model):
    text = "a<b " * 200
    (passage,) = read_passage_list([text])
    shown = render.cards(tiny_model.rank(QUESTION, [passage[1]]))
    assert "<details>" in shown and shown.count("a&lt;b") == 200
