"""Between the packed rows of a jagged nested tensor and a padded one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array


@pack.lowering("aten::_jagged_to_padded_dense_forward")
def to_padded(
    values: Array, offsets: Sequence[Array], max_lengths: Sequence[int], padding_value: Any = 0.0
) -> Array:
    """(rows, …) to (batch, length, …), one more dimension for each level of ``offsets``."""
    at, valid = jnp.arange(offsets[0].shape[0] - 1), jnp.ones(offsets[0].shape[0] - 1, bool)
    for level, length in zip(offsets, max_lengths, strict=True):
        inner = level[at][..., None] + jnp.arange(length)
        valid = valid[..., None] & (inner < level[at + 1][..., None])
        at = jnp.where(valid, inner, 0)
    mask = valid.reshape(valid.shape + (1,) * (values.ndim - 1))
    return jnp.where(mask, values[at], jnp.asarray(padding_value, values.dtype))
