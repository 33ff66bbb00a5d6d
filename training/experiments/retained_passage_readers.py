"""Two small readers over frozen states, with mass-aware attention where they read the passages.

Both are pre-norm, and no LayerNorm stands between that attention and the state Z that the head gets: there it would
erase the amplitude. The task is to tell the answer from other answers; it never sees an incomplete input.

States, answers and Z share one space at first: projections start as one random rotation and its inverse, the layers
around as zero. So a reader begins as attention by similarity, whose result is compared with the answers, and is
better than chance before it is trained; some hundred questions do not teach that.
"""

from __future__ import annotations

import torch
from retained_passage_inputs import Batch, Item, collate
from torch import Tensor, nn
from torch.nn import functional as F

from warrant_hf.diagnostics.probes import support_coordinate
from warrant_hf.modeling.attention_modules import MassAwareAttention

WIDTH, HEADS = 128, 4
BATCH, EPOCHS = 16, 2
DECODER_STATES = 4
_SHARPNESS = 10.0  # answers are embeddings of length 1
_LOGIT_SCALE = 1.0


class EncoderReader(nn.Module):
    """One query, the mean of the question's states, reads all tokens once: Z = query + MAA(LN(query), tokens)."""

    def __init__(self, power: float):
        super().__init__()
        self.power = power
        self.query, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.read = MassAwareAttention(WIDTH, HEADS, power=power)
        self.head = nn.Linear(WIDTH, WIDTH)
        _share_space(self, [self.read])

    def forward(self, batch: Batch, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Z `[B, 128]`, and the weights `[B, H, 1, T]` if asked for."""
        query = self.query(_mean(batch.question, batch.question_padding))[:, None]
        read, weights = self.read(
            self.norm(query), batch.tokens, key_padding_mask=batch.padding, need_weights=need_weights,
            average_attn_weights=False,
        )  # fmt: skip
        return (query + read)[:, 0], weights


class DecoderLayer(nn.Module):
    """Self-attention (softmax), mass-aware cross-attention, feed-forward; each behind its LayerNorm."""

    def __init__(self, power: float):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.mix = MassAwareAttention(WIDTH, HEADS, power=1.0)
        self.read = MassAwareAttention(WIDTH, HEADS, power=power)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, states, batch, need_weights):
        states = states + self.mix(self.norms[0](states))[0]
        read, weights = self.read(
            self.norms[1](states), batch.tokens, key_padding_mask=batch.padding, need_weights=need_weights,
            average_attn_weights=False,
        )  # fmt: skip
        states = states + read
        return states + self.feed(self.norms[2](states)), weights


class FiDReader(nn.Module):
    """Fusion in decoder: four decoder states, means of the four quarters of the question, read the tokens of all
    passages, each encoded on its own, in two layers. Z is the mean of the last states."""

    def __init__(self, power: float):
        super().__init__()
        self.power = power
        self.query = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer(power) for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)
        _share_space(self, [layer.read for layer in self.layers])
        for layer in self.layers:
            for last in (layer.mix.out_proj, layer.feed[-1]):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)

    def forward(self, batch: Batch, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Z `[B, 128]`, and the last layer's weights `[B, H, Q, T]` if asked for."""
        states, weights = self.query(_quarters(batch.question, batch.question_padding)), None
        for layer in self.layers:
            states, weights = layer(states, batch, need_weights and layer is self.layers[-1])
        return states.mean(1), weights


@torch.no_grad()
def _share_space(reader, reads):
    rotation = nn.init.orthogonal_(torch.empty(WIDTH, WIDTH))
    reader.query.weight.copy_(rotation)
    reader.head.weight.copy_(rotation.T / _SHARPNESS)
    for read in reads:  # query, key, value
        read.in_proj_weight.copy_(torch.cat([torch.eye(WIDTH) * _LOGIT_SCALE, rotation, rotation]))
        read.out_proj.weight.copy_(torch.eye(WIDTH) / len(reads))
    for linear in (reader.query, reader.head):
        nn.init.zeros_(linear.bias)


def _quarters(states, padding):
    """`[B, 4, W]`: means over four parts of like length of each row's tokens."""
    lengths = (~padding).sum(1, keepdim=True)
    part = torch.arange(states.shape[1]) * DECODER_STATES // lengths.clamp(min=1)  # 4 and more in the padding
    member = (part[:, None] == torch.arange(DECODER_STATES)[:, None]).to(states.dtype)  # [B, 4, Q]
    return member @ states / member.sum(-1, keepdim=True).clamp(min=1)


def _mean(states, padding):
    kept = (~padding)[..., None].to(states.dtype)
    return (states * kept).sum(1) / kept.sum(1)


READER_CLASSES = {"encoder": EncoderReader, "fid": FiDReader}


class Answers:
    """Embeddings of answers, and for each question the wrong ones that are most like the right one.

    Args:
        texts: answer of each question.
        embeddings: `[N, W]`, of length 1.
        wrong: how many wrong ones.
    """

    def __init__(self, texts: list[str], embeddings: Tensor, wrong: int):
        folded = [text.casefold() for text in texts]
        number = {text: at for at, text in enumerate(dict.fromkeys(folded))}
        self.key = torch.tensor([number[text] for text in folded])
        self.embeddings = embeddings
        first = torch.tensor([folded.index(text) for text in number])
        alike = embeddings @ embeddings[first].T
        alike[torch.arange(len(texts)), self.key] = -torch.inf
        self.candidates = torch.cat(
            [torch.arange(len(texts))[:, None], first[alike.topk(min(wrong, len(number) - 1)).indices]], dim=1
        )


def train_reader(kind: str, power: float, items: list[Item], answers: Answers, *, seed: int, rate: float) -> nn.Module:
    """Trains with Adam in bfloat16 autocast: the right answer against similar ones and those of the batch."""
    torch.manual_seed(seed)
    model = READER_CLASSES[kind](power)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = EPOCHS * (len(items) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        order = torch.randperm(len(items), generator=generator)
        for at in order[: len(items) // BATCH * BATCH].view(-1, BATCH):
            batch = collate([items[i] for i in at.tolist()], torch.bfloat16)
            with torch.autocast("cpu", torch.bfloat16):
                state, _ = model(batch)
            answer = F.linear(state.float(), model.head.weight, model.head.bias) * _SHARPNESS
            own = torch.einsum("bd,bcd->bc", answer, answers.embeddings[answers.candidates[at]])
            others = answer @ answers.embeddings[at].T
            others = others.masked_fill(answers.key[at][:, None] == answers.key[at], -torch.inf)
            loss = F.cross_entropy(torch.cat([own, others], dim=1), torch.zeros(BATCH, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def read(model: nn.Module, items: list[Item], answers: Answers, *, masks_repeats=False, substituted=False) -> dict:
    """What a frozen reader makes of each item, in bfloat16 autocast.

    With `substituted` each question gets the passages of the one after it.

    Returns:
        `state` `[N, 128]`, `support` `[N, H]` (c), `log_probability` `[N]` of the right answer, `is_right` `[N]`.
    """
    found = {"state": [], "support": [], "log_probability": [], "is_right": []}
    for start in range(0, len(items), BATCH):
        part = list(range(start, min(start + BATCH, len(items))))
        chosen = [items[i] for i in part]
        if substituted:
            others = [items[(i + 1) % len(items)] for i in part]
            chosen = [Item(a.question, b.passages, b.token_ids) for a, b in zip(chosen, others, strict=True)]
        with torch.autocast("cpu", torch.bfloat16):
            state, weights = model(collate(chosen, torch.bfloat16, masks_repeats), need_weights=not substituted)
        state = state.float()
        scores = torch.einsum("bd,bcd->bc", model.head(state), answers.embeddings[answers.candidates[part]])
        found["state"].append(state)
        if weights is not None:
            found["support"].append(torch.from_numpy(support_coordinate(weights, model.power)))
        found["log_probability"].append((scores * _SHARPNESS).log_softmax(-1)[:, 0])
        found["is_right"].append(scores.argmax(-1) == 0)
    return {name: torch.cat(parts).numpy() for name, parts in found.items() if parts}
