"""The card of a data set of candidate lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from huggingface_hub import DatasetCardData

from ..data.schema import EvidenceRow

TEMPLATE = Path(__file__).with_name("evidence_dataset_card.md.jinja")
# Upper ends of the size categories that the Hub knows.
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def render_dataset_card(
    name: str,
    splits: Mapping[str, Sequence[EvidenceRow]],
    *,
    licence: str | None,
    source: str,
    description: str = "",
    language: str | None = "en",
) -> str:
    """The text of a card whose metadata say where each split lies: `data/<split>.parquet`.

    Args:
        name: of the data set on the Hub, or of its folder.
        splits: rows by the name of their split.
        licence: as the Hub writes it, such as "cc-by-sa-4.0"; `None` where nobody has said.
        source, description: sentences, on where the data are from and how the lists were made.
        language: of the texts, `None` if unknown.
    """
    total = sum(map(len, splits.values()))
    data = DatasetCardData(
        language=language,
        license=licence,
        task_categories=["text-ranking"],
        size_categories=[next((word for end, word in _SIZES if total < end), "n>1M")],
        pretty_name=name.rpartition("/")[2],
        tags=["evidence-selection", "warrant-hf"],
        configs=[
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}.parquet"} for split in splits],
            }
        ],
    )
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        front_matter=data.to_yaml(),
        name=name,
        description=description,
        source=source,
        counts={split: _counts(rows) for split, rows in splits.items()},
    )


def _counts(rows):
    labels = [candidate.label for row in rows for candidate in row.candidates]
    return {
        "questions": len(rows),
        "candidates": len(labels),
        "golds": sum(label == 1 for label in labels),
        "labelled": None not in labels,
    }


__all__ = ["render_dataset_card"]
