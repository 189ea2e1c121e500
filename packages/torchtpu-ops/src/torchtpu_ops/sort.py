"""Lowerings that order values, and those that find distinct ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops.reduce import check_extent

Array = jax.Array
NumpyArray = np.ndarray[Any, Any]
Pair = tuple[Array, Array]


def _is_float(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _scalar(self: Array) -> Pair:
    return self, jnp.zeros(self.shape, jnp.int64)


def _sorted(x: Array, dim: int, descending: bool) -> Pair:
    """A stable sort with NaN last, or first when descending."""
    if x.ndim == 0:
        return _scalar(x)
    dim %= x.ndim
    at = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    if descending:
        # Reversed before and after, so that equal elements keep their order.
        x, at = lax.rev(x, (dim,)), lax.rev(at, (dim,))
    values, order = lax.sort((x, at), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, order = lax.rev(values, (dim,)), lax.rev(order, (dim,))
    return values, order.astype(jnp.int64)


@pack.lowering("aten::sort")
def sort(self: Array, dim: int = -1, descending: bool = False) -> Pair:
    """Sorted values and where they came from."""
    return _sorted(self, dim, descending)


@pack.lowering("aten::sort.stable")
def sort_stable(self: Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Pair:
    """``sort``, which is always stable here."""
    return _sorted(self, dim, descending)


def _rank_key(x: Array, largest: bool) -> Array:
    """A key whose greatest elements are the wanted ones; NaN counts as the greatest value."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.int8)
    if not _is_float(x):
        return x if largest else ~x
    key = jnp.where(jnp.isnan(x), jnp.asarray(jnp.nan, x.dtype), x)
    return key if largest else -key


@pack.lowering("aten::topk")
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """The ``k`` greatest or least values."""
    if self.ndim == 0:
        return _scalar(self) if k else (self, jnp.zeros((), jnp.int64))
    moved = jnp.moveaxis(self, dim, -1)
    _, at = lax.top_k(_rank_key(moved, largest), k)
    values = jnp.take_along_axis(moved, at, -1)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(at.astype(jnp.int64), -1, dim)


def _pick(pair: Pair, at: Any, dim: int, keepdim: bool) -> Pair:
    """One element per line of the sorted values and of their positions."""
    out = []
    for x in pair:
        if isinstance(at, int):
            picked = lax.index_in_dim(x, at, dim, keepdims=True)
        else:
            picked = jnp.take_along_axis(x, at, dim)
        out.append(picked if keepdim else jnp.squeeze(picked, dim))
    return out[0], out[1]


