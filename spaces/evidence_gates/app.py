"""Entry point on Hugging Face Spaces and for `python app.py`; the page is built in `warrant_hf.space.app`."""

from importlib.util import find_spec

import torch

import warrant_hf
from warrant_hf.space.app import launch

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    launch(warrant_hf.load_default().to(device), mcp=find_spec("mcp") is not None)
