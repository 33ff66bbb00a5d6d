"""What the three readers have in common: the same call gives the same kind of answer, whichever reads."""

import copy
import json

import pytest
import torch
from transformers import pipeline
from typer.testing import CliRunner

from warrant_hf import (
    AutoModelForEvidenceSelection,
    EvidenceCollator,
    EvidenceProcessor,
    EvidenceTrainer,
    EvidenceTrainingArguments,
)
from warrant_hf.diagnostics import ledger_records, replay
from warrant_hf_cli import app

READERS = ["encoder", "fid", "led"]
# For "led" all candidates lie in one window and see each other.
ALONE = ["encoder", "fid"]
QUESTION = "who wrote emma?"
PASSAGES = ["jane austen wrote emma.", {"title": "stone", "text": "an actress"}, "a longer passage about nothing", "d"]


def by_index(result):
    return sorted(result["evidence"], key=lambda item: item["index"])


def column(result, name):
    return torch.tensor([item[name] for item in by_index(result)])


@pytest.fixture(scope="module", params=READERS)
def model(request, reader):
    return reader(request.param)


def test_result(model):
    result = model.rank(QUESTION, PASSAGES, return_tokens=True)
    assert json.loads(json.dumps(result)) == result
    assert column(result, "attention").sum().item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(column(result, "effective"), column(result, "attention") * column(result, "permission"))
    assert result["mass"] == pytest.approx(column(result, "effective").sum().item(), abs=1e-6)
    assert all(item["tokens"] for item in result["evidence"])


def test_closed_gate_removes_that_term_and_no_other(model):
    before, after = model.rank(QUESTION, PASSAGES), model.rank(QUESTION, PASSAGES, revoke=[1])
    torch.testing.assert_close(column(after, "attention"), column(before, "attention"))
    expected = column(before, "effective")
    expected[1] = 0
    torch.testing.assert_close(column(after, "effective"), expected)
    others = [0, 2, 3]
    torch.testing.assert_close(column(after, "score")[others], column(before, "score")[others])
    assert by_index(after)[1]["score"] == pytest.approx(model.readout.lowest_logit(), rel=1e-5)


def test_masked_is_as_if_never_given(model):
    masked = model.rank(QUESTION, PASSAGES, revoke=[1], revoke_by="mask")
    without = model.rank(QUESTION, [PASSAGES[at] for at in (0, 2, 3)])
    kept = [item for item in by_index(masked) if not item["revoked"]]
    assert [item["score"] for item in kept] == [item["score"] for item in by_index(without)]
    assert masked["mass"] == without["mass"] and by_index(masked)[1]["attention"] == 0


def test_override_moves_the_score(model):
    batch = model.processor(QUESTION, PASSAGES)
    with torch.no_grad():
        learned = model(**batch)
        halved = model(**batch, permission_override=learned.permission / 2)
    torch.testing.assert_close(halved.permission, learned.permission / 2, rtol=1e-4, atol=1e-6)
    moved = learned.logits + model.readout.beta.detach() * torch.tensor(0.5).log()
    torch.testing.assert_close(halved.logits, moved, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (torch.zeros(4), r"torch.float32 \[4\]"),
        (torch.zeros(1, 3), r"torch.float32 \[1, 3\]"),
        (torch.zeros(1, 4, dtype=torch.long), r"torch.int64 \[1, 4\]"),
        ([[0.0, 0.0, 0.0, 0.0]], "a list"),
        (0.5, "a float"),
    ],
)
def test_override_of_another_kind(model, given, found):
    with pytest.raises(ValueError, match=rf"permission_override is {found}; give a float tensor \[1, 4\]"):
        model(**model.processor(QUESTION, PASSAGES), permission_override=given)


def test_override_outside_its_range(model):
    batch = model.processor(QUESTION, PASSAGES)
    with pytest.raises(ValueError, match="permission_override has 2; give 0 to 1, or NaN"):
        model(**batch, permission_override=torch.tensor([[2.0, 0.5, 0.5, float("nan")]]))


