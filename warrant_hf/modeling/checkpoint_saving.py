"""Saving and sharing a selector: with its processor, and with the code that loads it where this package is missing."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from .code_copy import IS_COPY
from .hub_errors import hub_sentences

TASK = "evidence-selection"
_ENTRY = "checkpoint_code"


class EvidenceSavingMixin:
    """`save_pretrained` and `push_to_hub` for selectors."""

    # What `save_pretrained` does when it is not told; None for as it was loaded.
    _with_code = None

    def save_pretrained(self, save_directory, *, with_code=None, push_to_hub=False, **kwargs):
        """As in `PreTrainedModel`, with the processor, without which a checkpoint cannot read text.

        Args:
            save_directory (`str` or `Path`): folder.
            with_code (`bool`, *optional*): write this package's modeling code beside the weights, so that
                `AutoModel.from_pretrained(..., trust_remote_code=True)` works where the package is not installed.
                When not given, only for a model that was itself loaded by such code.
            push_to_hub (`bool`): also [`push_to_hub`], to `repo_id` or else to the name of the folder, with code
                unless `with_code=False`.
            kwargs: as in `PreTrainedModel`, and with `push_to_hub` those of [`push_to_hub`].

        Raises:
            ValueError: the model is of a class that the code does not hold.
        """
        hub_names = ("repo_id", "private", "commit_message", "commit_description", "revision", "create_pr", "tags")
        hub = {name: kwargs.pop(name) for name in hub_names if name in kwargs}
        wants_code = next((wish for wish in (with_code, self._with_code) if wish is not None), IS_COPY)
        if IS_COPY and hasattr(self.config, "custom_pipelines"):
            self.config.custom_pipelines = _pipelines()  # a pipeline has put classes there, which are no JSON
        super().save_pretrained(save_directory, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        try:
            self.processor.save_pretrained(save_directory)
        except (OSError, ValueError):  # a model that was built in code and never given one
            if self._processor is not None:
                raise
        if wants_code:
            write_code(self, save_directory)
        if push_to_hub:
            names = ("token", "max_shard_size")
            hub |= {name: kwargs[name] for name in names if name in kwargs}
            hub.setdefault("repo_id", Path(save_directory).absolute().name)
            self.push_to_hub(**hub, with_code=with_code is not False)

    def push_to_hub(self, repo_id, *, with_code=True, **kwargs):
        """Uploads model and processor, and the code that loads them where this package is not installed.

        Who has the package needs no code, and none of the repository's is run then.

        Args:
            repo_id (`str`): `"name"` or `"organisation/name"`.
            with_code (`bool`, defaults to `True`): upload the modeling code too; see `save_pretrained`.
            kwargs: as in `PreTrainedModel.push_to_hub` (`private`, `token`, `revision`, `commit_message`, ...).

        Raises:
            OSError: the Hub cannot be reached or refuses.
        """
        self._with_code = with_code
        try:
            with hub_sentences(repo_id):
                return super().push_to_hub(repo_id, **kwargs)
        finally:
            del self._with_code


def write_code(model, folder) -> None:
    """Writes the modeling code to the folder of a saved selector, and who needs it into its JSON files.

    The result is that of transformers' own `register_for_auto_class`, without its lasting effect on the class.

    Raises:
        ValueError: the model is of a class that the code does not hold.
    """
    name, folder = type(model).__name__, Path(folder)
    entry = importlib.import_module(f".{_ENTRY}", __package__)
    if not hasattr(entry, name):
        raise ValueError(f"{name} is not a class of this package, so its code cannot be saved; use with_code=False.")
    for file in [entry.__file__, *get_relative_import_files(entry.__file__)]:
        shutil.copyfile(file, folder / Path(file).name)
    auto_map = {"AutoProcessor": f"{_ENTRY}.EvidenceProcessor"}
    _update(folder / "processor_config.json", auto_map=auto_map)
    auto_map |= {
        "AutoConfig": f"{_ENTRY}.{type(model.config).__name__}",
        "AutoModel": f"{_ENTRY}.{name}",
    }
    _update(folder / "config.json", auto_map=auto_map, custom_pipelines=_pipelines())


def _pipelines():
    return {TASK: {"impl": f"{_ENTRY}.EvidenceSelectionPipeline", "pt": ["AutoModel"], "type": "text"}}


def _update(path, **values):
    if path.is_file():
        content = json.loads(path.read_text(encoding="utf-8")) | values
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


__all__ = ["EvidenceSavingMixin", "TASK", "write_code"]
