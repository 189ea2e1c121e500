"""Reductions of consecutive slices, and the hash of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array
Maybe = jax.Array | None
_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -jnp.inf, "min": jnp.inf}
_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": jax.ops.segment_sum, "mean": jax.ops.segment_sum, "prod": jax.ops.segment_prod,
    "max": jax.ops.segment_max, "min": jax.ops.segment_min,
}  # fmt: skip
_JOIN: dict[str, Callable[[Array, Any], Array]] = {
    "sum": jnp.add, "mean": jnp.add, "prod": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum,
}  # fmt: skip


def _rows(data: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """``data`` as [batch, slices, values], the lengths as [batch, segments], and each slice's segment."""
    axis, batch = lengths.ndim - 1, int(np.prod(lengths.shape[:-1]))
    flat = data.reshape(batch, data.shape[axis], -1)
    lengths = lengths.reshape(batch, -1)
    at = jnp.arange(flat.shape[1])
    owner = jax.vmap(lambda ends: jnp.searchsorted(ends, at, side="right"))(jnp.cumsum(lengths, 1))
    return flat, lengths, owner


def _per_segment(reduce: str, values: Array, owner: Array, count: int) -> Array:
    return jax.vmap(lambda v, o: _REDUCE[reduce](v, o, num_segments=count))(values, owner)


def _lengths(lengths: Maybe, offsets: Maybe) -> Array:
    if lengths is not None:
        return lengths
    assert offsets is not None
    return jnp.diff(offsets, axis=-1)


def _check_lengths(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> None:
    """Raise what CPU raises for lengths that do not cover the data."""
    if lengths is not None and not unsafe and (lengths.sum(-1) != data.shape[lengths.ndim - 1]).any():
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to "
            "data.size(lengths.dim()-1) when !unsafe."
        )


@pack.lowering("aten::segment_reduce", validate=_check_lengths)
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Maybe = None,
    indices: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    """Consecutive slices reduced into one each; an empty segment gives ``initial``, its mean NaN."""
    sizes = _lengths(lengths, offsets)
    flat, count, owner = _rows(wide(data), sizes)
    out = _per_segment(reduce, flat, owner, count.shape[1])
    out = _JOIN[reduce](out, _START[reduce] if initial is None else initial)
    if reduce == "mean":
        empty = jnp.nan if initial is None else out
        out = jnp.where(count[..., None] > 0, out / jnp.maximum(count, 1)[..., None], empty)
    return out.reshape(*sizes.shape, *data.shape[sizes.ndim :])


def _prod_factor(x: Array, output: Array, owner: Array, count: int, initial: Any) -> Array:
    """The product of a segment without the element itself, also where that is zero or NaN."""
    zero = (x == 0) | jnp.isnan(x)
    others = _per_segment("prod", jnp.where(zero, 1, x), owner, count) * (1.0 if initial is None else initial)
    lone = _per_segment("sum", zero.astype(x.dtype), owner, count) == 1
    without = jnp.where(_spread(lone, owner), _spread(others, owner), 0)
    return jnp.where(zero, without, _spread(output, owner) / jnp.where(zero, 1, x))


def _spread(values: Array, owner: Array) -> Array:
    """Each slice's segment's value; slices behind the last segment get zero."""
    return jax.vmap(lambda v, o: v.at[o].get(mode="fill", fill_value=0))(values, owner)


@pack.lowering("aten::_segment_reduce_backward")
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    """The gradient of ``segment_reduce``; equal extremes share it."""
    sizes = _lengths(lengths, offsets)
    x, count, owner = _rows(wide(data), sizes)
    shape = (*count.shape, x.shape[-1])
    g, out = wide(grad).reshape(shape), wide(output).reshape(shape)
    if reduce == "mean":
        g = g / jnp.maximum(count, 1)[..., None]
    if reduce in ("max", "min"):
        chosen = ((x == _spread(out, owner)) | jnp.isnan(x)).astype(x.dtype)
        ties = _per_segment("sum", chosen, owner, count.shape[1])
        result = chosen * _spread(g / jnp.maximum(ties, 1), owner)
    elif reduce == "prod":
        result = _spread(g, owner) * _prod_factor(x, out, owner, count.shape[1], initial)
    else:
        result = _spread(g, owner)
    return result.reshape(data.shape)


@pack.lowering("aten::hash_tensor")
def hash_tensor(self: Array, dim: list[int] = (), *, keepdim: bool = False, mode: int = 0) -> Array:  # type: ignore[assignment]
    """The bits of the elements, floats as doubles, joined by exclusive or."""
    wanted = jnp.float64 if jnp.issubdtype(self.dtype, jnp.floating) else jnp.int64
    bits = lax.bitcast_convert_type(self.astype(wanted), jnp.uint64)
    axes = tuple(axis % self.ndim for axis in dim) if dim and self.ndim else tuple(range(self.ndim))
    out = lax.reduce(bits, jnp.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(out, axes) if keepdim else out
