"""The selector that is used when none is named: an adapter in this package on a small public encoder."""

from __future__ import annotations

from ..modeling import DEFAULT_CHECKPOINT, AutoModelForEvidenceSelection


def load_default(**kwargs):
    """The default selector, in evaluation mode.

    Its encoder, `sentence-transformers/all-MiniLM-L6-v2`, comes from the Hub's cache, from the extra
    `warrant-hf[offline]`, or from the Hub; its digest is checked.

    Args:
        kwargs: as in `from_pretrained`.

    Raises:
        OSError: the encoder is not on this machine and the Hub cannot be reached.
    """
    return AutoModelForEvidenceSelection.from_pretrained(DEFAULT_CHECKPOINT, **kwargs).eval()


__all__ = ["load_default"]
