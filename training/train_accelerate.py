"""Fine-tuning by a recipe in a plain loop over Accelerate, for those who want to change the loop.

    python training/train_accelerate.py --config training/recipes/evidence_world.yaml --train world:240:1 --output runs/a
    accelerate launch --config_file training/accelerate_configs/multi_gpu.yaml training/train_accelerate.py …

It ends at the weights of `warrant-hf train` with the same recipe: same parameter groups, schedule, order and loss. On N
processes a step takes N times the recipe's `per_device_train_batch_size`. Logged are JSON lines on stdout, and what
`--report-to` names. Of `training`, it knows the fields in `FIELDS` and refuses others.
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
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, RandomSampler
from transformers import get_scheduler

from warrant_hf import EvidenceCollator
from warrant_hf.data.readers import read_rows
from warrant_hf.evaluation.metrics import evidence_metrics
from warrant_hf.recipes import Recipe, build, evaluation_items, save, training_arguments, training_items
from warrant_hf.trainer import EvidenceLengthSampler, make_optimizer

FIELDS = {
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "per_device_eval_batch_size"),
    *("gradient_accumulation_steps", "learning_rate", "readout_lr_multiplier", "gate_lr_multiplier", "max_grad_norm"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "optim", "optim_args"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "seed", "data_seed", "bf16", "use_cpu", "gradient_checkpointing"),
    *("logging_steps", "save_strategy", "save_steps", "save_total_limit", "disable_tqdm", "train_sampling_strategy"),
    *("dataloader_num_workers", "dataloader_drop_last", "dataloader_pin_memory"),
}


def main(arguments: list[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    try:
        run(given)
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {' '.join(str(error).split())}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Fine-tune an evidence selector by a recipe, without Trainer.")
    made.add_argument("--config", type=Path, required=True, metavar="YAML", help="the recipe")
    made.add_argument("--train", required=True, metavar="FILE", help="labelled rows; world:N for N generated questions")
    made.add_argument("--eval", metavar="FILE", help="rows to measure on at the end")
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of states and trained model")
    made.add_argument("--resume", action="store_true", help="go on from the last state in DIR")
    made.add_argument("--report-to", nargs="*", default=[], metavar="NAME", help="trackers, such as tensorboard or wandb")
    return made


def run(given: argparse.Namespace) -> None:
    recipe = Recipe.from_yaml(given.config)
    unknown = sorted(set(recipe.training) - FIELDS)
    if unknown:
        raise ValueError(f"training.{unknown[0]} is not used by this loop; remove it, or use warrant-hf train.")
    changes = {} if torch.accelerator.is_available() else {"use_cpu": True}  # or Accelerate would not start gloo
    args = training_arguments(recipe, given.output, **changes)
    accelerator = Accelerator(
        cpu=args.use_cpu,
        mixed_precision="bf16" if args.bf16 else None,
        log_with=known_trackers(given.report_to),
        project_config=ProjectConfiguration(project_dir=str(given.output), logging_dir=str(given.output / "logs")),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.data_seed),
    )
    accelerator.init_trackers("warrant-hf", config=flat({"recipe": recipe.model_dump()}))
    earlier = last_state(given.output)
    if given.resume and earlier is None:
        raise ValueError(f"{given.output} holds no state to resume from; start without --resume.")
    if earlier is not None and not given.resume:
        raise ValueError(f"{given.output} holds states of an earlier run; add --resume or give another folder.")
    accelerator.wait_for_everyone()  # all have looked before one writes

    items = training_items(recipe, read_rows(given.train, level=recipe.data.level))
    measured = given.eval and evaluation_items(recipe, read_rows(given.eval, level=recipe.data.level))
    model, processor = build(recipe)
    train(accelerator, model, processor, items, args, earlier)

    if measured:
        metrics = evaluate(accelerator, model, processor, measured, args)
        accelerator.log(metrics)
        report(accelerator, metrics)
    state = accelerator.get_state_dict(accelerator._models[-1])  # of all processes, where each has a part
    if accelerator.is_main_process:
        whole, processor = build(recipe)
        whole.load_state_dict(state)
        save(whole, processor, recipe, given.output)
    accelerator.end_training()
