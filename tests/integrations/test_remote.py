"""A selector behind a server gives what it gives here, and takes and refuses the same arguments."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.conftest import character_tokenizer, tiny_backbone_config
from tests.serving.running import running
from warrant_hf import EvidenceProcessor, WarrantEncoderConfig, WarrantEncoderForEvidenceSelection
from warrant_hf.integrations.remote import RemoteSelector
from warrant_hf.integrations.remote_passages import sent

QUESTION = "where was ada born?"
KNOWN = {"id": "b", "seen": object(), "score": "mine", "rank": 3, "source": {"age": 2, "file": object()}}
PASSAGES = ["ada was born in york.", {"title": "york", "text": "york is a city.", **KNOWN}, "no"]
COLLIDING = [
    {"text": "ada was born in york.", "log_precision": "mine", "tokens": 57, "probability": 0.5, "id": 4},
    {"text": "york is a city.", "log_precision": 2.0, "input_log_precision": 3, "index": 9, "effective": None},
    {"text": "no", "input_score": 1, "score": 2, "tokens": ["x"], 5: "five", "\ud800": 1, "id": "\ud800"},
]
ODD = {"nan": math.nan, "inf": np.float32("inf"), "large": 10**5000, "ratio": Fraction(10**5000), "wait": "x"}


@pytest.fixture(scope="module")
def with_precision():
    """A selector that reads two numbers of each passage."""
    config = WarrantEncoderConfig(
        backbone_config=tiny_backbone_config(len(character_tokenizer())),
        readout_size=32,
        readout_heads=2,
        gate_size=16,
        precision_features=["age", "source.reliability"],
    )
    torch.manual_seed(0)
    model = WarrantEncoderForEvidenceSelection(config).eval()
    with torch.no_grad():  # far from the initial state, where all gates are equal
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.processor = EvidenceProcessor(character_tokenizer(), features=config.precision_features)
    return model


@pytest.fixture(scope="module")
def precise(with_precision):
    with running(with_precision) as client:
        yield RemoteSelector(str(client.base_url))


@pytest.fixture(scope="module")
def client(tiny_model):
    with running(tiny_model, api_key="schlüssel", max_candidates=5) as made:
        yield made


@pytest.fixture
def remote(client):
    return RemoteSelector(f"{client.base_url}/", api_key="schlüssel")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"revoke": [1]},
        {"revoke": {2, 1}, "revoke_by": "mask"},
        {"revoke": range(1, 3)},
        {"revoke": np.array([1, 1])},
        {"revoke": None, "top_k": np.int64(1)},
        {"top_k": 0},
        {"top_k": 7, "return_tokens": True},
    ],
)
@pytest.mark.parametrize("passages", [PASSAGES, COLLIDING, np.array(["york is a city.", "no", "b"]), ("a", "b", "c")])
def test_result_is_that_of_rank(remote, tiny_model, passages, settings):
    before = copy.copy(passages)
    assert remote.rank(QUESTION, passages, **settings) == tiny_model.rank(QUESTION, passages, **settings)
    assert all(left is right for left, right in zip(passages, before)) or isinstance(passages, np.ndarray)


def test_result_without_passages(remote, tiny_model):
    for settings in ({}, {"top_k": 2}, {"revoke_by": "mask"}):
        assert remote.rank(QUESTION, [], **settings) == tiny_model.rank(QUESTION, [], **settings)


@pytest.mark.parametrize("age", [3, np.int64(-5), np.float32(0.1), Fraction(1, 3), 10**12])
def test_result_of_a_selector_with_a_precision(precise, with_precision, age):
    itself = {"reliability": 1}
    itself["self"] = itself
    first = {"text": "ada was born in york.", "age": age, "source": {"reliability": np.float64(0.25), **ODD}, **ODD}
    second = {"text": "york is a city.", "age": 1, "source": itself, "log_precision": 2.0, "input_log_precision": 4}
    for settings in ({}, {"return_tokens": True}, {"revoke": [1], "revoke_by": "mask"}):
        expected = with_precision.rank(QUESTION, [first, second], **settings)["evidence"]
        found = precise.rank(QUESTION, [first, second], **settings)["evidence"]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(ours[name] is theirs[name] or ours[name] == theirs[name] for name in ours)


@pytest.mark.parametrize("age", [math.nan, math.inf, 10**39, True, "3", None])
def test_what_a_precision_cannot_use_is_refused_there_too(precise, with_precision, age):
    passages = ["a", {"text": "york is a city.", "age": age, "source": {"reliability": 1}}]
    passages[0] = {"text": "a", "age": 1, "source": {"reliability": 1}}
    for model in (with_precision, precise):
        with pytest.raises(ValueError, match=r"passages\[0\]\[1\].age is .*needs a finite number there"):
            model.rank(QUESTION, passages)


def test_only_text_title_and_usable_numbers_are_sent():
    given = {"text": "a", "source": {"reliability": 0.5, "name": "x", "at": object()}, "age": 3, "tags": ["b"]}
    assert sent(given, "it") == {"text": "a", "source": {"reliability": 0.5}, "age": 3}
    numbers = {"a": np.int64(3), "b": np.float16(0.5), "c": Fraction(1, 4), "wait": np.timedelta64(3, "D")}
    found = sent({"text": "a", "title": None, "flag": True, **numbers, **ODD, "\ud800": 1}, "it")
    assert found == {"text": "a", "a": 3, "b": 0.5, "c": 0.25}
    assert [type(value) for value in found.values()] == [int, float, float, str]


def test_dicts_within_dicts_have_an_end():
    circle = {"text": "a", "age": 1}
    circle["again"] = {"more": circle, "size": 2}
    assert sent(circle, "it") == {"text": "a", "age": 1, "again": {"size": 2}}
    deep = {"age": 0}
    for level in range(5_000):
        deep = {"age": level, "in": deep}
    found, levels = sent({"text": "a", "in": deep}, "it"), 0
    while "in" in found:
        found, levels = found["in"], levels + 1
    assert levels == 29 and "age" in found
    wide = {"age": 1}
    for _ in range(25):
        wide = {"left": wide, "right": wide}
    with pytest.raises(ValueError, match="it has more than 10,000 dicts within it; give the passage with those"):
        sent({"text": "a", "wide": wide}, "it")


def test_the_deepest_dict_that_is_sent_is_taken(remote, tiny_model):
    deep = {"age": 0}
    for level in range(40):
        deep = {"age": level, "in": deep}
    passages = [{"text": "york", "in": deep}]
    assert remote.rank(QUESTION, passages) == tiny_model.rank(QUESTION, passages)


@pytest.mark.parametrize(
    "question, passages, settings",
    [
        (QUESTION, "abc", {}),
        (QUESTION, None, {}),
        (QUESTION, (text for text in ["a"]), {}),
        (QUESTION, {"text": "a"}, {}),
        (QUESTION, ["a", " "], {}),
        (QUESTION, ["a", 3], {}),
        (QUESTION, ["a", {"text": "b", "title": 3}], {}),
        (QUESTION, ["a", {"text": "b", "title": "half \ud800"}], {}),
        (QUESTION, ["half \ud800"], {}),
        ("half \ud800", ["a"], {}),
        ("", [], {}),
        (None, ["a"], {}),
        (QUESTION, ["a"], {"revoke": "0"}),
        (QUESTION, ["a"], {"revoke": [1]}),
        (QUESTION, ["a"], {"revoke": [True]}),
        (QUESTION, ["a"], {"revoke": 0}),
        (QUESTION, ["a"], {"revoke_by": "wish"}),
        (QUESTION, ["a"], {"top_k": -1}),
        (QUESTION, ["a"], {"top_k": 1.0}),
    ],
)
def test_what_rank_refuses_is_refused_in_its_words(tiny_model, question, passages, settings):
    with pytest.raises(ValueError) as here:
        tiny_model.rank(question, passages, **settings)
    with pytest.raises(ValueError) as there:  # before anything is sent
        RemoteSelector("http://127.0.0.1:9").rank(question, passages, **settings)
    assert str(there.value) == str(here.value)


def test_progress_is_refused(remote):
    with pytest.raises(ValueError, match="progress is given, and a server does not tell how far it is; leave it out"):
        remote.rank(QUESTION, PASSAGES, progress=print)


def test_key_comes_from_the_environment(client, tiny_model, monkeypatch):
    monkeypatch.setenv("WARRANT_HF_API_KEY", "schlüssel")
    assert RemoteSelector(str(client.base_url)).rank(QUESTION, PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)
    monkeypatch.setenv("WARRANT_HF_API_KEY", "")
    with pytest.raises(OSError, match="answers 401: The API key is missing or wrong"):
        RemoteSelector(str(client.base_url)).rank(QUESTION, PASSAGES)


@pytest.mark.parametrize("key", ["", " ", "a\n", "a\x07b", "\ud800", b"abc", 3])
def test_a_key_that_cannot_be_sent_is_one_sentence_without_it(key, monkeypatch):
    with pytest.raises(ValueError, match="^api_key is no key: it is empty, has white space around it, or is no print"):
        RemoteSelector("http://127.0.0.1:9", api_key=key)
    monkeypatch.setenv("WARRANT_HF_API_KEY", "a b ")
    with pytest.raises(ValueError, match="^WARRANT_HF_API_KEY is no key"):
        RemoteSelector("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "url, settings, part",
    [
        ("http://", {}, "url is 'http://'; give the address of a server"),
        ("http://a\ud800", {}, r"url is 'http://a\\ud800'; give the address of a server"),
        ("http://a\nb", {}, r"url is 'http://a\\nb'; give the address of a server"),
        ("localhost:8080", {}, "url is 'localhost:8080'; give the address of a server"),
        ("http://a:1/rerank", {}, "without the route, 'http://a:1'"),
        ("http://a:1/base/v1/rerank/", {}, "without the route, 'http://a:1/base'"),
        ("http://a:1/select", {}, "without the route, 'http://a:1'"),
        ("http://a:1", {"timeout": 0}, "timeout is 0; give seconds, above 0"),
        ("http://a:1", {"timeout": math.nan}, "timeout is nan; give seconds"),
        ("http://a:1", {"timeout": math.inf}, "timeout is inf; give seconds"),
        ("http://a:1", {"timeout": None}, "timeout is None; give seconds"),
    ],
)
def test_a_wrong_setting_is_one_sentence(url, settings, part):
    with pytest.raises(ValueError, match=part):
        RemoteSelector(url, **settings)


def test_what_the_server_refuses_is_its_sentence(client, remote):
    with pytest.raises(OSError, match="answers 401: The API key is missing or wrong"):
        RemoteSelector(str(client.base_url), api_key="wrong").rank(QUESTION, PASSAGES)
    with pytest.raises(OSError, match="answers 413: passages has 6 entries; send at most 5"):
        remote.rank(QUESTION, ["a"] * 6)


def test_a_scheme_in_capitals_is_one(client, tiny_model):
    url = str(client.base_url).replace("http", "HTTP")
    assert RemoteSelector(url, api_key="schlüssel").rank(QUESTION, PASSAGES) == tiny_model.rank(QUESTION, PASSAGES)


def test_a_text_takes_no_more_room_than_its_bytes(tiny_model):
    passages = ["\u017c\u00f3\u0142w " * 50]
    with running(tiny_model, max_body_bytes=600) as client:  # escaped, the letters alone would be 900
        result = RemoteSelector(str(client.base_url)).rank(QUESTION, passages)
    assert result == tiny_model.rank(QUESTION, passages)
