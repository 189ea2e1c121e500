"""A small GPT over bytes, and text to train it on that every Python installation has."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


class Attention(nn.Module):
    """Causal self-attention; works on the heads that its projections give, be it all or a part of them."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, T, dim) for (N, T, dim)."""
        heads = [
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and added to its input."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, T, dim) for (N, T, dim)."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder-only transformer that predicts the next byte."""

    def __init__(self, dim: int = 64, depth: int = 2, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, dim)
        self.positions = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, (N, T, 256), of (N, T) bytes."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.bytes(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus(limit: int = 1_000_000) -> Tensor:
    """Python's own standard library, up to ``limit`` bytes, as an int64 tensor."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8).long()


def batch(text: Tensor, step: int, seed: int, size: int, context: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets of a step, both (size, context); drawn from the step alone, so nothing to save."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(text) - context, (size,), generator=generator)
    window = text[starts[:, None] + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of the next byte, in nats."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def continued(model: nn.Module, prompt: bytes, count: int, context: int) -> bytes:
    """The prompt and ``count`` most likely bytes after it; every rank of a sharded model must call this."""
    device = next(model.parameters()).device
    tokens = torch.tensor(list(prompt.rjust(context, b"\n")))
    for _ in range(count):
        logits = model(tokens[None, -context:].to(device))
        tokens = torch.cat([tokens, logits[0, -1].argmax().cpu()[None]])
    return bytes(tokens[context - len(prompt) :].tolist())
