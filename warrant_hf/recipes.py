"""A training run as one YAML file: encoder, selector, data and `TrainingArguments`."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from .data.candidates import CandidateDataset, build_candidates
from .data.readers import read_rows
from .settings import first_complaint, parse_yaml, training_fields

DATA_SEED = "eval"  # evaluation lists are the same for every training seed


class DataSettings(pydantic.BaseModel, extra="forbid"):
    """How rows become training items; see `CandidateDataset`. `draws` passes over the rows make one epoch."""

    level: Literal["sentence", "passage"] = "sentence"
    size: int | None = Field(8, ge=1)
    hard: int = Field(4, ge=0)
    draws: int = Field(1, ge=1)
    lists_per_question: int = Field(4, ge=1)
    none_rate: float = Field(0.25, ge=0, le=1)
    one_rate: float = Field(0.25, ge=0, le=1)
    separate_lists: bool = False
    max_length: int = Field(256, ge=8)
    max_question_tokens: int = Field(96, ge=1)


class LoraSettings(pydantic.BaseModel, extra="forbid"):
    """A PEFT adapter on every linear layer of the encoder above `frozen_layers`; the readout is trained in full.

    Args:
        method: `"lora"`; `"dora"`, which learns the magnitudes of the weights apart; `"ia3"`, a factor for each output
            of a layer; or `"gate"`, which leaves encoder and readout alone and trains the permission gate.
        r, alpha, dropout: of `"lora"` and `"dora"`.
    """

    method: Literal["lora", "dora", "ia3", "gate"] = "lora"
    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)

    @pydantic.model_validator(mode="after")
    def _only_what_the_method_has(self):
        if self.method in ("ia3", "gate"):
            for name in ("r", "alpha", "dropout"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is a setting of lora and dora, and method is {self.method!r}; remove it")
        return self


class Recipe(pydantic.BaseModel, extra="forbid"):
    """Everything that fixes a training run but its data files and its seed's consequences.

    Args:
        base_model: encoder on the Hub or in a folder, for a selector with a fresh readout.
        start_from: instead of `base_model`, a selector to go on from: a folder, a Hub id, or "default" for the shipped
            one. Its settings, processor included, are kept, so `model` and `encoder` must be empty.
        model: fields of the selector's config (`WarrantEncoderConfig`, `WarrantFiDConfig` or `WarrantLEDConfig`, by
            the kind of `base_model`).
        encoder: fields of the encoder's own config to change, such as its dropout.
        lora: settings of an adapter, or null to train the encoder itself.
        data: see `DataSettings`.
        training: fields of `EvidenceTrainingArguments`.
        seed: of weights, dropout, order and candidate lists.
        bf16: autocast to bfloat16.
        licence: of the trained weights, for their card: an identifier of the Hub such as "apache-2.0".
    """

    base_model: str | None = Field(None, min_length=1)
    start_from: str | None = Field(None, min_length=1)
    model: dict[str, Any] = {}
    encoder: dict[str, Any] = {}
    lora: LoraSettings | None = None
    data: DataSettings = DataSettings()
    training: dict[str, Any] = {}
    seed: int = Field(0, ge=0, lt=2**32)
    bf16: bool = False
    licence: str | None = Field(None, min_length=1)

    @pydantic.model_validator(mode="after")
    def _one_start(self):
        if (self.base_model is None) == (self.start_from is None):
            raise ValueError("give either base_model (an encoder) or start_from (a selector)")
        if self.start_from is not None and (self.model or self.encoder):
            raise ValueError("with start_from, the settings are those of the selector; remove model and encoder")
        if self.start_from is None and self.lora is not None and self.lora.method == "gate":
            raise ValueError("lora.method gate trains no readout, and base_model has none yet; give start_from")
        return self

    @classmethod
    def from_yaml(cls, path, changes: dict[str, Any] | None = None) -> Recipe:
        """Reads a recipe; `changes` replaces fields, nested ones by dots (`{"model.variant": "open"}`).

        Raises:
            ValueError: the file is not a recipe, with the field and the remedy.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__}); give a YAML recipe.") from None
        try:
            values = parse_yaml(text)
        except ValueError as error:
            raise ValueError(f"{path} is not YAML ({error}); correct it.") from None
        if not isinstance(values, dict):
            raise ValueError(f"{path} is not a recipe; it must be a mapping with the key base_model.")
        for name, value in (changes or {}).items():
            *parents, last = name.split(".")
            place = values
            for parent in parents:
                if place.get(parent) is None:
                    place[parent] = {}
                place = place[parent]
                if not isinstance(place, dict):
                    raise ValueError(f"{name}: {parent} is not a group of settings in {path}.")
            place[last] = value
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise ValueError(f"{path}: {first_complaint(error)}") from None


