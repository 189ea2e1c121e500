"""The parts of batch normalisation over several ranks, which `torch.nn.SyncBatchNorm` puts together.

Between the parts it sends what the ranks must know of each other: means and deviations forward, two sums backward.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide
from torchtpu_ops.norm import affine, channel_axes, moments, row, running

Array = jax.Array
Maybe = Array | None


@pack.lowering("aten::batch_norm_stats")
def batch_norm_stats(input: Array, eps: float) -> tuple[Array, Array]:
    """Each channel's mean and inverse deviation on this rank."""
    mean, variance = moments(wide(input))
    return mean, 1 / jnp.sqrt(variance + eps)


@pack.lowering("aten::batch_norm_update_stats")
def batch_norm_update_stats(
    input: Array, running_mean: Maybe, running_var: Maybe, momentum: float
) -> tuple[Maybe, ...]:
    """Each channel's mean and biased variance; then the new running statistics, which core writes back."""
    x = wide(input)
    mean, variance = moments(x)
    count = x.size // x.shape[1]
    unbiased = variance * count / (count - 1)
    return (
        mean, variance, running(running_mean, mean, momentum), running(running_var, unbiased, momentum),
    )  # fmt: skip


@pack.lowering("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: Array, mean: Array, invstd: Array, running_mean: Maybe, running_var: Maybe, momentum: float,
    eps: float, counts: Array,
) -> tuple[Maybe, ...]:  # fmt: skip
    """Mean and inverse deviation over all ranks, of (ranks, channels) and each rank's number of elements.

    With n the counts: m = Σ nᵢ mᵢ / n and v = Σ nᵢ (vᵢ + (mᵢ - m)²) / n. Then the new running statistics, which core
    writes back.
    """
    mean, invstd = wide(mean), wide(invstd)
    share = counts.astype(mean.dtype)[:, None]
    total = jnp.sum(share)
    joint = jnp.sum(share * mean, axis=0) / total
    variance = jnp.sum(share * (1 / invstd**2 - eps + (mean - joint) ** 2), axis=0) / total
    unbiased = variance * total / (total - 1)
    return (
        joint, 1 / jnp.sqrt(variance + eps),
        running(running_mean, joint, momentum), running(running_var, unbiased, momentum),
    )  # fmt: skip


@pack.lowering("aten::batch_norm_elemt")
def batch_norm_elemt(
    input: Array, weight: Maybe, bias: Maybe, mean: Array, invstd: Array, eps: float
) -> Array:
    """The input normalised with given statistics."""
    x = wide(input)
    scale, shift = (None if v is None else row(v, x.ndim) for v in (weight, bias))
    normal = (x - row(mean, x.ndim)) * row(invstd, x.ndim)
    return affine(normal, scale, shift).astype(input.dtype)


@pack.lowering("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: Array, input: Array, mean: Array, invstd: Array, weight: Maybe, input_g: bool, weight_g: bool,
    bias_g: bool,
) -> tuple[Maybe, ...]:  # fmt: skip
    """This rank's sums of the gradient and of gradient times deviation; the gradients of weight and bias."""
    grad, x = wide(grad_out), wide(input)
    total = jnp.sum(grad, axis=channel_axes(x))
    moved = jnp.sum(grad * (x - row(mean, x.ndim)), axis=channel_axes(x))
    dtype = grad.dtype if weight is None else weight.dtype
    scaled = (moved * invstd).astype(dtype) if weight_g else None
    return total, moved, scaled, total.astype(dtype) if bias_g else None


@pack.lowering("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: Array, input: Array, mean: Array, invstd: Array, weight: Maybe, sum_dy: Array,
    sum_dy_xmu: Array, count: Array,
) -> Array:  # fmt: skip
    """The gradient of the input, with the sums over all ranks and each rank's number of elements.

    dx = w s (dy - Σdy / n - (x - m) s² Σ dy (x - m) / n), where s is the inverse deviation.
    """
    grad, x = wide(grad_out), wide(input)
    total = jnp.sum(count).astype(x.dtype)
    factor = invstd if weight is None else invstd * wide(weight)
    first, second = row(sum_dy / total, x.ndim), row(invstd**2 * sum_dy_xmu / total, x.ndim)
    out = (grad - first - (x - row(mean, x.ndim)) * second) * row(factor, x.ndim)
    return out.astype(input.dtype)
