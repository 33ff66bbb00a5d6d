"""The default checkpoint, and the cards of checkpoints."""

from .default_checkpoint import load_default
from .model_card import write_card

__all__ = ["load_default", "write_card"]
