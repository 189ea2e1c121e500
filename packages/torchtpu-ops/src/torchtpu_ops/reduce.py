"""Reductions and cumulative operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops._table import divide, wide

Array = jax.Array
Dims = list[int] | tuple[int, ...] | int | None


def _axes(dim: Dims) -> tuple[int, ...] | int | None:
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


def _sum_input(x: Array, dtype: Any) -> Array:
    """Cast as torch does before it adds: ints to int64, half types to float32."""
    if dtype is not None:
        x = x.astype(dtype)
    elif jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == jnp.bool_:
        return x.astype(jnp.int64)
    return wide(x)


def _flat_axes(x: Array, dim: Dims) -> Any:
    return None if not x.ndim else _axes(dim)


@pack.lowering("aten::sum")
def sum_(self: Array, *, dtype: Any = None) -> Array:
    """The sum of all elements."""
    return jnp.sum(_sum_input(self, dtype))


@pack.lowering("aten::sum.dim_IntList")
def sum_dim(self: Array, dim: Dims, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The sum along dimensions."""
    return jnp.sum(_sum_input(self, dtype), axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


@pack.lowering("aten::nansum")
def nansum(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The sum without NaN."""
    return jnp.nansum(_sum_input(self, dtype), axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


def _mean(x: Array, dim: Dims, keepdim: bool) -> Array:
    total = jnp.sum(x, axis=_flat_axes(x, dim), keepdims=keepdim and x.ndim > 0)
    return divide(total, _count(x, dim))


def _count(x: Array, dim: Dims) -> int:
    """How many elements are reduced into one."""
    axes = range(x.ndim) if dim is None or dim == [] or dim == () else [dim] if isinstance(dim, int) else dim
    return math.prod(x.shape[axis] for axis in axes) if x.ndim else 1


@pack.lowering("aten::mean")
def mean(self: Array, *, dtype: Any = None) -> Array:
    """The mean of all elements."""
    return _mean(_sum_input(self, dtype), None, False)


@pack.lowering("aten::mean.dim")
def mean_dim(self: Array, dim: Dims, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The mean along dimensions."""
    return _mean(_sum_input(self, dtype), dim, keepdim)


@pack.lowering("aten::prod")
def prod(self: Array, *, dtype: Any = None) -> Array:
    """The product of all elements."""
    return jnp.prod(_sum_input(self, dtype))


@pack.lowering("aten::prod.dim_int")
def prod_dim(self: Array, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The product along a dimension."""
    return jnp.prod(_sum_input(self, dtype), axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


@pack.lowering("aten::amax")
def amax(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """The maximum along dimensions; NaN wins."""
    return jnp.max(self, axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


@pack.lowering("aten::amin")
def amin(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """The minimum along dimensions; NaN wins."""
    return jnp.min(self, axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


@pack.lowering("aten::aminmax")
def aminmax(self: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """Minimum and maximum."""
    axis, keep = _flat_axes(self, dim), keepdim and self.ndim > 0
    return jnp.min(self, axis=axis, keepdims=keep), jnp.max(self, axis=axis, keepdims=keep)


def _check_some(x: Array, name: str) -> None:
    """Raise what CPU raises for the extreme of an empty tensor; torch's meta kernels let it pass."""
    if not x.size:
        hint = "Specify the reduction dim with the 'dim' argument."
        raise RuntimeError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0. {hint}")


@pack.lowering("aten::max")
def max_(self: Array) -> Array:
    """The largest element."""
    _check_some(self, "max")
    return jnp.max(self)


@pack.lowering("aten::min")
def min_(self: Array) -> Array:
    """The smallest element."""
    _check_some(self, "min")
    return jnp.min(self)


def _arg(pick: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    if not x.ndim:
        return jnp.zeros((), jnp.int64)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if dim is None:
        out = pick(x.reshape(-1), axis=0)
        return out.reshape((1,) * x.ndim) if keepdim else out
    return pick(x, axis=dim, keepdims=keepdim)


@pack.lowering("aten::argmax")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the largest element."""
    return _arg(jnp.argmax, self, dim, keepdim)


@pack.lowering("aten::argmin")
def argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the smallest element."""
    return _arg(jnp.argmin, self, dim, keepdim)


def check_extent(x: Array, dim: int, name: str) -> None:
    """Raise what CPU raises for the extreme of no elements; torch's meta kernels let it pass."""
    if x.ndim and not x.shape[dim]:
        raise IndexError(f"{name}(): Expected reduction dim {dim % x.ndim} to have non-zero size.")


@pack.lowering("aten::max.dim")
def max_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The largest elements along a dimension and their indices."""
    check_extent(self, dim, "max")
    return amax(self, dim, keepdim), _arg(jnp.argmax, self, dim, keepdim)


@pack.lowering("aten::min.dim")
def min_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest elements along a dimension and their indices."""
    check_extent(self, dim, "min")
    return amin(self, dim, keepdim), _arg(jnp.argmin, self, dim, keepdim)


@pack.lowering("aten::any", "aten::any.dim", "aten::any.dims")
def any_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether any element is true."""
    return jnp.any(self != 0, axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


@pack.lowering("aten::all", "aten::all.dim", "aten::all.dims")
def all_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether all elements are true."""
    return jnp.all(self != 0, axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


def _variance(x: Array, dim: Dims, correction: Any, keepdim: bool) -> tuple[Array, Array]:
    x = wide(x)
    average = _mean(x, dim, True)
    distance = x - average
    squares = jnp.real(distance * jnp.conj(distance))
    total = jnp.sum(squares, axis=_flat_axes(x, dim), keepdims=keepdim and x.ndim > 0)
    freedom = _count(x, dim) - (1 if correction is None else correction)
    spread = divide(total, jnp.maximum(jnp.asarray(freedom, total.dtype), 0))
    return spread, average.reshape(spread.shape)


@pack.lowering("aten::var.correction")
def var(self: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    """The variance with ``correction`` degrees of freedom taken off."""
    return _variance(self, dim, correction, keepdim)[0]


@pack.lowering("aten::std.correction")
def std(self: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Array:
    """The standard deviation."""
    return jnp.sqrt(_variance(self, dim, correction, keepdim)[0])


@pack.lowering("aten::var_mean.correction")
def var_mean(
    self: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Variance and mean."""
    return _variance(self, dim, correction, keepdim)


@pack.lowering("aten::std_mean.correction")
def std_mean(
    self: Array, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Standard deviation and mean."""
    spread, average = _variance(self, dim, correction, keepdim)
    return jnp.sqrt(spread), average


@pack.lowering("aten::logsumexp")
def logsumexp(self: Array, dim: Dims, keepdim: bool = False) -> Array:
    """log of the sum of exponentials."""
    x = wide(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(jnp.float32)
    return jax.nn.logsumexp(x, axis=_flat_axes(self, dim), keepdims=keepdim and self.ndim > 0)


def _norm(x: Array, order: Any, dim: Dims, keepdim: bool) -> Array:
    axis, keep = _flat_axes(x, dim), keepdim and x.ndim > 0
    size = jnp.abs(wide(x))
    if order == float("inf"):
        return jnp.max(size, axis=axis, keepdims=keep)
    if order == float("-inf"):
        return jnp.min(size, axis=axis, keepdims=keep)
    if order == 0:
        return jnp.sum(size != 0, axis=axis, keepdims=keep)
    if order == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=axis, keepdims=keep))
    return jnp.sum(size**order, axis=axis, keepdims=keep) ** (1.0 / order)


@pack.lowering("aten::linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    self: Array, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:  # fmt: skip
    """The vector norm along dimensions."""
    return _norm(self if dtype is None else self.astype(dtype), ord, dim, keepdim)


@pack.lowering("aten::norm.ScalarOpt_dim", "aten::norm.Scalar", static=("p",))
def norm(self: Array, p: Any = 2, dim: Dims = (), keepdim: bool = False) -> Array:
    """The p-norm along dimensions."""
    return _norm(self, 2 if p is None else p, dim, keepdim)


@pack.lowering("aten::norm.ScalarOpt_dim_dtype", "aten::norm.ScalarOpt_dtype", static=("p",))
def norm_dtype(self: Array, p: Any, dim: Dims = (), keepdim: bool = False, *, dtype: Any) -> Array:
    """The p-norm along dimensions, computed in ``dtype``."""
    return _norm(self.astype(dtype), 2 if p is None else p, dim, keepdim)


@pack.lowering("aten::renorm", static=("p",))
def renorm(self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    """Slices along ``dim`` scaled down to a p-norm of at most ``maxnorm``."""
    x = wide(self)
    others = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    size = _norm(x, p, others, True)
    return x * jnp.where(size > maxnorm, maxnorm / (size + 1e-7), 1)


@pack.lowering("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Dims = None) -> Array:
    """How many elements are not zero."""
    return jnp.sum((self != 0).astype(jnp.int64), axis=_flat_axes(self, dim))


@pack.lowering("aten::cumsum")
def cumsum(self: Array, dim: int, *, dtype: Any = None) -> Array:
    """Running sums."""
    return jnp.cumsum(_sum_input(self, dtype), axis=dim) if self.ndim else self


@pack.lowering("aten::cumprod")
def cumprod(self: Array, dim: int, *, dtype: Any = None) -> Array:
    """Running products."""
    return jnp.cumprod(_sum_input(self, dtype), axis=dim) if self.ndim else self


def _complex_log_sums(x: Array, dim: int) -> Array:
    """One after the other, as the angle depends on the order: it is not brought into one turn."""

    def step(total: Array, item: Array) -> tuple[Array, Array]:
        less = total.real < item.real
        low, high = jnp.where(less, total, item), jnp.where(less, item, total)
        joined = jnp.log1p(jnp.exp(low - high)) + high
        infinite = jnp.isinf(low.real) & (low.real == high.real)
        limit = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
        joined = jnp.where(infinite, limit, joined)
        joined = jnp.where(jnp.isnan(total) | jnp.isnan(item), lax.complex(jnp.nan, jnp.nan), joined)
        joined = joined.astype(x.dtype)
        return joined, joined

    lines = jnp.moveaxis(x, dim, 0)
    start = jnp.full(lines.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, start, lines)[1], 0, dim)


@pack.lowering("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Array:
    """Running log of sums of exponentials."""
    if jnp.iscomplexobj(self) and self.ndim:
        return _complex_log_sums(self, dim)
    # not JAX's own: its windows, fused with a cast to bfloat16, end the process in tpu7x's compiler
    return lax.associative_scan(jnp.logaddexp, wide(self), axis=dim % self.ndim) if self.ndim else self


def _running(x: Array, dim: int, better: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """Running extreme and its index; the latest of equals, NaN wins and stays."""
    if not x.ndim:
        return x, jnp.zeros((), jnp.int64)
    axis = dim % x.ndim
    index = lax.broadcasted_iota(jnp.int64, x.shape, axis)

    def join(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        take = better(b[0], a[0]) | (b[0] != b[0])
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    return lax.associative_scan(join, (x, index), axis=axis)


@pack.lowering("aten::cummax")
def cummax(self: Array, dim: int) -> tuple[Array, Array]:
    """Running maxima and their indices."""
    return _running(self, dim, lambda new, old: (new >= old) & (old == old))


@pack.lowering("aten::cummin")
def cummin(self: Array, dim: int) -> tuple[Array, Array]:
    """Running minima and their indices."""
    return _running(self, dim, lambda new, old: (new <= old) & (old == old))