def build(recipe: Recipe):
    """Model (wrapped by PEFT if the recipe has `lora`) and processor before the first step."""
    import transformers

    transformers.set_seed(recipe.seed)
    model = _on_encoder(recipe) if recipe.start_from is None else _selector(recipe.start_from)
    return (model if recipe.lora is None else _with_adapter(model, recipe.lora)), model.processor


def _selector(name):
    from .modeling import DEFAULT_CHECKPOINT, AutoModelForEvidenceSelection

    model = AutoModelForEvidenceSelection.from_pretrained(DEFAULT_CHECKPOINT if name == "default" else name)
    model.processor  # read while the folder is known: training writes elsewhere
    model.config.answerability_calibration = None  # of weights that will not be these
    return model


def _on_encoder(recipe):
    from .modeling import AutoModelForEvidenceSelection, EvidenceProcessor
    from .modeling.base_weights import find_base_weights

    if recipe.lora is not None:
        find_base_weights(recipe.base_model, None)  # `save` needs them: better known now than after training
    model = AutoModelForEvidenceSelection.from_backbone(recipe.base_model, encoder=recipe.encoder, **recipe.model)
    settings = model.processor_settings() | {
        "max_length": recipe.data.max_length,
        "max_question_tokens": recipe.data.max_question_tokens,
    }
    model.processor = EvidenceProcessor(model.processor.tokenizer, **settings)
    return model


def train(recipe: Recipe, *, train_file, eval_file=None, output_dir, resume: bool = False) -> dict[str, float]:
    """Trains, saves a checkpoint that `from_pretrained` loads and its card to `output_dir`, returns the last metrics.

    Args:
        train_file, eval_file: labelled rows in any format of `read_rows`.
        resume: go on from the last complete Trainer checkpoint in `output_dir`.

    Raises:
        ValueError: a setting or file that cannot be used, or checkpoints of an earlier run in `output_dir` without
            `resume`, or none with it.
    """
    from .hub.run_card import write_run_card

    data = recipe.data
    rows = read_rows(train_file, level=data.level)
    eval_rows = None if eval_file is None else read_rows(eval_file, level=data.level)
    eval_set = None if eval_rows is None else evaluation_items(recipe, eval_rows)
    trainer = train_rows(recipe, rows, output_dir=output_dir, eval_set=eval_set, resume=resume)
    metrics = trainer.evaluate() if eval_set is not None else {}
    save(trainer.model, trainer.processing_class, recipe, output_dir)
    if trainer.is_world_process_zero():
        write_run_card(
            output_dir,
            recipe,
            train_name=train_file,
            train_rows=len(rows),
            eval_name=eval_file,
            eval_rows=eval_rows,
            seed=DATA_SEED,
        )
    return metrics


def train_rows(recipe: Recipe, rows, *, output_dir, eval_set=None, resume: bool = False):
    """Trains on rows and returns the `EvidenceTrainer`; nothing but its checkpoints is written."""
    from .trainer import EvidenceTrainer

    args = training_arguments(recipe, output_dir)
    earlier = _checkpoint_to_go_on_from(Path(output_dir), resume)
    train_set = training_items(recipe, rows)
    model, processor = build(recipe)
    try:
        trainer = EvidenceTrainer(
            model, args, train_dataset=train_set, eval_dataset=eval_set, processing_class=processor
        )
    except ValueError as error:
        raise ValueError(f"training: {str(error).rstrip('.')}; correct the recipe.") from error
    try:
        trainer.train(resume_from_checkpoint=earlier)
    except (RuntimeError, ValueError) as error:
        if earlier is None or not re.search("state.dict", str(error)):
            raise
        raise ValueError(
            f"{earlier} is of another model than the recipe describes; resume with its own recipe, or give another "
            "folder."
        ) from error
    return trainer


def training_items(recipe: Recipe, rows) -> CandidateDataset:
    """The items that a run of this recipe trains on."""
    data = recipe.data
    return CandidateDataset(
        rows,
        size=data.size,
        hard=data.hard,
        seed=recipe.seed,
        draws=data.draws,
        lists_per_question=data.lists_per_question,
        none_rate=data.none_rate,
        one_rate=data.one_rate,
        separate_lists=data.separate_lists,
    )


