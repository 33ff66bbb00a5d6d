"""Options of the Trainer that reach into a model: compilation, activation checkpointing, batches of similar length."""

import copy

import pytest
import torch
from accelerate.state import AcceleratorState

from tests.modeling.conftest import byte_tokenizer, long_backbone_config, seq2seq_config, tiny_encoder_config
from warrant_hf import (
    EvidenceCollator,
    EvidenceProcessor,
    EvidenceTrainer,
    EvidenceTrainingArguments,
    WarrantEncoderConfig,
    WarrantEncoderForEvidenceSelection,
    WarrantFiDConfig,
    WarrantFiDForEvidenceSelection,
    WarrantLEDConfig,
    WarrantLEDForEvidenceSelection,
)

#: Reader -> config class, model class and config of the backbone.
READERS = {
    "encoder": (
        WarrantEncoderConfig,
        WarrantEncoderForEvidenceSelection,
        lambda size: tiny_encoder_config("roberta", size),
    ),
    "fid": (WarrantFiDConfig, WarrantFiDForEvidenceSelection, lambda size: seq2seq_config("t5", size)),
    "led": (WarrantLEDConfig, WarrantLEDForEvidenceSelection, lambda size: long_backbone_config("led", size)),
}
ROWS = [
    {
        "question": f"question {at}?",
        "passages": [f"passage {number} " + "and more " * (at % 4) for number in range(3)],
        "labels": [int(number == at % 3) for number in range(3)],
    }
    for at in range(16)
]


@pytest.fixture(params=READERS)
def model(request):
    config, kind, backbone = READERS[request.param]
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    sizes = {"readout_size": 32, "readout_heads": 2, "gate_size": 16, "readout_dropout": 0.0}
    chosen = backbone(len(tokenizer))
    for name in vars(chosen):
        if "dropout" in name:
            setattr(chosen, name, 0.0)
    model = kind(config(backbone_config=chosen, **sizes))
    lengths = {"max_length": 256, "max_question_tokens": 64}
    model.processor = EvidenceProcessor(tokenizer, **(model.processor_settings() | lengths))
    return model.train()


def gradients(model, call):
    model.zero_grad()
    loss = call(**EvidenceCollator(model.processor)(ROWS[:4])).loss
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], abs=1e-5) and set(one[1]) == set(other[1])
    for name, value in one[1].items():
        torch.testing.assert_close(value, other[1][name], atol=1e-5, rtol=1e-4, msg=name)


def test_activation_checkpointing_gives_the_same_gradients(model):
    expected = gradients(model, model)
    assert len(expected[1]) > 20
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    assert model.is_activation_checkpointing
    assert_same(gradients(model, model), expected)


@pytest.mark.slow
def test_compiled_model_gives_the_same_gradients(model):
    expected = gradients(model, model)
    assert_same(gradients(model, torch.compile(model, backend="aot_eager")), expected)


def arguments(folder, **changes):
    settings = {"per_device_train_batch_size": 4, "max_steps": 4, "report_to": "none", "save_strategy": "no"}
    settings |= {"use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "learning_rate": 1e-3}
    return EvidenceTrainingArguments(output_dir=str(folder), **(settings | changes))


@pytest.fixture
def anew(monkeypatch):
    """Accelerate reads what to compile from variables of the process, once."""
    for name in ("BACKEND", "MODE", "USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"):
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "")
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["encoder"], indirect=True)
def test_trainer_compiles(model, tmp_path, anew):
    losses = {}
    for backend in (None, "aot_eager"):
        copied = copy.deepcopy(model)
        copied.processor = model.processor
        options = {} if backend is None else {"torch_compile": True, "torch_compile_backend": backend}
        args = arguments(tmp_path / str(backend), max_steps=2, **options)
        trainer = EvidenceTrainer(copied, args, train_dataset=ROWS, processing_class=model.processor)
        trainer.train()
        losses[backend] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses[None]) == 2 and losses["aot_eager"] == pytest.approx(losses[None], abs=1e-4)


@pytest.mark.parametrize("model", ["encoder"], indirect=True)
def test_batches_of_similar_length(model, tmp_path):
    def order(epoch=0, **changes):
        args = arguments(tmp_path, **({"train_sampling_strategy": "group_by_length"} | changes))
        trainer = EvidenceTrainer(model, args, train_dataset=ROWS * 4, processing_class=model.processor)
        loader = trainer.get_train_dataloader()
        loader.set_epoch(epoch)
        return list(loader.batch_sampler.sampler)

    def spread(found):
        """Sum over batches of how far the lengths of their rows, of which there are four, lie apart."""
        batches = ([at % 4 for at in found[first : first + 4]] for first in range(0, len(found), 4))
        return sum(max(batch) - min(batch) for batch in batches)

    grouped = order()
    assert sorted(grouped) == list(range(64))
    assert spread(grouped) < spread(order(train_sampling_strategy="random")) / 2
    assert grouped[0] % 4 == 3, "the longest first, where memory would run out"
    assert order() == grouped and order(epoch=1) != grouped and order(seed=7) != grouped


@pytest.mark.parametrize("model", ["encoder"], indirect=True)
def test_trains_in_batches_of_similar_length(model, tmp_path):
    args = arguments(tmp_path, train_sampling_strategy="group_by_length", gradient_accumulation_steps=2)
    trainer = EvidenceTrainer(model, args, train_dataset=ROWS, processing_class=model.processor)
    assert trainer.train().global_step == 4
