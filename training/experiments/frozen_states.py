"""States of a frozen encoder, computed once and kept in half precision."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoTokenizer

from warrant_hf.modeling.base_weights import find_backbone

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


class FrozenEncoder:
    """The encoder in bfloat16, and its tokenizer."""

    def __init__(self, name: str = ENCODER):
        folder = find_backbone(name)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval().requires_grad_(False)

    def ids(self, text: str) -> list[int]:
        """Token ids without special ones."""
        return self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]

    def window(self, first: list[int], second: list[int]) -> list[int]:
        """[CLS] first [SEP] second [SEP]."""
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [cls, *first, sep, *second, sep] if second else [cls, *first, sep]

    @torch.inference_mode()
    def states(self, windows: list[list[int]], batch_tokens: int = 6000) -> list[torch.Tensor]:
        """`[tokens, 384]` in bfloat16 of each window; windows of like length share a batch."""
        found: list = [None] * len(windows)
        order = sorted(range(len(windows)), key=lambda at: len(windows[at]))
        while order:
            longest = len(windows[order[-1]])
            batch = [order.pop() for _ in range(min(len(order), max(batch_tokens // longest, 1)))]
            ids = torch.zeros(len(batch), longest, dtype=torch.long)
            mask, kind = torch.zeros_like(ids), torch.zeros_like(ids)
            sep = self.tokenizer.sep_token_id
            for row, at in enumerate(batch):
                size = len(windows[at])
                ids[row, :size], mask[row, :size] = torch.tensor(windows[at]), 1
                kind[row, windows[at].index(sep) + 1 : size] = 1
            states = self.model(input_ids=ids, attention_mask=mask, token_type_ids=kind).last_hidden_state
            for row, at in enumerate(batch):
                found[at] = states[row, : len(windows[at])].clone()
        return found

    def sentence_embeddings(self, texts: list[str]) -> torch.Tensor:
        """`[texts, 384]` in float32, means over tokens of length 1, as the encoder was trained for."""
        states = self.states([self.window(self.ids(text), []) for text in texts])
        means = torch.stack([state.float().mean(0) for state in states])
        return torch.nn.functional.normalize(means, dim=-1)
