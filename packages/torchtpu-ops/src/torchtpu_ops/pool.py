"""Pooling over two and three spatial dimensions, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
Ints = Sequence[int]


def _spread(values: Ints, rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def _outputs(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """torch's output size: a window must start inside the input or its left padding."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count


class _Plan:
    """The sizes of one pooling: kernel, stride, padding, dilation and number of windows per axis."""

    def __init__(
        self, rank: int, x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
    ) -> None:
        self.sizes = x.shape[-rank:]
        self.kernel, self.padding, self.dilation = (_spread(v, rank) for v in (kernel, padding, dilation))
        self.stride = _spread(stride, rank) if stride else self.kernel
        axes = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        self.counts = [_outputs(*axis, ceil) for axis in axes]

    def reduce(self, operands: Any, initial: Any, combine: Any) -> Any:
        """`lax.reduce_window` over the spatial dimensions."""
        ndim = jax.tree.leaves(operands)[0].ndim - len(self.sizes)
        axes = zip(
            self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.counts, strict=True
        )
        # to the right only as far as the last window reaches, which ceil_mode moves beyond the padding
        pads = [(p, max((n - 1) * s + d * (k - 1) + 1 - size - p, 0)) for size, k, s, p, d, n in axes]
        ones = [1] * ndim
        return lax.reduce_window(
            operands,
            initial,
            combine,
            ones + self.kernel,
            ones + self.stride,
            [(0, 0)] * ndim + pads,
            window_dilation=ones + self.dilation,
        )

    def divisors(self, include: bool) -> np.ndarray:
        """How many elements each window averages over; the declared padding counts if ``include``."""
        lengths = []
        for size, k, s, p, n in zip(
            self.sizes, self.kernel, self.stride, self.padding, self.counts, strict=True
        ):
            start = np.arange(n) * s - p
            stop = np.minimum(start + k, size + p)
            lengths.append(stop - start if include else np.minimum(stop, size) - np.maximum(start, 0))
        return functools.reduce(np.multiply.outer, lengths)


