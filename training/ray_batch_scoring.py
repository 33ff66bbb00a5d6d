"""Scores a JSONL file with Ray Data: a selector in each worker, rows in their order.

    pip install "ray[data]"
    python training/ray_batch_scoring.py ROWS.jsonl FOLDER --workers 2 [--model NAME]

Rows are {"question": ..., "candidates": [{"text": ...}, ...], ...}; Arrow wants every row to have fields of the same
types, so candidates are objects and no bare texts. FOLDER gets JSONL files whose names sort in the order of the rows.
`warrant-hf select --jsonl` under `torchrun` does the same without Ray, for one machine or a shared disk.
"""

from __future__ import annotations

import argparse

import pyarrow
import ray


class Scorer:
    """Holds a selector; called with a table of rows, gives it back with the fields of the result added."""

    def __init__(self, model: str | None = None):
        from warrant_hf.commands.loading import load_model

        self.model = load_model(model)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        from warrant_hf.commands.select import RESULT_FIELDS
        from warrant_hf.data.schema import validate_row

        records = table.to_pylist()
        rows = [validate_row(record, where=f"question {record.get('question')!r}") for record in records]
        passages = [[candidate.to_dict() for candidate in row.candidates] for row in rows]
        results = self.model.rank_batch([row.question for row in rows], passages)
        fields = ({name: result[name] for name in RESULT_FIELDS} for result in results)
        return pyarrow.Table.from_pylist([record | field for record, field in zip(records, fields, strict=True)])


def score(source: str, model: str | None = None, *, workers: int = 2, batch_size: int = 64) -> ray.data.Dataset:
    """The rows of a file with what the selector found; nothing is read before the data set is used."""
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    return ray.data.read_json(source).map_batches(
        Scorer,
        fn_constructor_kwargs={"model": model},
        compute=ray.data.ActorPoolStrategy(size=workers),
        batch_size=batch_size,
        batch_format="pyarrow",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a JSONL file with Ray Data.")
    parser.add_argument("rows", help="JSONL file, or what else ray.data.read_json reads")
    parser.add_argument("folder", help="where the scored rows go")
    parser.add_argument("--model", help="folder or Hub id of a selector; without it, the shipped one")
    parser.add_argument("--workers", type=int, default=2, help="selectors at work at once, each on one CPU")
    parser.add_argument("--batch-size", type=int, default=64, help="rows that a worker gets at a time")
    parser.add_argument("--address", help="a Ray cluster; without it, one is started on this machine")
    given = parser.parse_args()
    # One CPU more than workers: somebody has to read.
    ray.init(given.address, **({} if given.address else {"num_cpus": given.workers + 1}))
    score(given.rows, given.model, workers=given.workers, batch_size=given.batch_size).write_json(given.folder)


if __name__ == "__main__":
    main()
