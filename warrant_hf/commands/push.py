"""`warrant-hf push`: a selector in a folder goes to the Hub, with the card that its training left."""

from __future__ import annotations

from pathlib import Path

import typer

from ..hub.model_card import CARD, FIGURE
from .loading import load_model


def run(*, model, repository, private, with_code, message) -> None:
    from huggingface_hub import RepoUrl, upload_folder

    from ..modeling.hub_errors import hub_sentences

    if not Path(model).is_dir():
        raise ValueError(f"{model} is no folder; give that of a trained selector.")
    selector = load_model(model)
    commit = selector.push_to_hub(repository, private=private, with_code=with_code, commit_message=message)
    repository = RepoUrl(commit.repo_url).repo_id  # with the namespace
    if (Path(model) / CARD).is_file():
        with hub_sentences(repository):
            commit = upload_folder(
                folder_path=model, repo_id=repository, allow_patterns=[CARD, FIGURE], commit_message="Upload card"
            )
    typer.echo(f"{commit.repo_url} at {commit.oid}")


__all__ = ["run"]
