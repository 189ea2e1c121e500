"""Attention by JAX's own flash attention kernels for TPUs, which never hold the scores of all queries and keys.

Dao et al., 2022, "FlashAttention". The kernels' two halves are used as JAX's derivative uses them, as torch's autograd
keeps the rows' numbers between forward and backward.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash

Array = jax.Array
LARGEST = 512  # rows of a tile; more find no room beside each other in the chip's vector memory


def _block(length: int) -> int:
    """The largest tile that divides ``length``, a multiple of 128."""
    return next(n for n in (LARGEST, 256, 128) if length % n == 0)


def _sizes(queries: int, keys: int) -> flash.BlockSizes:
    q, k = _block(queries), _block(keys)
    return flash.BlockSizes(
        block_b=1, block_q=q, block_k_major=k, block_k=k,
        block_q_major_dkv=q, block_q_dkv=q, block_k_major_dkv=k, block_k_dkv=k,
        block_q_dq=q, block_k_major_dq=k, block_k_dq=k,
    )  # fmt: skip


def _batched(x: Array) -> Array:
    """(batch, heads, length, width), or without the width, of an array with any dimensions before the heads."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _shared(x: Array, heads: int) -> Array:
    """Keys or values with a copy for each head of the queries."""
    x = _batched(x)
    return jnp.repeat(x, heads // x.shape[1], axis=1)


def _scale(scale: float | None, query: Array) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def forward(
    query: Array, key: Array, value: Array, mask: None = None, seed: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """`torchtpu::sdpa` without mask and dropout: the output, and each row's largest score and sum."""
    heads = query.shape[-3]
    arrays = _batched(query), _shared(key, heads), _shared(value, heads)
    sizes = _sizes(query.shape[-2], key.shape[-2])
    output, total, largest = flash._flash_attention(
        *arrays, None, None, True, is_causal, _scale(scale, query), sizes, False
    )
    rows = query.shape[:-1]
    return output.reshape(query.shape), largest.reshape(rows), total.reshape(rows)


def backward(
    grad: Array, query: Array, key: Array, value: Array, output: Array, largest: Array, total: Array, mask: None,
    seed: Any, dropout_p: float, is_causal: bool, scale: float | None, mask_grad: bool,
) -> list[Array]:  # fmt: skip
    """`torchtpu::sdpa_backward` without mask and dropout: the gradients of query, key and value."""
    heads, rows = query.shape[-3], (-1, *query.shape[-3:-1])
    arrays = _batched(query), _shared(key, heads), _shared(value, heads)
    kept = (*arrays, None, None, _batched(output), total.reshape(rows), largest.reshape(rows))
    sizes = _sizes(query.shape[-2], key.shape[-2])
    found = flash._flash_attention_bwd(
        False, is_causal, _scale(scale, query), sizes, False, kept, _batched(grad)
    )
    return [
        found[0].reshape(query.shape).astype(query.dtype),
        *[_summed(g, x) for g, x in zip(found[1:3], (key, value), strict=True)],
    ]


def _summed(grad: Array, like: Array) -> Array:
    """The gradients of a head's copies added up, in float32."""
    batch, heads = grad.shape[0], like.shape[-3]
    grouped = grad.reshape(batch, heads, grad.shape[1] // heads, *like.shape[-2:])
    return jnp.sum(grouped.astype(jnp.float32), axis=2).astype(like.dtype).reshape(like.shape)
