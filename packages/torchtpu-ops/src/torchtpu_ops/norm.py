"""Batch, layer, group and root-mean-square normalisation, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array
Maybe = Array | None


def row(x: Array, ndim: int) -> Array:
    """A per-channel vector shaped for (N, C, ...)."""
    return x.reshape(1, -1, *[1] * (ndim - 2))


def channel_axes(x: Array) -> tuple[int, ...]:
    """All dimensions but that of the channels."""
    return (0, *range(2, x.ndim))


def moments(x: Array) -> tuple[Array, Array]:
    """The mean and the biased variance of each channel."""
    mean = jnp.mean(x, axis=channel_axes(x))
    return mean, jnp.mean((x - row(mean, x.ndim)) ** 2, axis=channel_axes(x))


def running(old: Maybe, new: Array, momentum: Any) -> Maybe:
    """The running statistic after a batch's; None where none is kept."""
    return None if old is None else wide(old) * (1 - momentum) + new * momentum


def affine(x: Array, weight: Maybe, bias: Maybe) -> Array:
    """x · weight + bias, either of which may be missing."""
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@pack.lowering("aten::native_batch_norm", "aten::_native_batch_norm_legit_functional")
def native_batch_norm(
    input: Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Maybe, ...]:
    """Output, batch mean, inverse deviation; then the new running statistics, which core writes back."""
    x = wide(input)
    if training:
        mean, var = moments(x)
        saved = (mean, 1 / jnp.sqrt(var + eps))
        count = x.size // x.shape[1]
        unbiased = var * count / (count - 1)  # of one element: NaN, as in torch
        new_mean, new_var = running(running_mean, mean, momentum), running(running_var, unbiased, momentum)
    else:
        assert running_mean is not None and running_var is not None
        mean, var = wide(running_mean), wide(running_var)
        # never read; the CPU leaves them empty, but torch's meta kernel, whose shapes hold, does not
        saved = (jnp.zeros(0, x.dtype), jnp.zeros(0, x.dtype))
        new_mean, new_var = running_mean, running_var
    out = (x - row(mean, x.ndim)) / jnp.sqrt(row(var, x.ndim) + eps)
    scale, shift = (None if v is None else row(v, x.ndim) for v in (weight, bias))
    return affine(out, scale, shift), *saved, new_mean, new_var


@pack.lowering("aten::_native_batch_norm_legit")
def batch_norm_legit(
    input: Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Maybe, ...]:
    """The new running statistics, which this schema declares as written, then the results."""
    results = native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return *results[3:], *results[:3]


