"""Lowerings that read and write by positions and masks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops import _bounds
from torchtpu_ops._pack import pack

Array = jax.Array
Indices = list[Array | None]
NumpyArray = np.ndarray[Any, Any]


def _is_mask(index: Array | None) -> bool:
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8)


def _positions(indices: Indices) -> tuple[Any, ...]:
    """NumPy's index tuple; missing entries stand for whole dimensions."""
    # JAX refuses a mask while tracing, since its result's shape depends on data; core then uses the host.
    found = [i.astype(jnp.bool_) if i is not None and _is_mask(i) else i for i in indices]
    return tuple(slice(None) if i is None else i for i in found)


@pack.lowering("aten::index.Tensor", "aten::_unsafe_index.Tensor", validate=_bounds.index)
def index(self: Array, indices: Indices) -> Array:
    """Advanced indexing by positions."""
    return self.at[_positions(indices)].get(mode="clip")


def _add(target: Array, positions: Any, values: Array) -> Array:
    """Add at positions; a bool sum is a logical or."""
    if target.dtype == jnp.bool_:
        return target.at[positions].max(values)
    return target.at[positions].add(values)


def _put_by_mask(self: Array, at: int, mask: Array, values: Array, accumulate: bool) -> Array:
    """``self[..., mask, ...] = values``: the n-th true element takes the n-th value."""
    mask = mask.astype(jnp.bool_)
    rest = self.ndim - at - mask.ndim
    if values.ndim > rest:
        axis = values.ndim - rest - 1
        lead, tail = values.shape[:axis], values.shape[axis + 1 :]
        given = values.shape[axis]
        if given > 1 and given > mask.size:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to the "
                f"indexing result of a mask with {mask.size} elements"
            )
        if given == 0:
            return self  # nothing to write, so the mask can select nothing
        if given == 1:
            values = values.reshape(*lead, *(1,) * mask.ndim, *tail)
        else:
            order = jnp.cumsum(mask.ravel().astype(jnp.int32)) - 1
            values = jnp.take(values, order, axis=axis, mode="clip").reshape(*lead, *mask.shape, *tail)
    mask = mask.reshape(*mask.shape, *(1,) * rest)
    if not accumulate:
        return jnp.where(mask, values, self)
    return self | (mask & values) if self.dtype == jnp.bool_ else self + jnp.where(mask, values, 0)


