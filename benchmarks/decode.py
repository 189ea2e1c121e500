"""Greedy decoding of 32 tokens with a static KV cache, batch 1, beside the same loop by hand in JAX.

The GPT of ``gpt.py``; one jitted step a token in JAX, plain eager code in strict and fused mode; nothing is
read before the end. ``python benchmarks/decode.py``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a host with libtpu and no TPU

import gpt
import jax
import jax.numpy as jnp
import steps
import torch
from torch.nn import functional as F

import torchtpu

TOKENS, ROOM = 32, 128
SIZE = gpt.WIDTH // gpt.HEADS


def torch_decoder(model: gpt.GPT, first: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Decode from one token; (TOKENS,) ids on the device."""
    shape = (1, gpt.HEADS, ROOM, SIZE)
    places = torch.arange(ROOM, device="tpu")

    def attend(block: gpt.Block, x: torch.Tensor, cache: Any, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, gpt.HEADS, 1, SIZE) for t in block.qkv(block.norm1(x)).split(gpt.WIDTH, 1))
        cache[0].index_copy_(2, at, k)
        cache[1].index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=(places <= at)[None, None, None])
        x = x + block.out(y.reshape(1, gpt.WIDTH))
        return x + block.down(F.gelu(block.up(block.norm2(x)), approximate="tanh"))

    @torch.no_grad()
    def decode() -> torch.Tensor:
        caches = [[torch.zeros(shape, device="tpu") for _ in range(2)] for _ in model.blocks]
        token, at, out = first, torch.zeros(1, dtype=torch.int64, device="tpu"), []
        for _ in range(TOKENS):
            x = model.tokens(token) + model.places(at)
            for block, cache in zip(model.blocks, caches, strict=True):
                x = attend(block, x, cache, at)
            token = model.head(model.norm(x)).argmax(-1)
            out.append(token)
            at = at + 1
        return torch.cat(out)

    return decode


def jax_decoder(p: dict[str, Any], first: Any) -> Callable[[], Any]:
    """The same by hand."""
    linear, norm = functools.partial(gpt.linear, p), functools.partial(gpt.norm, p)

    def step(caches: Any, token: Any, at: Any) -> Any:
        x, fresh = p["tokens.weight"][token] + p["places.weight"][at], []
        for i, (keys, values) in enumerate(caches):
            name = f"blocks.{i}"
            q, k, v = jnp.split(linear(f"{name}.qkv", norm(f"{name}.norm1", x)), 3, -1)
            keys = jax.lax.dynamic_update_slice(keys, k.reshape(1, gpt.HEADS, 1, SIZE), (0, 0, at[0], 0))
            values = jax.lax.dynamic_update_slice(values, v.reshape(1, gpt.HEADS, 1, SIZE), (0, 0, at[0], 0))
            scores = q.reshape(1, gpt.HEADS, 1, SIZE) @ keys.transpose(0, 1, 3, 2) / SIZE**0.5
            weights = jax.nn.softmax(jnp.where(jnp.arange(ROOM) <= at, scores, -jnp.inf), -1)
            x = x + linear(f"{name}.out", (weights @ values).reshape(1, gpt.WIDTH))
            x = x + linear(f"{name}.down", jax.nn.gelu(linear(f"{name}.up", norm(f"{name}.norm2", x))))
            fresh.append((keys, values))
        return fresh, linear("head", norm("norm", x)).argmax(-1), at + 1

    jitted = jax.jit(step, donate_argnums=0)

    def decode() -> Any:
        shape = (1, gpt.HEADS, ROOM, SIZE)
        caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(gpt.LAYERS)]
        token, at, out = first, jnp.zeros(1, jnp.int32), []
        for _ in range(TOKENS):
            caches, token, at = jitted(caches, token, at)
            out.append(token)
        return jnp.concatenate(out).block_until_ready()

    return decode


def main() -> None:
    """Check that all agree, measure and print."""
    torch.manual_seed(0)
    model = gpt.GPT()
    p = {k: jnp.array(t.detach().numpy()) for k, t in model.state_dict().items()}
    by_hand = jax_decoder(p, jnp.array([5]))
    ours = torch_decoder(model.to("tpu"), torch.tensor([5], device="tpu"))

    def run(mode: str) -> list[int]:
        with torchtpu.mode(mode):
            return ours().tolist()

    assert run("strict") == run("fused") == by_hand().tolist()
    ways = {"jax": lambda: by_hand(), "fused": lambda: run("fused"), "strict": lambda: run("strict")}
    steps.report(f"decode of {TOKENS} tokens", steps.medians(ways, 15))


if __name__ == "__main__":
    main()
