"""States of a frozen encoder, computed once for every (question, candidate), and lists composed from them.

With isolated packing a candidate's states depend on its question and itself alone, and the question's on nothing else.
So whatever list a training step draws can be put together from stored states, and a readout on top gives what the
whole selector gives, up to the rounding of the stored type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from warrant_hf.data.schema import EvidenceRow
from warrant_hf.modeling.processing_evidence import full_text
from warrant_hf.trainer import NO_LABEL


class CachedStates:
    """States of the rows given to `add`, by row id and text of the candidate.

    Args:
        model: a selector whose encoder reads candidates in isolation.
        dtype: of the stored states; float16 rounds in the fourth digit.

    Raises:
        ValueError: the candidates of a window see each other.
    """

    def __init__(self, model, dtype: torch.dtype = torch.float16):
        if model.config.packing != "isolated":
            raise ValueError(
                f"packing is {model.config.packing!r}, in which a candidate's states depend on the others; cached "
                "states need 'isolated'."
            )
        self.model, self.dtype = model.eval(), dtype
        self._questions: dict[str, torch.Tensor] = {}
        self._candidates: dict[tuple[str, str], list[torch.Tensor]] = {}

    @property
    def width(self) -> int:
        return self.model.state_size()

    @torch.inference_mode()
    def add(
        self, rows: Sequence[EvidenceRow], batch_size: int = 8, advance: Callable[[int], None] = lambda n: None
    ) -> None:
        """Encodes the candidates of rows; those it has are passed over."""
        lacking = [
            {text: p for text, p in _texts(row).items() if (row.id, text) not in self._candidates} for row in rows
        ]
        wanted = [(row, texts) for row, texts in zip(rows, lacking) if texts]
        for start in range(0, len(wanted), batch_size):
            chunk, texts = zip(*wanted[start : start + batch_size])
            listed = [list(found.values()) for found in texts]
            batch = self.model.processor([row.question for row in chunk], listed).to(self.model.device)
            bf16 = torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.dtype == torch.float16)
            with bf16:
                states = self.model.encode(batch["input_ids"], batch["segment_ids"])
            states, segments = states.to(self.dtype).cpu().flatten(1, 2), batch["segment_ids"].cpu().flatten(1)
            for at, row in enumerate(chunk):
                first = batch["segment_ids"][at, 0].cpu() == 0
                self._questions[row.id] = states[at, : first.shape[0]][first].clone()
                for item, owner in enumerate(batch["item_candidates"][at].tolist()):
                    if owner >= 0:
                        found = states[at, segments[at] == item + 1].clone()
                        self._candidates.setdefault((row.id, list(texts[at])[owner]), []).append(found)
            advance(len(chunk))

    def save(self, path: Path) -> None:
        """Writes all states to one safetensors file, whole or not at all."""
        index = {"questions": {}, "candidates": []}
        parts, at = [], 0
        for row, states in self._questions.items():
            index["questions"][row] = [at, at := at + len(states)]
            parts.append(states)
        for (row, text), items in self._candidates.items():
            spans = []
            for states in items:
                spans.append([at, at := at + len(states)])
                parts.append(states)
            index["candidates"].append([row, text, spans])
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".part")
        save_file({"states": torch.cat(parts)}, half, metadata={"index": json.dumps(index)})
        half.replace(path)

    def load(self, path: Path) -> None:
        """Maps what `save` wrote into memory, where processes share it."""
        with safe_open(path, framework="pt") as file:
            states, index = file.get_tensor("states"), json.loads(file.metadata()["index"])
        for row, (start, stop) in index["questions"].items():
            self._questions[row] = states[start:stop]
        for row, text, spans in index["candidates"]:
            self._candidates[row, text] = [states[start:stop] for start, stop in spans]

    def collate(self, items: Sequence[dict]) -> dict[str, torch.Tensor]:
        """A batch for the readout: items of a `CandidateDataset` (`id`, `passages`, `labels`, `lists`)."""
        composed = [self._compose(item) for item in items]
        tokens = max(len(states) for states, _, _ in composed)
        segments = max(len(owners) for _, _, owners in composed)
        count = max(len(item["passages"]) for item in items)
        batch = {
            "states": torch.zeros(len(items), tokens, self.width, dtype=self.dtype),
            "segment_ids": torch.full((len(items), tokens), -1),
            "item_candidates": torch.full((len(items), segments), -1),
            "candidate_mask": torch.zeros(len(items), count, dtype=torch.bool),
            "labels": torch.full((len(items), count), NO_LABEL),
        }
        lists = max(len(item.get("lists") or ()) for item in items)
        if lists:
            batch["candidate_lists"] = torch.zeros(len(items), lists, count, dtype=torch.bool)
        for at, (item, (states, segment_ids, owners)) in enumerate(zip(items, composed)):
            batch["states"][at, : len(states)] = states
            batch["segment_ids"][at, : len(states)] = segment_ids
            batch["item_candidates"][at, : len(owners)] = torch.tensor(owners)
            batch["candidate_mask"][at, : len(item["passages"])] = True
            batch["labels"][at, : len(item["labels"])] = torch.tensor(item["labels"])
            for number, indices in enumerate(item.get("lists") or ()):
                batch["candidate_lists"][at, number, indices] = True
        return batch

    def _compose(self, item):
        parts, owners = [self._questions[item["id"]]], []
        for at, passage in enumerate(item["passages"]):
            for states in self._candidates[item["id"], full_text(passage)]:
                parts.append(states)
                owners.append(at)
        segment_ids = torch.repeat_interleave(
            torch.arange(len(parts)), torch.tensor([len(states) for states in parts])
        )
        return torch.cat(parts), segment_ids, owners


def _texts(row):
    """Text -> passage of the row's distinct candidates, in order."""
    passages = [candidate.to_passage() for candidate in row.candidates]
    return {full_text(passage): passage for passage in reversed(passages)}
