"""Fine-tuning: a collator for questions with candidates, and a light `Trainer`.

The stock `transformers.Trainer` works too: give it `EvidenceCollator` and `remove_unused_columns=False`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from .evaluation.metrics import evidence_metrics
from .modeling.checkpoint_saving import EvidenceSavingMixin, write_code
from .modeling.hub_errors import hub_sentences
from .modeling.processing_evidence import EvidenceProcessor, check_list

#: Candidates that a shorter list of a batch lacks.
NO_LABEL = -100


@dataclass
class EvidenceCollator:
    """Batches rows `{"question", "passages", "labels", "lists"?, "answer"?}`; other keys are left out.

    `lists` (optional) holds the candidate indices of each list on which the loss is taken; see `CandidateDataset`.

    Raises:
        ValueError: a row lacks a column, has labels or lists that do not fit its passages, or is bad input for
            [`EvidenceProcessor`].
    """

    processor: EvidenceProcessor

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        for number, row in enumerate(rows):
            missing = [name for name in ("question", "passages") if name not in row]
            if missing:
                raise ValueError(
                    f"row {number} of the batch lacks {' and '.join(missing)} (it has {', '.join(row) or 'nothing'}); "
                    "the columns must be question, passages and labels, and TrainingArguments needs "
                    "remove_unused_columns=False."
                )
            labels, place = row.get("labels"), f"row {number} of the batch:"
            check_list(row["passages"], f"{place} passages", "passages")
            if labels is not None:
                check_list(labels, f"{place} labels", "0 and 1")
            for listed in row.get("lists") or ():
                check_list(listed, f"{place} an entry of lists", "candidate indices")
            if labels is not None and len(labels) != len(row["passages"]):
                raise ValueError(
                    f"row {number} of the batch has {len(labels)} labels for {len(row['passages'])} passages; give "
                    "one label, 0 or 1, per passage."
                )
            wrong = [label for label in labels or () if label not in (0, 1, NO_LABEL)]
            if wrong:
                raise ValueError(
                    f"row {number} of the batch has the label {wrong[0]!r}; give 0, 1, or {NO_LABEL} where unknown."
                )
            beyond = [at for listed in row.get("lists") or () for at in listed if not 0 <= at < len(row["passages"])]
            if beyond:
                raise ValueError(
                    f"row {number} of the batch lists candidate {beyond[0]}, but has {len(row['passages'])}; count "
                    "from 0."
                )
        batch = dict(self.processor([row["question"] for row in rows], [row["passages"] for row in rows]))
        if self.processor.answers:
            batch["answer_labels"] = self.processor.encode_answers([_answer(row, at) for at, row in enumerate(rows)])
        size = batch["candidate_mask"].shape[1]
        if any(row.get("labels") is not None for row in rows):
            batch["labels"] = torch.full((len(rows), size), NO_LABEL)
            for at, row in enumerate(rows):
                if row.get("labels") is not None:
                    batch["labels"][at, : len(row["labels"])] = torch.as_tensor(row["labels"])
        if all(row.get("lists") for row in rows):
            count = max(len(row["lists"]) for row in rows)
            batch["candidate_lists"] = torch.zeros(len(rows), count, size, dtype=torch.bool)
            for at, row in enumerate(rows):
                for number, indices in enumerate(row["lists"]):
                    batch["candidate_lists"][at, number, indices] = True
        return batch


def _answer(row, number):
    answer = row.get("answer")
    if answer is not None and not (isinstance(answer, str) and answer.strip()):
        raise ValueError(f"row {number} of the batch has the answer {answer!r}; give a text, or leave it out.")
    return answer


@dataclass
class EvidenceTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the defaults that evidence selection needs.

    Args:
        readout_lr_multiplier (`float`): learning rate of the readout, which starts from nothing, over `learning_rate`.
        gate_lr_multiplier (`float`): learning rate of the permission gate over that of the rest of the readout.
    """

    remove_unused_columns: bool = field(default=False)
    dataloader_pin_memory: bool = field(default_factory=torch.cuda.is_available)  # elsewhere PyTorch warns about it
    # A variant, or a decoder of which only the attention is read, leaves some parameters without a gradient.
    ddp_find_unused_parameters: bool | None = field(default=True)
    label_names: list[str] | None = field(default_factory=lambda: ["labels"])
    learning_rate: float = field(default=1e-4)
    lr_scheduler_type: str = field(default="linear")
    warmup_steps: float = field(default=0.1)
    weight_decay: float = field(default=0.01)
    readout_lr_multiplier: float = field(
        default=10.0, metadata={"help": "learning rate of the readout over learning_rate"}
    )
    gate_lr_multiplier: float = field(
        default=1.0, metadata={"help": "learning rate of the permission gate over that of the readout"}
    )