def lowest(dtype: Any) -> Any:
    """What every value of ``dtype`` is at least as large as."""
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def larger(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Of two (value, place) the one torch keeps: the first of equals, the last NaN."""
    (x, i), (y, j) = a, b
    x_nan, y_nan = x != x, y != y
    second = jnp.where(x_nan | y_nan, y_nan & (~x_nan | (j > i)), (y > x) | ((y == x) & (j < i)))
    return jnp.where(second, y, x), jnp.where(second, j, i)


def places(x: Array, rank: int) -> tuple[Array, Array]:
    """Each element's flat place in its plane, and the place of padding, which loses every tie."""
    size = int(np.prod(x.shape[-rank:]))
    # 32 bits are enough for a plane
    plane = jnp.arange(size, dtype=jnp.int32).reshape(x.shape[-rank:])
    return jnp.broadcast_to(plane, x.shape), jnp.int32(size)


def _max_pool(rank: int) -> Callable[..., tuple[Array, Array]]:
    def pool(
        self: Array,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        dilation: Ints = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        plan = _Plan(rank, self, kernel_size, stride, padding, dilation, ceil_mode)
        flat, outside = places(self, rank)
        start = jnp.asarray(lowest(self.dtype), self.dtype), outside
        values, chosen = plan.reduce((self, flat), start, larger)
        return values, chosen.astype(jnp.int64)

    return pool


def _adaptive_max_pool(rank: int) -> Callable[..., tuple[Array, Array]]:
    def pool(self: Array, output_size: Ints) -> tuple[Array, Array]:
        flat, outside = places(self, rank)
        start = jnp.asarray(lowest(self.dtype), self.dtype), outside
        parts: Any = (self, flat)
        for axis, count in zip(range(self.ndim - rank, self.ndim), output_size, strict=True):
            windows = _windows(self.shape[axis], count)
            parts = lax.reduce(
                tuple(jnp.take(p, windows, axis=axis, mode="clip") for p in parts),
                start,
                larger,
                (axis + 1,),
            )
        return parts[0], parts[1].astype(jnp.int64)

    return pool


def _windows(length: int, count: int) -> np.ndarray:
    """The elements of every adaptive window; the last is repeated in the shorter ones."""
    bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
    width = max((stop - start for start, stop in bounds), default=1)
    rows = [np.minimum(np.arange(start, start + width), stop - 1) for start, stop in bounds]
    return np.array(rows, np.int32).reshape(count, width)


def spread_to_places(grad_output: Array, shape: Ints, indices: Array, rank: int) -> Array:
    """The gradient goes to the chosen places of each plane."""
    planes, size = int(np.prod(shape[:-rank])), int(np.prod(shape[-rank:]))
    wide = jnp.promote_types(grad_output.dtype, jnp.float32)
    flat = indices.reshape(planes, -1) + jnp.arange(planes)[:, None] * size
    grad = jnp.zeros(planes * size, wide).at[flat.reshape(-1)].add(grad_output.reshape(-1).astype(wide))
    return grad.reshape(shape)


def _max_pool_backward(rank: int) -> Callable[..., Array]:
    def backward(
        grad_output: Array,
        self: Array,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: Array,
    ) -> Array:
        return spread_to_places(grad_output, self.shape, indices, rank)

    return backward


def _adaptive_max_pool_backward(rank: int) -> Callable[..., Array]:
    def backward(grad_output: Array, self: Array, indices: Array) -> Array:
        return spread_to_places(grad_output, self.shape, indices, rank)

    return backward


def _average(
    x: Array, rank: int, kernel: Ints, stride: Ints, padding: Ints, ceil: bool, include: bool, divisor: Any
) -> Array:
    plan = _Plan(rank, x, kernel, stride, padding, (1,), ceil)
    total = plan.reduce(x, np.zeros((), x.dtype), lax.add)
    return total / (divisor if divisor is not None else jnp.asarray(plan.divisors(include), x.dtype))


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _avg_pool(rank: int) -> Callable[..., Array]:
    def pool(
        self: Array,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return _average(_wide(self), rank, *rest)

    return pool


def _avg_pool_backward(rank: int) -> Callable[..., Array]:
    def backward(
        grad_output: Array,
        self: Array,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Array:
        rest = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return jax.vjp(lambda x: _average(x, rank, *rest), _wide(self))[1](_wide(grad_output))[0]

    return backward


def _adaptive(x: Array, size: Ints) -> Array:
    """Means of torch's adaptive windows, which overlap where the sizes do not divide."""
    for axis, count in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        length = x.shape[axis]
        if count and length % count == 0:
            parts = x.reshape(*x.shape[:axis], count, length // count, *x.shape[axis + 1 :])
            x = jnp.mean(parts, axis=axis + 1)
            continue
        bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        means = [jnp.mean(lax.slice_in_dim(x, *b, axis=axis), axis=axis, keepdims=True) for b in bounds]
        x = jnp.concatenate(means, axis) if means else lax.slice_in_dim(x, 0, 0, axis=axis)
    return x


def _adaptive_avg_pool(rank: int) -> Callable[..., Array]:
    def pool(self: Array, output_size: Ints) -> Array:
        return _adaptive(_wide(self), _spread(output_size, rank))

    return pool


def _adaptive_avg_pool_backward(rank: int) -> Callable[..., Array]:
    def backward(grad_output: Array, self: Array) -> Array:
        size = grad_output.shape[-rank:]
        return jax.vjp(lambda x: _adaptive(x, size), _wide(self))[1](_wide(grad_output))[0]

    return backward


POOLS: dict[str, tuple[Callable[[int], Callable[..., Any]], str]] = {
    "max_pool{}d_with_indices": (_max_pool, "The largest of each window and its flat place in the plane."),
    "max_pool{}d_with_indices_backward": (_max_pool_backward, "The gradient goes to the chosen places."),
    "adaptive_max_pool{}d": (_adaptive_max_pool, "The largest of each adaptive window and its place."),
    "adaptive_max_pool{}d_backward": (_adaptive_max_pool_backward, "The gradient goes to the chosen places."),
    "avg_pool{}d": (_avg_pool, "The mean of each window."),
    "avg_pool{}d_backward": (_avg_pool_backward, "The gradient spread over each window."),
    "_adaptive_avg_pool{}d": (_adaptive_avg_pool, "The mean over adaptive windows."),
    "_adaptive_avg_pool{}d_backward": (_adaptive_avg_pool_backward, "The gradient of the adaptive mean."),
}
for _name, (_make, _doc) in POOLS.items():
    for _rank in (2, 3):
        _fn = _make(_rank)
        _fn.__doc__ = _doc
        pack.lowering("aten::" + _name.format(_rank))(_fn)
