"""Whether this code is the installed package, or the copy of it in a checkpoint."""

from __future__ import annotations

from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

#: The copy, which `trust_remote_code=True` runs where the package is not installed. Both can be in one process, and
#: several copies too; then nothing that a copy registers may take the place of what is there.
IS_COPY = __name__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}.")

__all__ = ["IS_COPY"]
