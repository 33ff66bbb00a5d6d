"""Entry point on Hugging Face Spaces and for `python app.py`; the page is built in `warrant_hf.space.app`."""

import warrant_hf
from warrant_hf.space.app import launch

if __name__ == "__main__":
    launch(warrant_hf.load_default())
