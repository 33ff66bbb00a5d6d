"""The card of a selector that no recipe of ours is at hand for: the one it came with, or a short one in its place."""

from __future__ import annotations

from pathlib import Path

import yaml
from huggingface_hub import ModelCardData, hf_hub_download, metadata_load
from huggingface_hub.errors import EntryNotFoundError

from ..modeling import DEFAULT_CHECKPOINT
from ..modeling.hub_errors import hub_sentences
from .answerability_section import with_answerability
from .model_card import CARD, FIGURE, TAGS
from .usage_example import usage_code

#: What a copy of a selector takes along beside weights and processor.
CARRIED = (CARD, FIGURE, "recipe.json")


def carried_files(name: str | None, **source) -> dict[str, Path]:
    """Those of `CARRIED` that there are, by name.

    Args:
        name: folder or Hub id; `None` for the checkpoint that ships with the package.
        source: which files of the Hub; see `source_arguments`.

    Raises:
        OSError: the Hub refuses.
    """
    folder = Path(DEFAULT_CHECKPOINT if name is None else name)
    if folder.is_dir():
        return {file: folder / file for file in CARRIED if (folder / file).is_file()}
    found = {}
    with hub_sentences(name):
        for file in CARRIED:
            try:
                found[file] = Path(hf_hub_download(name, file, **source))
            except EntryNotFoundError:  # also where it is not in the cache and the Hub cannot be reached
                continue
    return found


def read_card(path: Path) -> str:
    """The text of a card that the Hub will take.

    Raises:
        ValueError: it is not UTF-8, or its metadata are no YAML mapping.
    """
    try:
        metadata_load(path)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} begins with metadata that the Hub does not take ({reason}); write a YAML mapping between two "
            "lines ---."
        ) from None


def short_card(name: str, config, copy_of: str | None = None) -> str:
    """A card that says what the config says, and that nobody has written down the rest.

    Args:
        name: folder or Hub id that the usage snippet loads.
        config: of the selector.
        copy_of: Hub id of the selector that this is a calibrated copy of.
    """
    data = ModelCardData(library_name="transformers", pipeline_tag="text-ranking", base_model=copy_of, tags=[*TAGS])
    has_path = config.variant != "base"
    origin = "" if copy_of is None else f"A copy of `{copy_of}` with another calibration. "
    card = (
        f"---\n{data.to_yaml()}\n---\n\n# {name.rpartition('/')[2]}\n\n"
        "Reads a question and candidate passages and returns which of them support an answer.\n\n"
        f"```python\n{usage_code(name, has_path)}\n```\n\n"
        "| | |\n|---|---|\n"
        f"| variant | {config.variant} |\n"
        f"| encoder | {config.backbone_config.model_type} |\n\n"
        "## Limits\n\n"
        f"{origin}Nobody has written down here what it was trained on, how, or how well it does. Look at results on\n"
        "your own data first.\n"
    )
    calibration = config.answerability_calibration
    return card if calibration is None else with_answerability(card, calibration)


__all__ = ["CARRIED", "carried_files", "read_card", "short_card"]