class EvidenceTrainer(Trainer):
    """A `Trainer` with its own learning rate for readout and gate, and the metrics of evidence selection.

    What it pushes to the Hub (`push_to_hub=True`, or the method) has the modeling code with it, as what `push_to_hub`
    of the model uploads. Checkpoints of a run that pushes nothing have none.

    Args:
        model, args ([`EvidenceTrainingArguments`]), train_dataset, eval_dataset: as in `Trainer`; data sets of rows
            `{"question", "passages", "labels"}`.
        processing_class ([`EvidenceProcessor`]): makes the collator unless `data_collator` is given.
    """

    def __init__(self, model, args, *, processing_class=None, data_collator=None, compute_metrics=None, **kwargs):
        if data_collator is None:
            if processing_class is None:
                raise ValueError("processing_class is missing; give the EvidenceProcessor of the model.")
            data_collator = EvidenceCollator(processing_class)
        if not isinstance(args, EvidenceTrainingArguments):
            raise ValueError(f"args is a {type(args).__name__}; use EvidenceTrainingArguments, or the stock Trainer.")
        super().__init__(
            model,
            args,
            processing_class=processing_class,
            data_collator=data_collator,
            compute_metrics=compute_metrics or compute_evidence_metrics,
            preprocess_logits_for_metrics=scores_only,
            **kwargs,
        )

    def init_hf_repo(self, token=None, private=None):
        """As in `Trainer`; raises an `OSError` of one sentence if the Hub refuses."""
        with hub_sentences(self.args.hub_model_id or self.args.output_dir):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(self, *args, **kwargs):
        """As in `Trainer`; raises an `OSError` of one sentence if the Hub refuses."""
        with hub_sentences(self.args.hub_model_id or self.args.output_dir):
            return super().push_to_hub(*args, **kwargs)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        if self.hub_model_id is not None:
            self._add_code(output_dir or self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder):
        # It takes config and weights from the checkpoint and saves the processor anew.
        if self.hub_model_id is not None and self.is_world_process_zero():
            self._add_code(self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)

    def _add_code(self, folder):
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, EvidenceSavingMixin):  # and no adapter, which has no config.json
            write_code(model, folder)

    def create_optimizer(self, model=None):
        """See `make_optimizer`."""
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.model if model is None else model, self.args)
        return self.optimizer

    def _get_train_sampler(self, train_dataset=None):
        train_dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or not has_length(train_dataset):
            return super()._get_train_sampler(train_dataset)
        return EvidenceLengthSampler(train_dataset, self.args)


def make_optimizer(model, args: EvidenceTrainingArguments) -> torch.optim.Optimizer:
    """The optimiser that `args` names, with one group per (backbone, readout, gate) and weight decay."""
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # reads nothing of a trainer
    rates = {"backbone": 1.0, "readout": args.readout_lr_multiplier}
    rates["gate"] = rates["readout"] * args.gate_lr_multiplier
    groups = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part, decay = _part(name), args.weight_decay if name in decayed else 0.0
            group = {"params": [], "weight_decay": decay, "lr": args.learning_rate * rates[part]}
            groups.setdefault((part, decay), group)["params"].append(parameter)
    optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
    return optimizer_class(list(groups.values()), **settings)


class EvidenceLengthSampler(LengthGroupedSampler):
    """Batches of rows of similar length, in characters: rows have no `input_ids` that transformers could count.

    The order of an epoch is a function of the seed and of its number, so that a resumed run sees the rows that an
    uninterrupted one does.

    Args:
        rows: a data set with a length, of rows `{"question", "passages"}`.
        args ([`EvidenceTrainingArguments`]): batch size, accumulation and seed.
    """

    def __init__(self, rows, args):
        lengths = [len(str(row.get("question"))) + len(str(row.get("passages"))) for row in rows]
        super().__init__(args.train_batch_size * args.gradient_accumulation_steps, lengths=lengths)
        self.seed, self.generator = args.seed if args.data_seed is None else args.data_seed, torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        self.generator.manual_seed(self.seed + self.epoch)
        return super().__iter__()


def _part(name):
    """backbone, readout or gate, also for names that PEFT has wrapped."""
    path = name.split(".")
    return "backbone" if "readout" not in path else "gate" if "gate" in path[path.index("readout") :] else "readout"


def scores_only(outputs, labels):
    """Logits `[B, C]`, with permissions where a variant has them, and -100 instead of -inf for missing candidates."""
    if not isinstance(outputs, tuple):
        return torch.nan_to_num(outputs, neginf=NO_LABEL)
    return tuple(scores_only(part, labels) for part in outputs)


def compute_evidence_metrics(prediction) -> dict[str, float]:
    """`compute_metrics` for `Trainer`: the headline metrics on rows whose padding has the label -100."""
    parts = prediction.predictions if isinstance(prediction.predictions, tuple) else (prediction.predictions,)
    scores, permission = parts[0], parts[1] if len(parts) > 1 else None
    rows = []
    for at, labels in enumerate(prediction.label_ids):
        known = labels != NO_LABEL
        row = {"id": str(at), "labels": labels[known], "scores": scores[at][: len(known)][known]}
        if permission is not None:
            row["permission"] = permission[at][: len(known)][known]
        rows.append(row)
    metrics = evidence_metrics(rows, bootstrap=0)
    return {name: values["value"] for name, values in metrics.items()}


__all__ = [
    "NO_LABEL",
    "EvidenceCollator",
    "EvidenceLengthSampler",
    "EvidenceTrainer",
    "EvidenceTrainingArguments",
    "compute_evidence_metrics",
    "make_optimizer",
    "scores_only",
]
