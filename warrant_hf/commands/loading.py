"""The model that a command works with."""

from __future__ import annotations


def load_model(name: str | None):
    """The selector in folder `name` or of Hub id `name`; the default checkpoint for `None`.

    Only safetensors are read, and code in a checkpoint is never run.
    """
    import huggingface_hub
    import transformers

    # A command's stderr is for its own sentences.
    huggingface_hub.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if name is None:
        from ..hub import load_default

        model = load_default()
    else:
        from ..modeling import AutoModelForEvidenceSelection

        model = AutoModelForEvidenceSelection.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
    return model.eval()