@pack.lowering("aten::_batch_norm_with_update")
def batch_norm_with_update(
    input: Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: Any,
) -> tuple[Maybe, ...]:
    """As ``batch_norm_legit`` in training, with an empty workspace."""
    results = batch_norm_legit(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, jnp.zeros(0, jnp.uint8)


@pack.lowering("aten::_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Array, weight: Maybe, bias: Maybe, training: bool, momentum: Any, eps: Any
) -> tuple[Maybe, ...]:
    """Batch normalisation that keeps no running statistics."""
    return native_batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


@pack.lowering("aten::_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: Any,
) -> tuple[Maybe, ...]:
    """Batch normalisation with given statistics."""
    return native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


@pack.lowering("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """Gradients of input, weight and bias."""
    x, g = wide(input), wide(grad_out)
    axes = channel_axes(x)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, inverse = save_mean, save_invstd
    else:
        assert running_mean is not None and running_var is not None
        mean, inverse = wide(running_mean), 1 / jnp.sqrt(wide(running_var) + eps)
    centred = (x - row(mean, x.ndim)) * row(inverse, x.ndim)
    dbias, dweight = jnp.sum(g, axis=axes), jnp.sum(g * centred, axis=axes)
    dx = g
    if train:
        count = x.size // x.shape[1]
        dx = g - (row(dbias, x.ndim) + centred * row(dweight, x.ndim)) / count
    dx = dx * row(inverse if weight is None else inverse * weight, x.ndim)
    return (
        dx if output_mask[0] else None,
        dweight if output_mask[1] else None,
        dbias if output_mask[2] else None,
    )


def _normalised(x: Array, axes: tuple[int, ...], eps: Any) -> tuple[Array, Array, Array]:
    mean = jnp.mean(x, axis=axes, keepdims=True)
    rstd = 1 / jnp.sqrt(jnp.mean((x - mean) ** 2, axis=axes, keepdims=True) + eps)
    return (x - mean) * rstd, mean, rstd


def _gradient(g: Array, centred: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    """The gradient of (x - mean) * rstd for x."""
    return (
        g - jnp.mean(g, axis=axes, keepdims=True) - centred * jnp.mean(g * centred, axis=axes, keepdims=True)
    ) * rstd


@pack.lowering("aten::native_layer_norm")
def native_layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: Any
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Output, mean and inverse deviation over the last dimensions."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    out, mean, rstd = _normalised(wide(input), axes, eps)
    return affine(out, weight, bias), mean, rstd


@pack.lowering("aten::native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """Gradients of input, weight and bias."""
    x, g = wide(input), wide(grad_out)
    first = x.ndim - len(normalized_shape)
    axes, outer = tuple(range(first, x.ndim)), tuple(range(first))
    centred = (x - mean) * rstd
    dx = _gradient(g if weight is None else g * weight, centred, rstd, axes)
    return (
        dx if output_mask[0] else None,
        jnp.sum(g * centred, axis=outer) if output_mask[1] else None,
        jnp.sum(g, axis=outer) if output_mask[2] else None,
    )


@pack.lowering("aten::native_group_norm")
def native_group_norm(
    input: Array, weight: Maybe, bias: Maybe, N: int, C: int, HxW: int, group: int, eps: Any
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Output, mean and inverse deviation over groups of channels."""
    x = wide(input).reshape(N, group, C // group * HxW)
    out, mean, rstd = _normalised(x, (2,), eps)
    scale, shift = (None if v is None else row(v, input.ndim) for v in (weight, bias))
    return affine(out.reshape(input.shape), scale, shift), mean.reshape(N, group), rstd.reshape(N, group)


@pack.lowering("aten::native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """Gradients of input, weight and bias."""
    x, g = wide(input).reshape(N, group, C // group * HxW), wide(grad_out)
    scale = rstd.reshape(N, group, 1)
    centred = (x - mean.reshape(N, group, 1)) * scale
    weighted = g if weight is None else g * row(weight, g.ndim)
    dx = _gradient(weighted.reshape(N, group, C // group * HxW), centred, scale, (2,)).reshape(input.shape)
    axes = (0, *range(2, g.ndim))
    return (
        dx if output_mask[0] else None,
        jnp.sum(g * centred.reshape(g.shape), axis=axes) if output_mask[1] else None,
        jnp.sum(g, axis=axes) if output_mask[2] else None,
    )


@pack.lowering("aten::_fused_rms_norm")
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Maybe, eps: Any
) -> tuple[Array, Array]:  # fmt: skip
    """Output and inverse root of the mean square over the last dimensions."""
    x = wide(input)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    eps = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = 1 / jnp.sqrt(jnp.mean(x * x, axis=axes, keepdims=True) + eps)
    return affine(x * rstd, weight, None), rstd


@pack.lowering("aten::_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe]:
    """Gradients of input and weight."""
    x, g = wide(input), wide(grad_out)
    first = x.ndim - len(normalized_shape)
    axes, outer = tuple(range(first, x.ndim)), tuple(range(first))
    scaled = x * rstd
    weighted = g if weight is None else g * weight
    dx = (weighted - scaled * jnp.mean(weighted * scaled, axis=axes, keepdims=True)) * rstd
    return (
        dx if output_mask[0] else None,
        jnp.sum(g * scaled, axis=outer) if output_mask[1] and weight is not None else None,
    )


@pack.lowering("aten::_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    """Gradients of the direction v and the magnitude g of w = g v / |v|, the norm over all but ``dim``."""
    axes = tuple(i for i in range(saved_v.ndim) if i != dim % saved_v.ndim)
    grad, v, g, norms = map(wide, (grad_w, saved_v, saved_g, saved_norms))
    along = jnp.sum(grad * v, axis=axes, keepdims=True) / norms
    return g / norms * (grad - v * along / norms), along.reshape(g.shape)
