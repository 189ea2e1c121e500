"""A small GPT with AdamW, as torch code and written by hand in JAX: what benchmarks and a test compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 4, 256, 4, 128, 4, 1000
RATE, BETA1, BETA2, EPSILON, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        b, n, _ = x.shape
        q, k, v = (
            t.view(b, n, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a head."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, length) ids to (batch, length, vocabulary) logits."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def norm(p: dict[str, Any], name: str, x: Any) -> Any:
    """Layer normalization with the parameters of ``name``."""
    mean = x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return (x - mean) * scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p: dict[str, Any], name: str, x: Any) -> Any:
    """x times the transposed weight of ``name``, plus its bias if it has one."""
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def gpt_loss(p: dict[str, Any], ids: Any, targets: Any) -> Any:
    """The same model in JAX."""
    x = p["tokens.weight"][ids] + p["places.weight"][: ids.shape[1]]
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for i in range(sum(name.endswith("qkv.weight") for name in p)):
        name = f"blocks.{i}"
        parts = jnp.split(linear(p, f"{name}.qkv", norm(p, f"{name}.norm1", x)), 3, -1)
        q, k, v = (t.reshape(*t.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for t in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / (WIDTH // HEADS) ** 0.5
        y = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1) @ v
        x = x + linear(p, f"{name}.out", y.transpose(0, 2, 1, 3).reshape(x.shape))
        hidden = jax.nn.gelu(linear(p, f"{name}.up", norm(p, f"{name}.norm2", x)))
        x = x + linear(p, f"{name}.down", hidden)
    logits = linear(p, "head", norm(p, "norm", x))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1).mean()


def adamw(
    loss: Callable[..., Any], p: Any, m: Any, v: Any, count: Any, *batch: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """One step of AdamW (Loshchilov and Hutter, 2019), as torch computes it."""
    value, grads = jax.value_and_grad(loss)(p, *batch)
    count = count + 1
    m = jax.tree.map(lambda a, g: BETA1 * a + (1 - BETA1) * g, m, grads)
    v = jax.tree.map(lambda a, g: BETA2 * a + (1 - BETA2) * g * g, v, grads)
    rate, root = RATE / (1 - BETA1**count), jnp.sqrt(1 - BETA2**count)
    p = jax.tree.map(
        lambda a, b, c: a * (1 - RATE * DECAY) - rate * b / (jnp.sqrt(c) / root + EPSILON), p, m, v
    )
    return p, m, v, count, value