def test_accumulated_steps_give_the_gradient_of_one(reader, model, tmp_path):
    """The Trainer divides by the number of accumulated batches only for models that do not do so themselves."""
    row = {"question": QUESTION, "passages": PASSAGES, "labels": [1, 0, 0, 0]}
    norms = []
    for size, steps in ((4, 1), (1, 4)):
        copied = copy.deepcopy(model)
        for module in copied.modules():
            for name in ("p", "dropout", "dropout_rate", "attention_dropout", "activation_dropout"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
        arguments = EvidenceTrainingArguments(
            str(tmp_path / str(size)),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            max_steps=1,
            logging_steps=1,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = EvidenceTrainer(copied, arguments, train_dataset=[row] * 4, processing_class=model.processor)
        trainer.train()
        norms.append((trainer.state.log_history[0]["grad_norm"], trainer.state.log_history[0]["loss"]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_notes_name_the_position_in_the_input(model):
    long = "x " * (model.processor.max_length + 50)
    (note,) = model.rank(QUESTION, ["short", long], revoke=[0], revoke_by="mask")["notes"]
    assert note.startswith("Passage 1 has")


def test_a_row_does_not_depend_on_its_batch(model):
    alone = model.rank(QUESTION, PASSAGES[:2])
    together = model.rank_batch([QUESTION, "b?"], [PASSAGES[:2], PASSAGES * 5], batch_size=2)[0]
    torch.testing.assert_close(column(together, "score"), column(alone, "score"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALONE)
def test_order_of_passages_does_not_matter(reader, name):
    model = reader(name)
    there, back = model.rank(QUESTION, PASSAGES), model.rank(QUESTION, PASSAGES[::-1])
    torch.testing.assert_close(column(there, "score"), column(back, "score").flip(0), rtol=1e-4, atol=1e-4)


def test_one_passage_and_none(model):
    one = model.rank(QUESTION, PASSAGES[:1])
    assert one["evidence"][0]["attention"] == pytest.approx(1, abs=1e-6)
    assert one["mass"] == pytest.approx(one["evidence"][0]["permission"], abs=1e-6)
    none = model.rank(QUESTION, [])
    assert none["evidence"] == [] and none["mass"] == 0 and 0 <= none["answerability"] < one["answerability"]
    assert none["notes"] == ["No passage was left to read."]
    masked = model.rank(QUESTION, PASSAGES, revoke=range(4), revoke_by="mask")
    assert column(masked, "score").tolist() == pytest.approx([model.readout.lowest_logit()] * 4)
    assert masked["mass"] == 0 and json.loads(json.dumps(masked)) == masked
    batch = model.rank_batch([QUESTION] * 3, [PASSAGES, [], PASSAGES])
    assert [len(result["evidence"]) for result in batch] == [4, 0, 4]
    with pytest.raises(ValueError, match="question 1 is ''; give a text"):
        model.rank_batch([QUESTION, ""], [PASSAGES, []])


@pytest.mark.parametrize(
    ("name", "settings"), [("encoder", {}), ("fid", {}), ("led", {}), ("led", {"reading": "decoder"})]
)
def test_a_state_that_is_not_finite_is_an_error_and_no_low_score(reader, name, settings):
    model = reader(name, **settings)
    taken = "fourth".join("abcdefgh")  # a text with tokens of its own
    with torch.no_grad():
        token = model.processor.tokenizer(taken, add_special_tokens=False)["input_ids"][0]
        model.get_input_embeddings().weight[token] = float("nan")
    with pytest.raises(ValueError, match="not finite in torch.float32"):
        model.rank(QUESTION, [*PASSAGES, taken])


def test_progress(model):
    heard = []
    passages = [f"{text} " * 12 for text in ("jane", "emma", "austen")] * 6
    model.rank_batch([QUESTION] * 2, [passages] * 2, batch_size=1, progress=lambda *count: heard.append(count))
    totals = {total for _, total in heard}
    assert len(totals) == 1 and heard[-1] == (totals.pop(),) * 2
    assert [done for done, _ in heard] == sorted(done for done, _ in heard) and len(heard) >= 2


def test_pipeline(model, tmp_path):
    model.save_pretrained(tmp_path)
    pipe = pipeline("evidence-selection", model=str(tmp_path), device="cpu")
    assert pipe(question=QUESTION, passages=PASSAGES) == model.rank(QUESTION, PASSAGES)


def test_command_line(model, tmp_path):
    model.save_pretrained(tmp_path)
    texts = [text for text in PASSAGES if isinstance(text, str)]
    options = [part for text in texts for part in ("--passage", text)]
    done = CliRunner().invoke(app, ["select", "--model", str(tmp_path), "--question", QUESTION, "--json", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["evidence"] == model.rank(QUESTION, texts)["evidence"]


def test_save_and_load(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForEvidenceSelection.from_pretrained(tmp_path)
    assert type(loaded) is type(model) and loaded.processor.packing == model.processor.packing
    assert loaded.rank(QUESTION, PASSAGES) == model.rank(QUESTION, PASSAGES)
    files = {path.name for path in tmp_path.iterdir()}
    assert "model.safetensors" in files and not any(name.endswith((".bin", ".pt")) for name in files)


def test_ledger_has_the_same_fields(model):
    records = ledger_records(model.rank(QUESTION, PASSAGES), PASSAGES, model, threshold=0.5)
    assert len(records) == len(PASSAGES)
    empty = {name for name, value in records[0] if value is None}
    assert not empty & {"reader", "variant", "weights_sha256", "attention", "permission", "effective", "selected"}
    assert {record.reader for record in records} == {model.config.model_type}
    for record in records:
        assert record.attention * record.permission == pytest.approx(record.effective, abs=1e-6)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("variant", ["base", "open", "pair"])
def test_training_step_reaches_every_parameter(reader, name, variant):
    # Without answers to learn, nothing behind the last reading of a decoder is used.
    model = reader(name, variant=variant, **({"answer_weight": 1.0} if name == "fid" else {})).train()
    first = {"question": QUESTION, "passages": PASSAGES, "labels": [1, 0, 0, 0], "answer": "jane"}
    second = {"question": "b?", "passages": PASSAGES[:2], "labels": [0, 1], "answer": None}
    rows = [first | {"lists": [[0, 1, 2, 3], [2], [1, 3]]}, second | {"lists": [[0, 1], [1], [0]]}]
    loss = model(**EvidenceCollator(model.processor)(rows)).loss
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    idle = {key for key, gradient in gradients.items() if gradient is None}
    assert idle == set()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values() if gradient is not None)


@pytest.mark.parametrize("name", READERS)
def test_reading_power(reader, name):
    model, powered = reader(name), reader(name, reading_power=1.5)
    single, amplified = (m.rank(QUESTION, [PASSAGES[0]]) for m in (model, powered))
    assert single["evidence"][0]["attention"] == pytest.approx(amplified["evidence"][0]["attention"], abs=1e-5)
    # Of equal shares 1 / r, the L_p norm keeps r ** (1 - 1 / p) in sum (MAA, section 3).
    alike = [{"title": "t", "text": "jane austen wrote emma."}] * 4
    if name != "led":  # where the copies see each other they are no copies
        total = column(powered.rank(QUESTION, alike), "attention").sum().item()
        assert total == pytest.approx(4 ** (1 - 1 / 1.5), rel=1e-4)

    assert replay(ledger_records(powered.rank(QUESTION, PASSAGES), PASSAGES, powered)).differences == []


@pytest.mark.parametrize("name", READERS)
def test_precision_of_metadata(reader, name):
    model = reader(name, precision_features=["age", "source.reliability"], precision_bound=1.5)
    tokenizer, settings = model.processor.tokenizer, model.processor_settings()
    limits = {"max_length": model.processor.max_length, "max_question_tokens": 30}
    model.processor = EvidenceProcessor(tokenizer, **(settings | limits))
    passages = [{"text": f"passage {at}", "age": at / 2, "source": {"reliability": 1 - at / 10}} for at in range(4)]
    with torch.no_grad():
        model.readout.precision.score.fill_(0.7)
    result = model.rank(QUESTION, passages)
    assert all(-1.5 <= value <= 1.5 for value in column(result, "log_precision").tolist())
    with torch.no_grad():
        model.readout.precision.score.zero_()
        model.readout.precision.offset.zero_()
    plain = model.rank(QUESTION, passages)
    assert set(column(plain, "log_precision").tolist()) == {0.0}
    assert not torch.allclose(column(plain, "attention"), column(result, "attention"))
    (record, *_) = ledger_records(result, passages, model)
    assert (
        record.log_precision == pytest.approx(by_index(result)[0]["log_precision"]) and record.precision_bound == 1.5
    )
    assert record.precision_label == "reliability score"
    six = [{"name": str(at), "passed": True} for at in range(6)]
    short = [six[:5], [*six[:5], six[0]], [*six[:5], {"name": "5", "passed": False}]]
    for tests in (six, *short):
        model.config.precision_contract = {"tests": tests}
        assert model.config.precision_label == ("precision" if tests is six else "reliability score")
    assert ledger_records(plain, passages, model)[0].precision_label == "reliability score"
    assert replay(ledger_records(result, passages, model)).differences == []
    twins = [passages[0] | {"age": age} for age in (0.0, 3.0)]
    first, second = by_index(model.rank(QUESTION, twins))
    back = by_index(model.rank(QUESTION, twins[::-1]))
    if name != "led":
        assert first["score"] == pytest.approx(back[1]["score"], abs=1e-5)
    with torch.no_grad():
        model.readout.precision.score.fill_(0.7)
    first, second = by_index(model.rank(QUESTION, twins))
    assert first["log_precision"] != second["log_precision"]
    gone = model.rank(QUESTION, passages, revoke=range(4), revoke_by="mask")
    assert column(gone, "score").tolist() == pytest.approx([model.readout.lowest_logit()] * 4)
    records = ledger_records(gone, passages, model, revoke_by="mask")
    assert all(record.log_precision is None for record in records) and replay(records).differences == []
    for value in (1e39, 10**400, True):
        with pytest.raises(ValueError, match=r"passages\[0\]\[1\].age is .*a finite number there, of a size"):
            model.rank(QUESTION, [passages[0], passages[1] | {"age": value}], revoke=[0], revoke_by="mask")
    lacking = copy.deepcopy(passages)
    del lacking[2]["source"]["reliability"]
    with pytest.raises(ValueError, match=r"passages\[0\]\[2\].source.reliability is None; this selector's precision"):
        model.rank(QUESTION, lacking)
    batch = model.processor(QUESTION, passages)
    del batch["candidate_features"]
    with pytest.raises(ValueError, match="candidate_features is missing"):
        model(**batch)


def test_auto_class_finds_the_reader(model, tmp_path, tokenizers):
    """From a folder with nothing but the pretrained model and its tokenizer."""
    backbone = model.config.backbone_config
    backbone.architectures = None
    _pretrained(model).save_pretrained(tmp_path)
    tokenizers["byte" if backbone.model_type != "bert" else "character"]().save_pretrained(tmp_path)
    sizes = {"readout_size": 32, "readout_heads": 2, "gate_size": 16}
    found = AutoModelForEvidenceSelection.from_backbone(str(tmp_path), **sizes)
    assert type(found) is type(model)
    assert len(found.rank(QUESTION, PASSAGES)["evidence"]) == len(PASSAGES)


def _pretrained(model):
    from transformers import AutoModel, AutoModelForSeq2SeqLM

    config = copy.deepcopy(model.config.backbone_config)
    config._attn_implementation = None
    is_fid = model.config.model_type == "warrant_fid"
    return (AutoModelForSeq2SeqLM if is_fid else AutoModel).from_config(config)
