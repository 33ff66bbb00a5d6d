"""What the Hub's client raises, in one sentence that says what to do."""

from __future__ import annotations

import contextlib

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_GIVE_TOKEN = "token=... or the command `hf auth login`"


def hub_sentence(name, error) -> str | None:
    """Why the Hub did not serve `name`, or `None` if the Hub has not answered.

    Args:
        name (`str`): Hub id.
        error: what was raised; transformers raises `OSError` from the client's own error.
    """
    while error is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, GatedRepoError):  # also a RepositoryNotFoundError
        return f"{name} is gated; ask for access on its page, and give a token that has it by {_GIVE_TOKEN}."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{name} is not on the Hub, or is private; check the name, or give a token that may read it by "
            f"{_GIVE_TOKEN}."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name} is on the Hub, but has no such revision; check the name of the branch or tag, or the commit."
    if status == 401 and "authorization" not in response.request.headers:
        return f"The Hub wants to know who you are before it does this to {name}; give a token by {_GIVE_TOKEN}."
    if status == 401:
        return f"The Hub does not accept the token that was given for {name}; give a valid one by {_GIVE_TOKEN}."
    if status == 403:
        return f"The token that was given may not do this to {name}; give one with more rights by {_GIVE_TOKEN}."
    return f"The Hub answered {status} when asked for {name}; try again later." if status else None


@contextlib.contextmanager
def hub_sentences(name):
    """Turns the errors of the Hub's client inside into an `OSError` of one sentence."""
    try:
        yield
    except (HfHubHTTPError, OSError) as error:
        sentence = hub_sentence(name, error)
        if sentence is None:
            raise
        raise OSError(sentence) from error


__all__ = ["hub_sentence", "hub_sentences"]
