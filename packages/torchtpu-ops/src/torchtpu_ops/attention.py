"""Embedding tables; attention itself is a composite of torch."""

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
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
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
