"""Output files that are there whole or not at all, and that are known to be writable before the work begins."""

from __future__ import annotations

import gzip
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def check_target(path: str | Path, *, create_folder: bool = False) -> Path:
    """The file that `path` names, behind links, which stay links; it exists afterwards only if it did before.

    Raises:
        ValueError: no file can be written there.
    """
    try:
        target = Path(path).resolve()
        if create_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.is_dir():
            raise ValueError(f"{path}: the folder {Path(path).parent} does not exist; create it first.")
        if target.exists() and not target.is_file():  # to rename a file onto a device would destroy the device
            raise ValueError(f"{path} is a folder or a device; give the name of a file.")
        if len(os.fsencode(target.name)) > 255:
            raise ValueError(f"{path}: the file name is too long; shorten it.")
        probe = _beside(target)
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = getattr(error, "strerror", None) or "the links run in a circle"
        raise ValueError(f"{path} cannot be written ({reason}); give another place.") from None
    return target


@contextmanager
def replaced_when_complete(path: str | Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when the block ends well, and vanishes when it does not.

    A name that ends in `.gz` is compressed.
    """
    target = check_target(path)
    partial = _beside(target)
    opener = gzip.open if target.suffix == ".gz" else open
    try:
        with opener(partial, "wt", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{uuid.uuid4().hex}.partial")  # not the target's name, which may be as long as allowed