@pack.lowering("aten::kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The ``k``-th least value."""
    if self.ndim == 0:
        return _scalar(self)
    return _pick(_sorted(self, dim, False), k - 1, dim, keepdim)


@pack.lowering("aten::median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    """The lower median, or the first NaN."""
    if self.ndim == 0:
        return _scalar(self)
    check_extent(self, dim, "median")
    pair = _sorted(self, dim, False)
    n = self.shape[dim]
    if not _is_float(self):
        return _pick(pair, (n - 1) // 2, dim, keepdim)
    nans = jnp.sum(jnp.isnan(self), dim, keepdims=True)
    return _pick(pair, jnp.where(nans > 0, n - nans, (n - 1) // 2), dim, keepdim)


@pack.lowering("aten::nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    """The lower median of what is not NaN."""
    if self.ndim == 0 or not _is_float(self):
        return median_dim(self, dim, keepdim)
    check_extent(self, dim, "median")  # CPU names both alike
    count = jnp.sum(~jnp.isnan(self), dim, keepdims=True)
    return _pick(_sorted(self, dim, False), jnp.maximum((count - 1) // 2, 0), dim, keepdim)


def _flat(self: Array, by_dim: Any) -> Array:
    if self.size == 0:
        return (
            jnp.full((), jnp.nan, self.dtype) if _is_float(self) else jnp.full((), jnp.iinfo(self.dtype).min)
        )
    return by_dim(self.ravel(), 0)[0]  # type: ignore[no-any-return]


@pack.lowering("aten::median")
def median(self: Array) -> Array:
    """The lower median of all elements."""
    return _flat(self, median_dim)


@pack.lowering("aten::nanmedian")
def nanmedian(self: Array) -> Array:
    """The lower median of all elements that are not NaN."""
    return _flat(self, nanmedian_dim)


@pack.lowering("aten::mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The least of the most frequent values, at its last position; each NaN counts alone."""
    if self.ndim == 0:
        return _scalar(self)
    check_extent(self, dim, "mode")
    dim %= self.ndim
    values, order = _sorted(self, dim, False)
    at = lax.broadcasted_iota(jnp.int32, values.shape, dim)
    fresh = (values != jnp.roll(values, 1, dim)) | (at == 0)
    start = lax.cummax(jnp.where(fresh, at, 0), dim)
    best = jnp.argmax(at - start, dim, keepdims=True)
    return _pick((values, order), best, dim, keepdim)


def _isin(elements: Any, test_elements: Any, invert: bool) -> Array:
    """Membership by binary search in the sorted tests."""
    x, tests = jnp.asarray(elements), jnp.asarray(test_elements).ravel()
    dtype = jnp.promote_types(x.dtype, tests.dtype)
    x, tests = x.astype(dtype), jnp.sort(tests.astype(dtype))
    if tests.size == 0:
        return jnp.full(x.shape, invert)
    at = jnp.minimum(jnp.searchsorted(tests, x), tests.size - 1)
    found = tests[at] == x
    return ~found if invert else found


@pack.lowering("aten::isin.Tensor_Tensor", "aten::isin.Scalar_Tensor", "aten::isin.Tensor_Scalar")
def isin(elements: Any, test: Any, *, assume_unique: bool = False, invert: bool = False) -> Array:
    """Which elements are among the tests."""
    return _isin(elements, test, invert)


def _comparable(x: NumpyArray) -> NumpyArray:
    """NumPy orders its own types only; the short floats fit into a float."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _filled(wanted: bool, x: NumpyArray) -> NumpyArray:
    return x.astype(np.int64) if wanted else np.zeros(0, np.int64)


@pack.lowering("aten::_unique2", host=True)
def unique2(
    self: NumpyArray, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Distinct values in order; each NaN is distinct."""
    values, inverse, counts = np.unique(
        _comparable(self), return_inverse=True, return_counts=True, equal_nan=False
    )
    inverse = inverse.reshape(self.shape)
    return values.astype(self.dtype), _filled(return_inverse, inverse), _filled(return_counts, counts)


@pack.lowering("aten::_unique", host=True)
def unique(
    self: NumpyArray, sorted: bool = True, return_inverse: bool = False
) -> tuple[NumpyArray, NumpyArray]:
    """Distinct values in order, without counts."""
    values, inverse, _ = unique2(self, sorted, return_inverse)
    return values, inverse


@pack.lowering("aten::unique_dim", host=True)
def unique_dim(
    self: NumpyArray, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Distinct slices in order."""
    values, inverse, counts = np.unique(
        _comparable(self), return_inverse=True, return_counts=True, axis=dim, equal_nan=False
    )
    return values.astype(self.dtype), inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


@pack.lowering("aten::unique_dim_consecutive", host=True)
def unique_dim_consecutive(
    self: NumpyArray, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Slices without the repeats that follow them."""
    rows = np.moveaxis(self, dim, 0)
    flat = rows.reshape(rows.shape[0], -1)
    fresh = np.ones(rows.shape[0], np.bool_)
    fresh[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(fresh)
    counts = np.diff(np.append(starts, rows.shape[0]))
    values = np.ascontiguousarray(np.moveaxis(rows[starts], 0, dim))
    return values, _filled(return_inverse, np.cumsum(fresh) - 1), _filled(return_counts, counts)


@pack.lowering("aten::unique_consecutive", host=True)
def unique_consecutive(
    self: NumpyArray, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Values, or slices along ``dim``, without the repeats that follow them."""
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    values, inverse, counts = unique_dim_consecutive(self.reshape(-1), 0, return_inverse, return_counts)
    return values, inverse.reshape(self.shape) if return_inverse else inverse, counts
