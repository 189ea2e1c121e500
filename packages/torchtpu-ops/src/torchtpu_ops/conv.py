"""Convolutions of one to three dimensions, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
Ints = Sequence[int]


def _spread(values: Ints, count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _transposed_weight(weight: Array, groups: int) -> Array:
    """(in, out / groups, ...) flipped to (out, in / groups, ...)."""
    ins, outs, *kernel = weight.shape
    w = jnp.flip(weight, axis=tuple(range(2, weight.ndim)))
    w = w.reshape(groups, ins // groups, outs, *kernel).swapaxes(1, 2)
    return w.reshape(groups * outs, ins // groups, *kernel)


def _convolve(
    x: Array,
    weight: Array,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Array:
    count = weight.ndim - 2
    stride, padding, dilation = (_spread(v, count) for v in (stride, padding, dilation))
    extra = _spread(output_padding, count) if output_padding else [0] * count
    wide = jnp.float32 if x.dtype in (jnp.float16, jnp.bfloat16) else None
    pads, spread = [(p, p) for p in padding], [1] * count
    if transposed:
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
        stride, spread = spread, stride
        weight = _transposed_weight(weight, groups)
    return lax.conv_general_dilated(
        x,
        weight,
        stride,
        pads,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        feature_group_count=groups,
        preferred_element_type=wide,
    )


@pack.lowering("aten::convolution")
def convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Array:
    """The convolution of (N, C, ...) or (C, ...) with (O, C / groups, ...)."""
    batched = input.ndim == weight.ndim
    x = input if batched else input[None]
    out = _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        out = out + bias.reshape(1, -1, *[1] * (weight.ndim - 2))
    return out if batched else out[0]


@pack.lowering("aten::convolution_backward")
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of input, weight and bias."""

    def forward(x: Array, w: Array) -> Array:
        out = _convolve(x, w, stride, padding, dilation, transposed, output_padding, groups)
        return out.astype(grad_output.dtype)

    pull = jax.vjp(forward, input, weight)[1]
    dx, dw = pull(grad_output)
    axes = (0, *range(2, grad_output.ndim))
    wide = grad_output.astype(jnp.promote_types(grad_output.dtype, jnp.float32))
    return (
        dx if output_mask[0] else None,
        dw if output_mask[1] else None,
        jnp.sum(wide, axis=axes) if output_mask[2] else None,
    )
