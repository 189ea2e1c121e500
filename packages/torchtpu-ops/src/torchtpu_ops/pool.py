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


def _windows(x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool, fill: Any) -> Array:
    """All windows, (..., H', W', kernel elements), outside filled with ``fill``."""
    k, s, p, d = _pair(kernel), _pair(stride) if stride else _pair(kernel), _pair(padding), _pair(dilation)
    rows = []
    for size, kk, ss, pp, dd in zip(x.shape[-2:], k, s, p, d, strict=True):
        count = _outputs(size, kk, ss, pp, dd, ceil)
        rows.append(np.arange(count)[:, None] * ss + np.arange(kk)[None] * dd)
    need = [int(r.max()) + 1 for r in rows]
    pads = [(0, 0, 0)] * (x.ndim - 2)
    pads += [(pp, max(n - size - pp, 0), 0) for pp, n, size in zip(p, need, x.shape[-2:], strict=True)]
    padded = lax.pad(x, jnp.asarray(fill, x.dtype), pads)
    picked = padded[..., rows[0][:, :, None, None], rows[1][None, None]]
    moved = jnp.swapaxes(picked, -3, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def _lowest(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


@pack.lowering("aten::max_pool2d_with_indices")
def max_pool2d_with_indices(
    self: Array, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,), ceil_mode: bool = False
) -> tuple[Array, Array]:  # fmt: skip
    """The largest of each window and its flat place in the plane."""
    plane = jnp.arange(self.shape[-2] * self.shape[-1]).reshape(self.shape[-2:])
    values = _windows(self, kernel_size, stride, padding, dilation, ceil_mode, _lowest(self.dtype))
    places = _windows(plane, kernel_size, stride, padding, dilation, ceil_mode, -1)
    inside = places >= 0
    ranked = jnp.where(inside, values, _lowest(self.dtype))
    best = jnp.argmax(ranked, axis=-1)
    first = jnp.argmax(inside, axis=-1)
    best = jnp.where(jnp.take_along_axis(inside + jnp.zeros_like(ranked, bool), best[..., None], -1)[..., 0], best, first)
    places = jnp.broadcast_to(places, ranked.shape)
    chosen = jnp.take_along_axis(places, best[..., None], -1)[..., 0]
    return jnp.take_along_axis(values, best[..., None], -1)[..., 0], chosen


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
    total = jnp.sum(_windows(x, kernel, stride, padding, (1,), ceil, 0), axis=-1)
    if divisor is not None:
        return total / divisor
    p = _pair(padding)
    ones = jnp.ones(x.shape[-2:], x.dtype)
    if include:  # the declared padding counts, what ceil_mode adds beyond it does not
        ones = jnp.pad(ones, [(q, q) for q in p], constant_values=1)
        counts = jnp.sum(_windows(ones, kernel, stride, (0,), (1,), ceil, 0), axis=-1)
        counts = counts[: total.shape[-2], : total.shape[-1]]
    else:
        counts = jnp.sum(_windows(ones, kernel, stride, padding, (1,), ceil, 0), axis=-1)
    return total / counts


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
    """Means of torch's adaptive windows, as two products with averaging matrices."""
    for axis, target in zip((-2, -1), size, strict=True):
        length = x.shape[axis]
        matrix = np.zeros((target, length))
        for i in range(target):
            low, high = i * length // target, -(-(i + 1) * length // target)
            matrix[i, low:high] = 1 / (high - low)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(matrix.T, x.dtype), -1, axis)
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
