"""Embedding tables, and the fused layers that torch calls for inference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_ops._pack import pack

Array = jax.Array


def _check_rows(weight: Any, indices: Any, *rest: Any, **named: Any) -> None:
    """Raise what CPU raises for a row that does not exist."""
    if np.any((indices < 0) | (indices >= weight.shape[0])):
        raise IndexError("index out of range in self")


@pack.lowering("aten::embedding", validate=_check_rows)
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Rows of ``weight``."""
    return jnp.take(weight, indices, axis=0, mode="clip")


@pack.lowering("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """The gradient of the table: rows of the gradient added where they were taken."""
    width = grad_output.shape[-1]
    rows, flat = grad_output.reshape(-1, width).astype(jnp.float32), indices.reshape(-1)
    if grad_output.dtype == jnp.float64:
        rows = grad_output.reshape(-1, width)
    if padding_idx >= 0:
        rows = jnp.where((flat == padding_idx)[:, None], 0, rows)
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, rows.dtype).at[flat].add(1)
        rows = rows / counts[flat][:, None]
    return jnp.zeros((num_weights, width), rows.dtype).at[flat].add(rows)


def _layer_norm(x: Array, weight: Array, bias: Array, eps: Any) -> Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(jnp.mean((x - mean) ** 2, axis=-1, keepdims=True) + eps) * weight + bias


def _masked(mask: Array | None, kind: int | None) -> Array | None:
    """torch's mask types as one boolean mask of (batch, heads, query, key); True hides."""
    if mask is None:
        return None
    hidden = mask != 0
    if kind == 0:
        return hidden[None, None]
    return hidden[:, None, None, :] if kind == 1 else hidden


def _attend(
    inputs: tuple[Array, Array, Array],
    heads: int,
    qkv: tuple[Array, Array],
    out: tuple[Array, Array],
    hidden: Any,
) -> tuple[Array, Array]:
    """Attention of query to key and value, and its weights of (batch, heads, query, key)."""
    projections = zip(inputs, jnp.split(qkv[0], 3), jnp.split(qkv[1], 3), strict=True)
    parts = [(x @ w.T + b).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x, w, b in projections]
    q, k, v = parts
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if hidden is not None:
        scores = jnp.where(hidden, -jnp.inf, scores)
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = (weights @ v).swapaxes(1, 2).reshape(inputs[0].shape)
    return mixed @ out[0].T + out[1], weights


@pack.lowering("aten::_native_multi_head_attention")
def multi_head_attention(
    query: Array, key: Array, value: Array, embed_dim: int, num_head: int, qkv_weight: Array, qkv_bias: Array,
    proj_weight: Array, proj_bias: Array, mask: Array | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
    """Attention without dropout, which torch's nn.MultiheadAttention calls for inference."""
    hidden = _masked(mask, mask_type)
    projections = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
    out, weights = _attend((query, key, value), num_head, *projections, hidden)
    if not need_weights:
        return out, None
    return out, jnp.mean(weights, axis=1) if average_attn_weights else weights


@pack.lowering("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: Array, embed_dim: int, num_heads: int, qkv_weight: Array, qkv_bias: Array, proj_weight: Array,
    proj_bias: Array, use_gelu: bool, norm_first: bool, eps: Any, norm_weight_1: Array, norm_bias_1: Array,
    norm_weight_2: Array, norm_bias_2: Array, ffn_weight_1: Array, ffn_bias_1: Array, ffn_weight_2: Array,
    ffn_bias_2: Array, mask: Array | None = None, mask_type: int | None = None,
) -> Array:  # fmt: skip
    """An encoder layer without dropout, which torch's nn.TransformerEncoderLayer calls for inference."""
    hidden = _masked(mask, mask_type)

    def attention(x: Array) -> Array:
        return _attend((x, x, x), num_heads, (qkv_weight, qkv_bias), (proj_weight, proj_bias), hidden)[0]

    def feed(x: Array) -> Array:
        inner = x @ ffn_weight_1.T + ffn_bias_1
        inner = jax.nn.gelu(inner, approximate=False) if use_gelu else jnp.maximum(inner, 0)
        return inner @ ffn_weight_2.T + ffn_bias_2

    first, second = (norm_weight_1, norm_bias_1, eps), (norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = src + attention(_layer_norm(src, *first))
        return x + feed(_layer_norm(x, *second))
    x = _layer_norm(src + attention(src), *first)
    return _layer_norm(x + feed(x), *second)
