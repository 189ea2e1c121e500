"""Bags of embeddings: sums, means and maxima of rows, forward and backward.

Shapes of the helpers follow the meta kernel: ``offset2bag`` has one entry for each index, ``bag_size`` one
for each offset, and ``maximum_indices`` is empty unless the mode is the maximum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array
SUM, MEAN, MAX = 0, 1, 2


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _column(x: Array) -> Array:
    return x[:, None]


def _largest(rows: Array, counted: Array, indices: Array, bag: Array, bags: int) -> tuple[Array, Array]:
    """The maximum of each bag, 0 for empty ones, and the row of the table that it comes from."""
    lowest = jnp.where(_column(counted), rows, -jnp.inf)
    top = jax.ops.segment_max(lowest, bag, bags)
    count = len(indices)
    # of equal rows the first is kept
    place = jnp.where(_column(counted) & (lowest == top[bag]), _column(jnp.arange(count)), count)
    first = jax.ops.segment_min(place, bag, bags)
    found = first < count
    row = jnp.take(indices, first, mode="clip") if count else jnp.zeros(first.shape, indices.dtype)
    return jnp.where(found, top, 0), jnp.where(found, row, 0)


@pack.lowering("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """One row for each bag, the bag of each index, the bags' sizes and the rows of the maxima."""
    bags = len(offsets) - include_last_offset
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(len(indices)), side="right") - 1
    counted = indices != padding_idx
    rows = _wide(jnp.take(weight, indices, axis=0, mode="clip"))
    sizes = jax.ops.segment_sum(counted.astype(offsets.dtype), bag, bags)
    chosen = jnp.zeros(0, offsets.dtype)
    if mode == MAX:
        out, chosen = _largest(rows, counted, indices, bag, bags)
    else:
        if per_sample_weights is not None:
            rows = rows * _column(_wide(per_sample_weights))
        out = jax.ops.segment_sum(jnp.where(_column(counted), rows, 0), bag, bags)
        out = out / _column(jnp.maximum(sizes, 1)) if mode == MEAN else out
    return out, bag.astype(offsets.dtype), jnp.pad(sizes, (0, int(include_last_offset))), chosen


def _frequency(indices: Array, num_weights: int, dtype: Any) -> Array:
    return jnp.zeros(num_weights, dtype).at[indices].add(1)


@pack.lowering("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """The gradient of the table."""
    g, width = _wide(grad), grad.shape[1]
    table = jnp.zeros((num_weights, width), g.dtype)
    if mode == MAX:
        filled = _column(bag_size[: len(g)] > 0)
        return table.at[maximum_indices, jnp.arange(width)].add(jnp.where(filled, g, 0))
    rows = g[offset2bag]
    if mode == MEAN:
        rows = rows / _column(jnp.maximum(bag_size, 1)[offset2bag])
    if per_sample_weights is not None:
        rows = rows * _column(_wide(per_sample_weights))
    if scale_grad_by_freq:
        rows = rows / _column(_frequency(indices, num_weights, rows.dtype)[indices])
    return table.at[indices].add(jnp.where(_column(indices != padding_idx), rows, 0))


@pack.lowering("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    """The gradient of the table, always dense."""
    if sparse:
        raise NotImplementedError("sparse gradients of embedding_bag are not supported on the TPU")
    helpers = (offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode)
    return embedding_bag_dense_backward(grad, indices, *helpers, per_sample_weights, padding_idx)


@pack.lowering("aten::_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    """The gradient of the weights of a sum's rows."""
    rows = _wide(jnp.take(weight, indices, axis=0, mode="clip"))
    return jnp.where(indices != padding_idx, jnp.sum(_wide(grad)[offset2bag] * rows, axis=1), 0)


@pack.lowering("aten::embedding_renorm", static=("norm_type",))
def embedding_renorm(self: Array, indices: Array, max_norm: Any, norm_type: float) -> Array:
    """The table with those of the named rows shortened whose norm is larger than ``max_norm``."""
    norms = jnp.linalg.norm(_wide(self), ord=norm_type, axis=1)
    named = jnp.zeros(len(self), bool).at[indices.reshape(-1)].set(True)
    # torch's own guard against a division by zero
    factor = jnp.where(named & (norms > max_norm), max_norm / (norms + 1e-7), 1)
    return self * _column(factor).astype(self.dtype)
