"""Losses and their backward functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array
NONE, MEAN, SUM = 0, 1, 2


def _reduced(x: Array, reduction: int) -> Array:
    if reduction == MEAN:
        return jnp.mean(x)
    return jnp.sum(x) if reduction == SUM else x


def _pair(name: str, element: Callable[..., Array], extra: tuple[str, ...] = ()) -> None:
    """Register an element-wise loss of (input, target) and its gradient for the input."""

    def forward(self: Array, target: Array, reduction: int = MEAN, *rest: Any) -> Array:
        return _reduced(element(wide(self), wide(target), *rest), reduction)

    def backward(grad_output: Array, self: Array, target: Array, reduction: int, *rest: Any) -> Array:
        def loss(x: Array) -> Array:
            return _reduced(element(x, wide(target), *rest), reduction)

        value, pull = jax.vjp(loss, wide(self))
        return pull(jnp.broadcast_to(grad_output.astype(value.dtype), value.shape))[0]

    forward.__doc__ = f"The {name}."
    backward.__doc__ = f"The gradient of {name} for its input."
    pack.lowering(f"aten::{name}")(forward)
    pack.lowering(f"aten::{name}_backward")(backward)


def _smooth(x: Array, y: Array, beta: Any = 1.0) -> Array:
    d = jnp.abs(x - y)
    return jnp.where(d < beta, 0.5 * d * d / jnp.where(beta == 0, 1, beta), d - 0.5 * beta)


def _huber(x: Array, y: Array, delta: Any = 1.0) -> Array:
    d = jnp.abs(x - y)
    return jnp.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


_pair("mse_loss", lambda x, y: (x - y) ** 2)
_pair("smooth_l1_loss", _smooth)
_pair("huber_loss", _huber)
_pair("soft_margin_loss", lambda x, y: jnp.log1p(jnp.exp(-x * y)))


@pack.lowering("aten::binary_cross_entropy")
def binary_cross_entropy(
    self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """-(y log x + (1 - y) log(1 - x)), logs not below -100."""
    x, y = wide(self), wide(target)
    loss = -(y * jnp.maximum(jnp.log(x), -100) + (1 - y) * jnp.maximum(jnp.log1p(-x), -100))
    return _reduced(loss if weight is None else loss * weight, reduction)


@pack.lowering("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Array, self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """The gradient of binary_cross_entropy."""
    x, y = wide(self), wide(target)
    grad = grad_output * (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    grad = grad if weight is None else grad * weight
    return grad / self.size if reduction == MEAN else grad


@pack.lowering("aten::binary_cross_entropy_with_logits")
def bce_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """Binary cross entropy of sigmoid(x), computed from x."""
    x, y = wide(self), wide(target)
    scale = 1 if pos_weight is None else (pos_weight - 1) * y + 1
    loss = (1 - y) * x + scale * (jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(-x, 0))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _check_targets(
    self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100
) -> None:
    """Raise what CPU raises for a class index that does not exist."""
    classes = self.shape[0] if self.ndim == 1 else self.shape[1]
    bad = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if bad.size:
        raise IndexError(f"Target {int(np.ravel(bad)[0])} is out of bounds.")


def _picked(self: Array, target: Array, weight: Array | None, ignore: int) -> tuple[Array, Array, int]:
    """Minus the chosen entries, their weights (0 where ignored), and the class axis."""
    axis = 0 if self.ndim == 1 else 1
    valid = target != ignore
    index = jnp.expand_dims(jnp.where(valid, target, 0), axis)
    chosen = jnp.take_along_axis(self, index.astype(jnp.int64), axis=axis).squeeze(axis)
    scale = jnp.ones_like(chosen) if weight is None else weight[index.squeeze(axis)]
    return -chosen, jnp.where(valid, scale, 0).astype(self.dtype), axis


@pack.lowering("aten::nll_loss_forward", "aten::nll_loss2d_forward", validate=_check_targets)
def nll_loss_forward(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """The negative log likelihood and the sum of the weights."""
    loss, scale, _ = _picked(wide(self), target, weight, ignore_index)
    loss = jnp.where(scale != 0, loss * scale, 0)
    total = jnp.sum(scale)
    if reduction == NONE:
        return loss, jnp.zeros((), total.dtype)
    return (jnp.sum(loss) / total if reduction == MEAN else jnp.sum(loss)), total


@pack.lowering("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """The gradient of nll_loss."""
    _, scale, axis = _picked(wide(self), target, weight, ignore_index)
    grad = -scale * grad_output / (total_weight if reduction == MEAN else 1)
    classes = lax.broadcasted_iota(jnp.int64, self.shape, axis)
    index = jnp.expand_dims(target, axis)
    # an ignored target has no gradient, also where no weight is left to divide by
    return jnp.where((classes == index) & (index != ignore_index), jnp.expand_dims(grad, axis), 0)


def _multi_margin(
    x: Array, target: Array, p: Any, margin: Any, weight: Array | None, reduction: int
) -> Array:
    rows, index = jnp.atleast_2d(x), jnp.atleast_1d(target)[:, None]
    excess = margin - jnp.take_along_axis(rows, index, axis=1) + rows
    own = lax.broadcasted_iota(index.dtype, rows.shape, 1) == index
    cost = jnp.where((excess > 0) & ~own, excess, 0)
    cost = cost if p == 1 else cost * cost
    cost = cost if weight is None else cost * weight[index]
    loss = jnp.sum(cost, axis=1) / rows.shape[1]
    return _reduced(loss, reduction)


def _check_margin_targets(self: Any, target: Any, **_: Any) -> None:
    """Raise what CPU raises for a class index that does not exist."""
    if np.any((target < 0) | (target >= self.shape[-1])):
        raise RuntimeError("target out of range")


@pack.lowering("aten::multi_margin_loss", static=("p",), validate=_check_margin_targets)
def multi_margin_loss(
    self: Array,
    target: Array,
    p: Any = 1,
    margin: Any = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """The mean over classes of max(0, margin - x[target] + x) ** p."""
    return _multi_margin(wide(self), target, p, margin, weight, reduction)


@pack.lowering("aten::multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: Any,
    margin: Any,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """The gradient of multi_margin_loss."""
    value, pull = jax.vjp(lambda x: _multi_margin(x, target, p, margin, weight, reduction), wide(self))
    return pull(grad_output.astype(value.dtype))[0]


def _multilabel(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    rows, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    listed = jnp.cumsum(labels < 0, axis=1) == 0  # the first negative label ends the list
    index = jnp.where(listed, labels, 0)
    classes = lax.broadcasted_iota(index.dtype, (*rows.shape, rows.shape[1]), 2)
    member = jnp.any((classes == index[:, :, None]) & listed[:, :, None], axis=1)
    excess = 1 - jnp.take_along_axis(rows, index, axis=1)[:, :, None] + rows[:, None, :]
    counted = listed[:, :, None] & ~member[:, None, :] & (excess > 0)
    loss = jnp.sum(jnp.where(counted, excess, 0), axis=(1, 2)) / rows.shape[1]
    return _reduced(loss, reduction), member.reshape(target.shape)


@pack.lowering("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """The mean of max(0, 1 - x[label] + x[other]) over labels and others, and which classes are labels."""
    return _multilabel(wide(self), target, reduction)


@pack.lowering("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    """The gradient of multilabel_margin_loss."""
    value, pull = jax.vjp(lambda x: _multilabel(x, target, reduction)[0], wide(self))
    return pull(grad_output.astype(value.dtype))[0]
