"""Lowerings that make tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops._table import divide

Array = jax.Array
NumpyArray = np.ndarray[Any, Any]


def _number(value: Any, dtype: Any) -> Array:
    """``value`` as an array of ``dtype``."""
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        complex(value)  # whether it fits depends on its imaginary part: JAX refuses, so the host looks
    return jnp.asarray(value).astype(dtype)


@pack.lowering("aten::fill.Scalar", "aten::fill.Tensor")
def fill(self: Array, value: Any) -> Array:
    """One value everywhere."""
    return jnp.broadcast_to(_number(value, self.dtype), self.shape)


@pack.lowering("aten::zero")
def zero(self: Array) -> Array:
    """Zeros in the shape of ``self``."""
    return jnp.zeros_like(self)


@pack.lowering("aten::full")
def full(size: list[int], fill_value: Any, *, dtype: Any = None) -> Array:
    """One value in a given shape."""
    value = jnp.asarray(fill_value) if dtype is None else _number(fill_value, dtype)
    return jnp.broadcast_to(value, tuple(size))


@pack.lowering("aten::zeros", "aten::_efficientzerotensor")
def zeros(size: list[int], *, dtype: Any = None) -> Array:
    """Zeros in a given shape."""
    return jnp.zeros(tuple(size), dtype)


@pack.lowering("aten::ones")
def ones(size: list[int], *, dtype: Any = None) -> Array:
    """Ones in a given shape."""
    return jnp.ones(tuple(size), dtype)


@pack.lowering("aten::zeros_like")
def zeros_like(self: Array, *, dtype: Any = None) -> Array:
    """Zeros in another tensor's shape."""
    return jnp.zeros_like(self, dtype)


@pack.lowering("aten::ones_like")
def ones_like(self: Array, *, dtype: Any = None) -> Array:
    """Ones in another tensor's shape."""
    return jnp.ones_like(self, dtype)


@pack.lowering("aten::full_like")
def full_like(self: Array, fill_value: Any, *, dtype: Any = None) -> Array:
    """One value in another tensor's shape."""
    return jnp.broadcast_to(_number(fill_value, dtype or self.dtype), self.shape)


@pack.lowering("aten::scalar_tensor")
def scalar_tensor(s: Any, *, dtype: Any = None) -> Array:
    """A number as a tensor."""
    return jnp.asarray(s) if dtype is None else _number(s, dtype)


def _count(start: float, end: float, step: float) -> int:
    if all(isinstance(v, int) for v in (start, end, step)):
        return int(max(0, -((start - end) // step)))
    return max(0, int(np.ceil((end - start) / step)))


def _steps(start: Any, step: Any, count: int, dtype: Any) -> Array:
    """Counted in the widest type, as torch does, then rounded once."""
    whole = isinstance(start, int) and isinstance(step, int)
    if dtype is not None and np.issubdtype(dtype, np.integer):
        start, step, whole = int(start), int(step), True
    wide = jnp.int64 if whole else jnp.float64
    out = jnp.asarray(start, wide) + lax.iota(wide, count) * jnp.asarray(step, wide)
    return out if dtype is None else out.astype(dtype)


@pack.lowering("aten::arange.start_step", static=("start", "end", "step"))
def arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Array:
    """Numbers from ``start`` up to but without ``end``."""
    if dtype == jnp.int64:  # this dtype alone counts in whole numbers, as on the CPU
        start, end, step = int(start), int(end), int(step)
    return _steps(start, step, _count(start, end, step), dtype)


@pack.lowering("aten::arange.start", static=("start", "end"))
def arange_start(start: Any, end: Any, *, dtype: Any = None) -> Array:
    """Numbers one apart."""
    return arange(start, end, 1, dtype=dtype)


@pack.lowering("aten::arange", static=("end",))
def arange_end(end: Any, *, dtype: Any = None) -> Array:
    """Numbers one apart from zero."""
    return arange(0, end, 1, dtype=dtype)


@pack.lowering("aten::range.step", static=("start", "end", "step"))
def range_step(start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Array:
    """Numbers from ``start`` to ``end``, both included."""
    return _steps(start, step, int(np.floor((end - start) / step)) + 1, dtype)


@pack.lowering(
    "aten::linspace",
    "aten::linspace.Tensor_Tensor",
    "aten::linspace.Tensor_Scalar",
    "aten::linspace.Scalar_Tensor",
)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> Array:
    """Evenly spaced numbers, counted from both ends so that both are exact."""
    wide = jnp.complex128 if jnp.iscomplexobj(start) or jnp.iscomplexobj(end) else jnp.float64
    first, last = jnp.asarray(start).astype(wide), jnp.asarray(end).astype(wide)
    if dtype is not None and np.issubdtype(dtype, np.integer):
        first, last = jnp.trunc(first), jnp.trunc(last)
    if steps < 2:
        return jnp.broadcast_to(first, (steps,))
    at = lax.iota(jnp.int64, steps)
    step = divide(last - first, steps - 1)
    return jnp.where(at < steps // 2, first + step * at, last - step * (steps - 1 - at))


@pack.lowering(
    "aten::logspace",
    "aten::logspace.Tensor_Tensor",
    "aten::logspace.Tensor_Scalar",
    "aten::logspace.Scalar_Tensor",
)
def logspace(start: Any, end: Any, steps: int, base: Any = 10.0, *, dtype: Any = None) -> Array:
    """Powers of ``base`` with evenly spaced exponents."""
    out = jnp.asarray(base).astype(jnp.float64) ** linspace(start, end, steps, dtype=dtype)
    if jnp.iscomplexobj(out):
        return out
    # XLA's pow may end just under a whole number, which a cast to an integer would round down.
    near = jnp.round(out)
    return jnp.where(jnp.abs(out - near) <= 1e-13 * jnp.abs(near), near, out)


@pack.lowering("aten::eye")
def eye(n: int, *, dtype: Any = None) -> Array:
    """The identity matrix."""
    return jnp.eye(n, dtype=dtype)


@pack.lowering("aten::eye.m")
def eye_m(n: int, m: int, *, dtype: Any = None) -> Array:
    """Ones on the diagonal of a rectangle."""
    return jnp.eye(n, m, dtype=dtype)


@pack.lowering("aten::tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Array:
    """Positions of the lower triangle, row by row."""
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)), dtype)


@pack.lowering("aten::triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Array:
    """Positions of the upper triangle, row by row."""
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)), dtype)


@pack.lowering("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """Where values would be inserted into sorted rows."""
    rows = sorted_sequence
    if sorter is not None:
        rows = jnp.take_along_axis(rows, sorter, -1)
    dtype = jnp.int32 if out_int32 else jnp.int64
    where = side or ("right" if right else "left")
    values = jnp.asarray(self)
    if rows.ndim == 1:
        return jnp.searchsorted(rows, values, side=where).astype(dtype)
    flat = rows.reshape(-1, rows.shape[-1])
    asked = values.reshape(flat.shape[0], -1)
    found = jax.vmap(lambda a, v: jnp.searchsorted(a, v, side=where))(flat, asked)
    return found.reshape(values.shape).astype(dtype)


@pack.lowering("aten::bucketize.Tensor", "aten::bucketize.Scalar")
def bucketize(self: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """The bucket of each value."""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)
