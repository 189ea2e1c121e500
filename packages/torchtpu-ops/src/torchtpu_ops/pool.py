"""Pooling over two spatial dimensions, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
Ints = Sequence[int]


def _pair(values: Ints) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)


def _outputs(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """torch's output size: a window must start inside the input or its left padding."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count


class _Plan:
    """The sizes of one pooling: kernel, stride, padding, dilation and number of windows per axis."""

    def __init__(
        self, x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
    ) -> None:
        self.sizes = x.shape[-2:]
        self.kernel, self.padding, self.dilation = _pair(kernel), _pair(padding), _pair(dilation)
        self.stride = _pair(stride) if stride else self.kernel
        axes = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        self.counts = [_outputs(*axis, ceil) for axis in axes]

    def reduce(self, operands: Any, initial: Any, combine: Any) -> Any:
        """`lax.reduce_window` over the last two dimensions."""
        ndim = jax.tree.leaves(operands)[0].ndim - 2
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
        return np.outer(*lengths)


def _lowest(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _larger(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Of two (value, place) the one torch keeps: the first of equals, the last NaN."""
    (x, i), (y, j) = a, b
    x_nan, y_nan = x != x, y != y
    second = jnp.where(x_nan | y_nan, y_nan & (~x_nan | (j > i)), (y > x) | ((y == x) & (j < i)))
    return jnp.where(second, y, x), jnp.where(second, j, i)


@pack.lowering("aten::max_pool2d_with_indices")
def max_pool2d_with_indices(
    self: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """The largest of each window and its flat place in the plane."""
    plan = _Plan(self, kernel_size, stride, padding, dilation, ceil_mode)
    size = self.shape[-2] * self.shape[-1]
    # 32 bits are enough for a plane; the place of padding is after all others, so it loses every tie
    plane = jnp.arange(size, dtype=jnp.int32).reshape(self.shape[-2:])
    start = jnp.asarray(_lowest(self.dtype), self.dtype), jnp.int32(size)
    values, places = plan.reduce((self, jnp.broadcast_to(plane, self.shape)), start, _larger)
    return values, places.astype(jnp.int64)


@pack.lowering("aten::max_pool2d_with_indices_backward")
def max_pool2d_with_indices_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Array,
) -> Array:
    """The gradient goes to the chosen places."""
    planes = int(np.prod(self.shape[:-2]))
    size = self.shape[-2] * self.shape[-1]
    wide = jnp.promote_types(grad_output.dtype, jnp.float32)
    flat = indices.reshape(planes, -1) + jnp.arange(planes)[:, None] * size
    grad = jnp.zeros(planes * size, wide).at[flat.reshape(-1)].add(grad_output.reshape(-1).astype(wide))
    return grad.reshape(self.shape)


def _average(
    x: Array, kernel: Ints, stride: Ints, padding: Ints, ceil: bool, include: bool, divisor: int | None
) -> Array:
    plan = _Plan(x, kernel, stride, padding, (1,), ceil)
    total = plan.reduce(x, np.zeros((), x.dtype), lax.add)
    return total / (divisor if divisor is not None else jnp.asarray(plan.divisors(include), x.dtype))


@pack.lowering("aten::avg_pool2d")
def avg_pool2d(
    self: Array,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """The mean of each window."""
    x = self.astype(jnp.promote_types(self.dtype, jnp.float32))
    return _average(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@pack.lowering("aten::avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """The gradient spread over each window."""
    wide = jnp.promote_types(self.dtype, jnp.float32)

    def forward(x: Array) -> Array:
        return _average(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return jax.vjp(forward, self.astype(wide))[1](grad_output.astype(wide))[0]


def _adaptive(x: Array, size: Ints) -> Array:
    """Means of torch's adaptive windows, which overlap where the sizes do not divide."""
    for axis, count in zip((x.ndim - 2, x.ndim - 1), size, strict=True):
        length = x.shape[axis]
        if count and length % count == 0:
            parts = x.reshape(*x.shape[:axis], count, length // count, *x.shape[axis + 1 :])
            x = jnp.mean(parts, axis=axis + 1)
            continue
        bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        means = [jnp.mean(lax.slice_in_dim(x, *b, axis=axis), axis=axis, keepdims=True) for b in bounds]
        x = jnp.concatenate(means, axis) if means else lax.slice_in_dim(x, 0, 0, axis=axis)
    return x


@pack.lowering("aten::_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Array, output_size: Ints) -> Array:
    """The mean over adaptive windows."""
    return _adaptive(self.astype(jnp.promote_types(self.dtype, jnp.float32)), output_size)


@pack.lowering("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of the adaptive mean."""
    wide = jnp.promote_types(self.dtype, jnp.float32)
    size = grad_output.shape[-2:]
    return jax.vjp(lambda x: _adaptive(x, size), self.astype(wide))[1](grad_output.astype(wide))[0]