def training_arguments(recipe: Recipe, output_dir, **changes):
    """The `EvidenceTrainingArguments` of a run; `changes` replaces some.

    Raises:
        ValueError: a field that does not exist, or a value that cannot be.
    """
    from .trainer import EvidenceTrainingArguments

    settings = {"bf16": recipe.bf16, "seed": recipe.seed, "report_to": "none", "save_total_limit": 2}
    settings |= training_fields(recipe.training, EvidenceTrainingArguments) | changes
    try:
        return EvidenceTrainingArguments(output_dir=str(output_dir), **settings)
    except ValueError as error:
        raise ValueError(f"training: {str(error).rstrip('.')}; correct the recipe.") from error


def evaluation_items(recipe: Recipe, rows) -> list[dict]:
    """The items that a run of this recipe is measured on: the same for every seed."""
    items = []
    for row in rows:
        row = build_candidates(row, size=recipe.data.size, hard=recipe.data.hard, seed=DATA_SEED)
        passages = [candidate.to_passage() for candidate in row.candidates]
        items.append({"id": row.id, "question": row.question, "passages": passages, "labels": row.labels})
    return items


def save(model, processor, recipe: Recipe, output_dir) -> None:
    """Writes a checkpoint: all weights, or config and adapter where an adapter was trained on a plain encoder.

    An adapter on a selector is there twice: merged into all weights, and in the folder `adapter`, from where PEFT puts
    it on the selector that it was trained on.
    """
    from .modeling.base_weights import find_base_weights, sha256_of
    from .modeling.checkpoint_loading import ADAPTER_FOLDER, merged

    output_dir = Path(output_dir)
    if recipe.lora is None:
        model.save_pretrained(output_dir)
    elif recipe.start_from is not None:  # an adapter on an adapter would need both to be loaded
        model.save_pretrained(output_dir / ADAPTER_FOLDER)
        merged(model).save_pretrained(output_dir)
    else:
        model.save_pretrained(output_dir / ADAPTER_FOLDER)
        config = model.get_base_model().config
        config.base_model = recipe.base_model
        config.base_sha256 = sha256_of(find_base_weights(recipe.base_model, None))
        config.save_pretrained(output_dir)
        config.base_model = config.base_sha256 = None
    processor.save_pretrained(output_dir)
    (output_dir / "recipe.json").write_text(json.dumps(recipe.model_dump(), indent=2) + "\n", encoding="utf-8")


def _with_adapter(model, settings: LoraSettings):
    from peft import IA3Config, LoraConfig, get_peft_model
    from peft.utils.constants import DUMMY_TARGET_MODULES
    from torch import nn

    variant = model.readout.variant
    if settings.method == "gate" and not variant.has_gate:
        name = model.config.variant
        raise ValueError(f"lora.method is gate, but variant {name!r} learns none ({variant.summary}); choose another.")
    head = model.backbone.get_output_embeddings()  # shares its weight with the embeddings
    targets = [
        name
        for name, module in model.backbone.named_modules(prefix="backbone")
        if isinstance(module, nn.Linear) and module is not head and module.weight.requires_grad
    ]
    beside = {"target_modules": targets, "modules_to_save": ["readout"]}
    if settings.method == "gate":
        config = LoraConfig(target_modules=DUMMY_TARGET_MODULES, modules_to_save=["readout.gate"])
    elif settings.method == "ia3":
        config = IA3Config(feedforward_modules=[], **beside)  # the factors act on what leaves a layer
    else:
        of_lora = {"r": settings.r, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
        config = LoraConfig(use_dora=settings.method == "dora", **of_lora, **beside)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    with warnings.catch_warnings():  # PEFT asks for an attribute that transformers has renamed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():  # PEFT trains all of the readout, also a gate that is fixed at 1
        own_name = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
        if "modules_to_save" in name and own_name not in trained:
            parameter.requires_grad_(False)
    return model


def _checkpoint_to_go_on_from(folder: Path, resume: bool) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} is no folder to write to ({error.strerror}); give another one.") from None
    last = _last_checkpoint(folder)
    if resume and last is None:
        raise ValueError(f"{folder} holds no complete checkpoint to resume from; start without --resume.")
    if last is not None and not resume:  # a later --resume would take them for its own
        raise ValueError(f"{folder} holds checkpoints of an earlier run; add --resume or give another folder.")
    return last


def _last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end; `trainer_state.json` is what the Trainer writes last."""
    numbered = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(numbered, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return str(path)
    return None


__all__ = [
    "DataSettings",
    "LoraSettings",
    "Recipe",
    "build",
    "evaluation_items",
    "save",
    "train",
    "train_rows",
    "training_arguments",
    "training_items",
]
