"""Fine-tuning by a recipe in a plain loop over Accelerate, for those who want to change the loop.

    python training/train_accelerate.py --config RECIPE.yaml --train world:240:1 --output runs/one
    accelerate launch --config_file training/accelerate_configs/cpu.yaml training/train_accelerate.py --config ...

It ends at the weights of `warrant-hf train` with the same recipe: same parameter groups, schedule, order and loss. On
N processes a step takes N times the recipe's `per_device_train_batch_size`. What it logs are JSON lines on stdout, and
the same for the trackers of `--report-to`. Of the recipe's `training` it knows the `FIELDS` and refuses others.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.tracking import get_available_trackers
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    ProjectConfiguration,
    set_seed,
)
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from transformers import get_scheduler

from warrant_hf import EvidenceCollator
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.metrics import evidence_metrics
from warrant_hf.recipes import Recipe, build, evaluation_items, save, training_arguments, training_items
from warrant_hf.trainer import NO_LABEL, EvidenceLengthSampler, make_optimizer
from warrant_hf.whole_file import replaced_when_complete

FIELDS = set(
    "num_train_epochs max_steps per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
    "activation_checkpointing max_grad_norm bf16 use_cpu seed data_seed learning_rate readout_lr_multiplier "
    "gate_lr_multiplier weight_decay warmup_steps lr_scheduler_type lr_scheduler_kwargs optim optim_args adam_beta1 "
    "adam_beta2 adam_epsilon dataloader_num_workers dataloader_drop_last train_sampling_strategy disable_tqdm "
    "logging_steps save_strategy save_steps save_total_limit".split()
)
SAMPLERS = {
    "random": lambda items, args: RandomSampler(items),
    "sequential": lambda items, args: SequentialSampler(items),
    "group_by_length": EvidenceLengthSampler,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fine-tune an evidence selector by a recipe, without Trainer.")
    parser.add_argument("--config", type=Path, required=True, metavar="YAML", help="the recipe")
    parser.add_argument("--train", required=True, metavar="FILE", help="labelled rows; world:N for N generated ones")
    parser.add_argument("--eval", metavar="FILE", help="rows to measure on at the end")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of states and trained model")
    parser.add_argument("--resume", action="store_true", help="go on from the last state in DIR")
    parser.add_argument("--report-to", nargs="*", default=[], metavar="NAME", help="trackers, such as tensorboard")
    try:
        run(parser.parse_args(arguments))
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {' '.join(str(error).split())}")


def run(given: argparse.Namespace) -> None:
    recipe, output = Recipe.from_yaml(given.config), given.output
    args = arguments_of(recipe, output)
    accelerator = Accelerator(
        cpu=args.use_cpu,
        mixed_precision="bf16" if args.bf16 else None,
        log_with=trackers(given.report_to),
        project_config=ProjectConfiguration(project_dir=str(output), logging_dir=str(output / "logs")),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.data_seed),
        # A variant, or a decoder of which only the attention is read, leaves some parameters without a gradient.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        step_scheduler_with_optimizer=False,  # one step of the schedule for one of all processes together
    )
    if accelerator.distributed_type == DistributedType.FSDP and accelerator.mixed_precision != "no":
        raise ValueError("bf16 is on, and FSDP would cast the readout too, which needs float32; set bf16: false.")
    facts = {"recipe": recipe.model_dump(), "processes": accelerator.num_processes}
    earlier = state_to_go_on_from(output, facts) if given.resume else None
    if earlier is None and states(output):
        raise ValueError(f"{output} holds states of an earlier run; add --resume or give another folder.")
    accelerator.wait_for_everyone()  # all have looked before one writes
    accelerator.init_trackers("warrant-hf", config={"recipe": json.dumps(facts["recipe"])})

    level = recipe.data.level
    items = training_items(recipe, read_rows(given.train, level=level))
    measured = None if given.eval is None else evaluation_items(recipe, read_rows(given.eval, level=level))
    model, processor = build(recipe)
    model = train(accelerator, model, processor, items, args, output, facts, earlier)
    if measured is not None:
        report(accelerator, evaluate(accelerator, model, processor, measured, args))
    weights = accelerator.get_state_dict(model)  # whole, also where each process holds a part
    # Before the process group: DDP would end it while it holds Python's lock, for which the threads of gloo wait.
    (model,) = accelerator.free_memory(model)
    if accelerator.is_main_process:
        trained, processor = build(recipe)
        trained.load_state_dict(weights)
        save(trained, processor, recipe, output)
    accelerator.end_training()


def train(accelerator, model, processor, items, args, output, facts, earlier=None):
    """Trains on the items of a data set and returns the model as Accelerate has prepared it.

    Args:
        args ([`EvidenceTrainingArguments`]): those in `FIELDS` are read.
        output (`Path`): folder of the states.
        facts (`dict`): goes into each state, for `state_to_go_on_from`.
        earlier (`Path`, *optional*): state to go on from.
    """
    set_seed(args.seed)
    if args.activation_checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    loader = DataLoader(
        items,
        batch_size=args.per_device_train_batch_size,
        sampler=SAMPLERS[args.train_sampling_strategy](items, args),
        collate_fn=EvidenceCollator(processor),
        num_workers=args.dataloader_num_workers,
        drop_last=args.dataloader_drop_last,
    )
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model, args), loader)
    accumulated = args.gradient_accumulation_steps
    per_epoch = math.ceil(len(loader) / accumulated)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    warmup = args.get_warmup_steps(steps)
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, warmup, steps, args.lr_scheduler_kwargs)
    schedule = accelerator.prepare(schedule)

    step = 0 if earlier is None else number_of(earlier)
    start, within = divmod(step, per_epoch)
    if earlier is not None and (within == 0 or step >= steps):
        accelerator.load_state(earlier)
    total, logged = torch.zeros((), device=accelerator.device), step
    model.train()
    for epoch in range(start, math.ceil(steps / per_epoch)):
        loader.set_epoch(epoch)
        known = within if epoch == start else 0
        batches = iter(skip_first_batches(loader, known * accumulated) if known else loader)
        for update in range(known, min(per_epoch, steps - epoch * per_epoch)):
            group = list(islice(batches, accumulated))
            if known and update == known:  # only now: to begin an epoch draws a random number too
                accelerator.load_state(earlier)
            for number, batch in enumerate(group, start=1):
                # Processes exchange gradients once a step. The last group of an epoch may be a smaller one.
                with nullcontext() if number == len(group) else accelerator.no_sync(model):
                    loss = model(**batch).loss / len(group)
                    accelerator.backward(loss)
                total += loss.detach()
            values = {}
            if args.max_grad_norm > 0:
                values["grad_norm"] = float(accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm))
            optimizer.step()
            values["learning_rate"] = schedule.get_last_lr()[0]
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % interval(args.logging_steps, steps) == 0:
                mean = accelerator.reduce(total, "mean").item() / (step - logged)
                report(accelerator, {"step": step, "loss": mean, **values})
                total, logged = torch.zeros_like(total), step
            due = {
                "no": False,
                "steps": step % interval(args.save_steps, steps) == 0,
                "epoch": update + 1 == per_epoch,
            }
            if due[args.save_strategy.value] or (step == steps and args.save_strategy.value != "no"):
                keep_state(accelerator, output, step, facts, args.save_total_limit)
    return model


@torch.no_grad()
def evaluate(accelerator, model, processor, items, args) -> dict[str, float]:
    """The headline metrics on labelled items, over all processes."""
    loader = DataLoader(items, args.per_device_eval_batch_size, collate_fn=EvidenceCollator(processor))
    rows = []
    model.eval()
    for batch in accelerator.prepare(loader):
        output, part = model(**batch), []
        for at, labels in enumerate(batch["labels"]):
            known = labels != NO_LABEL
            row = {"labels": labels[known].tolist(), "scores": output.logits[at][known].tolist()}
            if output.permission is not None:
                row["permission"] = output.permission[at][known].tolist()
            part.append(row)
        rows += accelerator.gather_for_metrics(part, use_gather_object=True)
    rows = [{"id": str(number), **row} for number, row in enumerate(rows)]
    return {f"eval_{name}": values["value"] for name, values in evidence_metrics(rows, bootstrap=0).items()}


def report(accelerator, values: dict[str, float]) -> None:
    accelerator.print(json.dumps(values), flush=True)
    accelerator.log({name: value for name, value in values.items() if name != "step"}, step=values.get("step"))


def arguments_of(recipe: Recipe, output: Path):
    unknown = sorted(set(recipe.training) - FIELDS)
    if unknown:
        raise ValueError(f"training.{unknown[0]} is not known to this loop; remove it, or use warrant-hf train.")
    # On a machine without accelerator several processes need gloo, and Accelerate has to be told.
    args = training_arguments(recipe, output, **({} if torch.accelerator.is_available() else {"use_cpu": True}))
    for name, choices in {"save_strategy": ("no", "steps", "epoch"), "train_sampling_strategy": SAMPLERS}.items():
        value = getattr(args, name)
        value = getattr(value, "value", value)  # some are enumerations
        if value not in choices:
            raise ValueError(f"training.{name} is {value!r}; choose from {', '.join(choices)}.")
    return args


def trackers(names: list[str]) -> list[str] | None:
    """The names, after a check: Accelerate would leave out a tracker that is not installed without a word."""
    there = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in there:
            raise ValueError(f"--report-to {name}: it is not installed here; install it, or choose from {there}.")
    return names or None


def interval(value: float, steps: int) -> int:
    """A number of steps; below 1, `value` is a share of all."""
    return int(value) if value >= 1 else math.ceil(value * steps)


def states(output: Path) -> list[Path]:
    return sorted((path for path in output.glob("state-*") if re.fullmatch(r"state-\d+", path.name)), key=number_of)


def number_of(state: Path) -> int:
    return int(state.name.removeprefix("state-"))


def state_to_go_on_from(output: Path, facts: dict) -> Path:
    if not states(output):
        raise ValueError(f"{output} holds no state to resume from; start without --resume.")
    state = states(output)[-1]
    if json.loads((state / "run.json").read_text(encoding="utf-8")) != json.loads(json.dumps(facts)):
        raise ValueError(f"{state} is of another recipe or number of processes; resume with its own, or start anew.")
    return state


def keep_state(accelerator, output: Path, step: int, facts: dict, limit: int | None) -> None:
    """Writes `state-STEP`, which is there whole or not at all, and removes the oldest ones above `limit`."""
    partial = output / f".state-{step}.partial"
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with replaced_when_complete(partial / "run.json") as file:
            json.dump(facts, file)
        partial.rename(output / f"state-{step}")
        for state in states(output)[:-limit] if limit else ():
            shutil.rmtree(state)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