@pack.lowering(
    "aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl", validate=_bounds.index_put
)
def index_put(
    self: Array, indices: Indices, values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    """Write or add values at positions, or where a single mask is true."""
    values = values.astype(self.dtype)
    given = [(at, i) for at, i in enumerate(indices) if i is not None]
    if len(given) == 1 and _is_mask(given[0][1]):
        at, mask = given[0]
        assert mask is not None
        return _put_by_mask(self, at, mask, values, accumulate)
    positions = _positions(indices)
    return _add(self, positions, values) if accumulate else self.at[positions].set(values)


@pack.lowering("aten::_unsafe_masked_index")
def unsafe_masked_index(self: Array, mask: Array, indices: Indices, fill: Any) -> Array:
    """Indexed values where the mask holds, ``fill`` elsewhere."""
    return jnp.where(mask, index(self, indices), jnp.asarray(fill).astype(self.dtype))


@pack.lowering("aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(self: Array, mask: Array, indices: Indices, values: Array) -> Array:
    """Add values at positions where the mask holds; other positions are brought into range."""
    at = [
        None if i is None else jnp.clip(i, -self.shape[d], self.shape[d] - 1) for d, i in enumerate(indices)
    ]
    return index_put(self, at, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


def _line(x: Array) -> Array:
    """A scalar as a vector of one."""
    return x.reshape(1) if x.ndim == 0 else x


@pack.lowering("aten::gather", validate=_bounds.along_dim)
def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """Values picked along one dimension."""
    source, at = _line(self), _line(index)
    dim %= source.ndim
    if at.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    crop = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(at.shape))
    out = jnp.take_along_axis(source[crop], at, axis=dim, mode="clip")
    return out.reshape(index.shape)


@pack.lowering("aten::index_select", validate=_bounds.index_select)
def index_select(self: Array, dim: int, index: Array) -> Array:
    """Whole slices picked along one dimension."""
    out = jnp.take(_line(self), _line(index), axis=dim, mode="clip")
    return out.reshape(()) if self.ndim == 0 else out


def _slices(self: Array, dim: int, index: Array) -> tuple[Any, ...]:
    """The index tuple that addresses whole slices along ``dim``."""
    return (slice(None),) * (dim % max(self.ndim, 1)) + (_line(index),)


def _along(self: Array, source: Array) -> Array:
    return source.reshape(1) if self.ndim == 0 else source


@pack.lowering("aten::index_add", validate=_bounds.index_add)
def index_add(self: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    """Add scaled slices at positions along one dimension."""
    values = _along(self, source).astype(self.dtype) * jnp.asarray(alpha).astype(self.dtype)
    return _add(_line(self), _slices(self, dim, index), values).reshape(self.shape)


@pack.lowering("aten::index_copy", validate=_bounds.index_copy)
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    """Slices replaced at positions along one dimension."""
    values = _along(self, source).astype(self.dtype)
    return _line(self).at[_slices(self, dim, index)].set(values).reshape(self.shape)


@pack.lowering("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", validate=_bounds.index_fill)
def index_fill(self: Array, dim: int, index: Array, value: Any) -> Array:
    """One value in the slices at positions along one dimension."""
    value = jnp.asarray(value).astype(self.dtype)
    return _line(self).at[_slices(self, dim, index)].set(value).reshape(self.shape)


@pack.lowering("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    """One value where the mask holds."""
    return jnp.where(mask.astype(jnp.bool_), jnp.asarray(value).astype(self.dtype), self)


@pack.lowering("aten::masked_scatter", validate=_bounds.masked_scatter)
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    """Where the mask holds, the source's values in order."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape).astype(jnp.bool_)
    if source.size == 0:
        return self
    order = jnp.cumsum(mask.ravel().astype(jnp.int64)) - 1
    values = jnp.take(source.ravel(), order, mode="clip").reshape(shape)
    return jnp.where(mask, values.astype(self.dtype), self)


@pack.lowering("aten::masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: list[int]) -> Array:
    """The gradient of the source: masked values in order, then zeros."""
    mask = jnp.broadcast_to(mask, grad_output.shape).ravel()
    count = int(np.prod(sizes))
    order = jnp.where(mask, jnp.cumsum(mask.astype(jnp.int64)) - 1, count)
    out = jnp.zeros(count, grad_output.dtype).at[order].set(grad_output.ravel(), mode="drop")
    return out.reshape(tuple(sizes))


@pack.lowering("aten::take", validate=_bounds.take)
def take(self: Array, index: Array) -> Array:
    """Values of the flattened tensor."""
    return self.ravel().at[index].get(mode="clip")


@pack.lowering("aten::put", validate=_bounds.take)
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """Values written into the flattened tensor."""
    flat, values = self.ravel(), source.astype(self.dtype).reshape(index.shape)
    out = _add(flat, index, values) if accumulate else flat.at[index].set(values)
    return out.reshape(self.shape)


@pack.lowering("aten::masked_select", host=True)
def masked_select(self: NumpyArray, mask: NumpyArray) -> NumpyArray:
    """The values where the mask holds."""
    values, at = np.broadcast_arrays(self, mask)
    return np.ascontiguousarray(values[at.astype(np.bool_)])


@pack.lowering("aten::nonzero", host=True)
def nonzero(self: NumpyArray) -> NumpyArray:
    """The positions of nonzero elements, one row each."""
    if self.ndim == 0:
        return np.zeros((int(self != 0), 0), np.int64)
    return np.ascontiguousarray(np.stack(np.nonzero(self != 0), 1).astype(np.int64))


@pack.lowering("aten::nonzero_static")
def nonzero_static(self: Array, *, size: int, fill_value: int = -1) -> Array:
    """The first ``size`` positions of nonzero elements."""
    if self.ndim == 0:
        return jnp.zeros((size, 0), jnp.int64)
    found = jnp.nonzero(self, size=size, fill_value=fill_value)
    return jnp.stack(found, 1).astype(jnp.int64)


@pack.lowering("aten::repeat_interleave.Tensor", host=True)
def repeat_interleave(repeats: NumpyArray, *, output_size: int | None = None) -> NumpyArray:
    """Each position as many times as told."""
    return np.repeat(np.arange(repeats.size, dtype=repeats.dtype), repeats)


def dense_hit(self: Array, dim: int, index: Array) -> Array:
    """Where a one-wide index along ``dim`` points, as a mask of ``self``'s shape."""
    return lax.broadcasted_iota(index.dtype, self.shape, dim) == index
