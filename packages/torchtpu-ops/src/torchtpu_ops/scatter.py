"""Lowerings that write along one dimension by an index of the source's shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops import _bounds
from torchtpu_ops._pack import pack
from torchtpu_ops.indexing import dense_hit

Array = jax.Array
_NAMES = {"add": "sum", "multiply": "prod", "mean": "mean", "sum": "sum", "prod": "prod"}


def _lined(self: Array, dim: int, index: Array, src: Array) -> tuple[Array, int, Array, Array]:
    """Rank at least one, and the source cut to the index."""
    if self.ndim == 0:
        self = self.reshape(1)
    if index.ndim == 0:
        index = index.reshape(1)
    if src.ndim == 0 and index.ndim:
        src = jnp.broadcast_to(src, index.shape)
    src = src[tuple(slice(0, n) for n in index.shape)]
    return self, dim % self.ndim, index, src.astype(self.dtype)


def _at(dim: int, index: Array) -> tuple[Array, ...]:
    return tuple(
        index if d == dim else lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(index.ndim)
    )


def _is_dense(self: Array, dim: int, index: Array) -> bool:
    """One target per line: a comparison then does what XLA's scatter would do one by one."""
    return index.shape[dim] == 1 and all(
        n == m for d, (n, m) in enumerate(zip(self.shape, index.shape, strict=True)) if d != dim
    )


@pack.lowering("aten::scatter.src", "aten::scatter.value", validate=_bounds.along_dim)
def scatter(self: Array, dim: int, index: Array, src: Any) -> Array:
    """Values written along one dimension."""
    x, dim, at, values = _lined(self, dim, index, jnp.asarray(src))
    if at.size == 0:
        return self
    if _is_dense(x, dim, at):
        return jnp.where(dense_hit(x, dim, at), values, x).reshape(self.shape)
    return x.at[_at(dim, at)].set(values).reshape(self.shape)


@pack.lowering("aten::scatter_add", validate=_bounds.along_dim)
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    """Values added along one dimension."""
    return scatter_reduce(self, dim, index, src, "sum")


def _combine(x: Array, positions: Any, values: Array, reduce: str) -> Array:
    """XLA's scatter with the reduction's combiner."""
    at = x.at[positions]
    if x.dtype == jnp.bool_:
        return at.min(values) if reduce in ("prod", "amin") else at.max(values)
    if reduce == "prod":
        return at.multiply(values)
    if reduce in ("amax", "amin"):
        return at.max(values) if reduce == "amax" else at.min(values)
    return at.add(values)


def _identity(reduce: str, dtype: Any) -> Array:
    if reduce in ("sum", "mean"):
        return jnp.zeros((), dtype)
    if reduce == "prod":
        return jnp.ones((), dtype)
    if dtype == jnp.bool_:
        return jnp.asarray(reduce == "amin")
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return jnp.asarray(info.min if reduce == "amax" else info.max, dtype)
    return jnp.asarray(-jnp.inf if reduce == "amax" else jnp.inf, dtype)


def reduce_at(x: Array, positions: Any, values: Array, reduce: str, include_self: bool) -> Array:
    """Combine ``values`` into ``x`` at positions, with or without what was there."""
    touched = (
        jnp.zeros(x.shape, jnp.int32).at[positions].add(1) if reduce == "mean" or not include_self else None
    )
    start = x if include_self else jnp.where(touched > 0, _identity(reduce, x.dtype), x)  # type: ignore[operator]
    out = _combine(start, positions, values, reduce)
    if reduce != "mean":
        return out
    assert touched is not None
    count = jnp.maximum(touched + int(include_self), 1).astype(x.dtype)
    return out // count if jnp.issubdtype(x.dtype, jnp.integer) else out / count


@pack.lowering("aten::scatter_reduce.two", validate=_bounds.along_dim)
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Values combined along one dimension."""
    x, dim, at, values = _lined(self, dim, index, src)
    if at.size == 0:
        return self
    if reduce == "sum" and include_self and x.dtype != jnp.bool_ and _is_dense(x, dim, at):
        return (x + jnp.where(dense_hit(x, dim, at), values, 0)).reshape(self.shape)
    return reduce_at(x, _at(dim, at), values, reduce, include_self).reshape(self.shape)


@pack.lowering("aten::scatter.reduce", "aten::scatter.value_reduce", validate=_bounds.along_dim)
def scatter_with(self: Array, dim: int, index: Array, src: Any, *, reduce: str) -> Array:
    """``scatter`` under its older names for the reductions."""
    return scatter_reduce(self, dim, index, jnp.asarray(src), _NAMES[reduce])


@pack.lowering("aten::index_reduce", validate=_bounds.index_reduce)
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Slices combined at positions along one dimension."""
    x = self.reshape(1) if self.ndim == 0 else self
    positions = (slice(None),) * (dim % x.ndim) + (index.reshape(-1),)
    values = source.reshape(1) if self.ndim == 0 else source
    return reduce_at(x, positions, values.astype(x.dtype), reduce, include_self).reshape(self.shape)
