"""A grid of runs as one YAML file: contestants x seeds x learning rates on one encoder, data set and budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import Field

from warrant_hf.data.candidates import CandidateDataset
from warrant_hf.recipes import Recipe
from warrant_hf.settings import first_complaint

from .contestants import CONTESTANTS

GRIDS = Path(__file__).parent / "grids"
RECIPES = Path(__file__).parents[1] / "recipes"


class Base(pydantic.BaseModel, extra="forbid"):
    """The selector whose encoder all contestants share: a recipe, what it changes, and the rows it is trained on."""

    recipe: str
    changes: dict[str, Any] = {}
    rows: tuple[int, int]

    def read(self) -> Recipe:
        return Recipe.from_yaml(RECIPES / self.recipe, self.changes)


class Lists(pydantic.BaseModel, extra="forbid"):
    """Arguments of `CandidateDataset`."""

    size: int | None = 8
    hard: int = 4
    draws: int = 3
    lists_per_question: int = 8
    none_rate: float = 0.25
    one_rate: float = 0.25

    def items(self, rows, seed: int) -> list[dict]:
        data_set = CandidateDataset(rows, seed=seed, **self.model_dump())
        return [data_set[at] for at in range(len(data_set))]


class Grid(pydantic.BaseModel, extra="forbid"):
    """See the files in `grids/`.

    Args:
        train, eval, transfer: data, in any form of `read_rows`; the command line goes before them.
        base: whose encoder is frozen under all contestants.
        train_rows, tune_rows: of `train`; the second choose the learning rates. None overlaps `base.rows`.
        config: fields of the selector's config, the same for all contestants.
        contestants: keys of `CONTESTANTS`.
        seeds: of weights, order, dropout and drawn lists.
        tuning_seed: of the runs that choose a learning rate.
        rates: learning rates to choose from.
        batch_size: questions a step.
    """

    train: str | None = None
    eval: str | None = None
    transfer: str | None = None
    base: Base
    train_rows: tuple[int, int]
    tune_rows: tuple[int, int]
    lists: Lists = Lists()
    config: dict[str, Any] = {}
    contestants: list[str] = list(CONTESTANTS)
    seeds: list[int] = [0, 1, 2, 3, 4]
    tuning_seed: int = 100
    rates: list[float] = [3e-4, 1e-3, 3e-3]
    batch_size: int = Field(16, ge=1)

    @pydantic.model_validator(mode="after")
    def _checked(self):
        if not self.seeds or not self.contestants:
            raise ValueError("seeds or contestants is empty; name at least one")
        if not self.rates or not all(0 < rate < 1 for rate in self.rates):
            raise ValueError(f"rates is {self.rates}; give learning rates between 0 and 1")
        for name in self.contestants:
            if name not in CONTESTANTS:
                raise ValueError(f"contestants names {name!r}; choose from {', '.join(CONTESTANTS)}")
            start = CONTESTANTS[name].starts_from
            if start is not None and start not in self.contestants:
                raise ValueError(f"contestants names {name!r}, which goes on from {start!r}; name that too")
        spans = sorted([self.base.rows, self.train_rows, self.tune_rows])
        if any(first[1] > second[0] for first, second in zip(spans, spans[1:])):
            raise ValueError("base.rows, train_rows and tune_rows overlap; give each its own rows")
        if self.tuning_seed in self.seeds:
            raise ValueError(f"tuning_seed {self.tuning_seed} is one of seeds; choose another")
        return self

    @classmethod
    def read(cls, name: str) -> Grid:
        """The grid of this name in `grids/`, or in a YAML file.

        Raises:
            ValueError: no such file, or it is no grid.
        """
        path = Path(name) if name.endswith((".yaml", ".yml")) else GRIDS / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(found.stem for found in GRIDS.glob("*.yaml")))
            raise ValueError(f"grid {name!r} is not known; choose one of {known}, or give a YAML file.")
        try:
            return cls.model_validate(yaml.safe_load(path.read_text("utf-8")))
        except pydantic.ValidationError as error:
            raise ValueError(f"{path}: {first_complaint(error).replace('of a recipe', 'of a grid')}") from None
        except yaml.YAMLError as error:
            place = getattr(error, "problem_mark", None)
            where = "" if place is None else f" in line {place.line + 1}"
            raise ValueError(f"{path} is not YAML{where}; correct it.") from None
