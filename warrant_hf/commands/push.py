"""`warrant-hf push`: a selector in a folder goes to the Hub, with the card that its training left."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from ..hub.carried_card import read_card, short_card
from ..hub.model_card import CARD, FIGURE
from .loading import load_model


def run(*, model, repository, private, with_code, message) -> None:
    from huggingface_hub import create_repo, file_exists, upload_folder

    from ..modeling.hub_errors import hub_sentences

    source = Path(model)
    if not source.is_dir():
        raise ValueError(f"{model} is no folder; give that of a trained selector.")
    card = read_card(source / CARD) if (source / CARD).is_file() else None
    selector = load_model(model)
    with TemporaryDirectory() as folder, hub_sentences(repository):
        selector.save_pretrained(folder, with_code=with_code)
        repository = create_repo(repository, private=private, exist_ok=True).repo_id  # with the namespace
        if card is not None:
            for name in (CARD, FIGURE):
                if (source / name).is_file():
                    shutil.copyfile(source / name, Path(folder) / name)
        elif file_exists(repository, CARD):
            typer.echo(f"{model} has no readable {CARD}; the card that {repository} has stays as it is.")
        else:
            card = short_card(repository, selector.config)
            (Path(folder) / CARD).write_text(card, encoding="utf-8")
            typer.echo(
                f"{model} has no readable {CARD}; a short card goes up, which says that nobody has written one."
            )
        commit = upload_folder(
            folder_path=folder, repo_id=repository, commit_message=message or "Upload evidence selector"
        )
    typer.echo(f"{commit.repo_url} at {commit.oid}")


__all__ = ["run"]
