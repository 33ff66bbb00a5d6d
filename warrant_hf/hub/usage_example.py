"""The usage snippet of a card, with the output that the checkpoint really gives."""

from __future__ import annotations

QUESTION = "Who wrote Emma?"
PASSAGES = [
    "Emma is a novel by Jane Austen.",
    "Emma Stone is an American actress.",
    "The novel was published in London in 1815.",
]
# One line of the output. The content head of `base` has neither attention nor permission.
_LINES = {
    True: "{probability:.2f}  read {attention:.2f}  may count {permission:.2f}  {text}",
    False: "{probability:.2f}  {text}",
}


def usage_code(name: str | None, has_path: bool = True) -> str:
    """Python code that prints the evidence of the example.

    Args:
        name: folder or Hub id of the selector; `None` for the one that ships with the package.
        has_path: whether its variant has an evidence path, and so attention and permission.
    """
    chosen = "" if name is None else f', model="{name}"'
    passages = "\n".join(f'    "{passage}",' for passage in PASSAGES)
    return (
        "import warrant_hf  # registers the task\n"
        "from transformers import pipeline\n\n"
        f'pipe = pipeline("evidence-selection"{chosen})\n'
        f"passages = [\n{passages}\n]\n"
        f'for item in pipe(question="{QUESTION}", passages=passages)["evidence"]:\n'
        f'    print("{_LINES[has_path]}".format(**item))'
    )


def usage_output(model) -> str:
    """What `usage_code` prints for a selector, by its own `rank`."""
    line = _LINES[model.readout.variant.path]
    return "\n".join(line.format(**item) for item in model.rank(QUESTION, PASSAGES)["evidence"])


__all__ = ["PASSAGES", "QUESTION", "usage_code", "usage_output"]
