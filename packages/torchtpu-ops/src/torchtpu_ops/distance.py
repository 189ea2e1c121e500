"""Distances between the rows of two matrices, forward and backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_ops._pack import pack

Array = jax.Array


def _norm(difference: Array, p: float) -> Array:
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == np.inf:
        return jnp.max(size, axis=-1, initial=0)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    return jnp.sum(size**p, axis=-1) ** (1 / p)


def _slope(difference: Array, p: float, distance: Array) -> Array:
    """The derivative of the norm of ``difference``, which is ``distance``; where that is 0 it is 0."""
    size = jnp.abs(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return jnp.sign(difference)
    if p == np.inf:
        return jnp.where(size == distance, jnp.sign(difference), 0)
    ratio = jnp.where(size == 0, 1, size) / jnp.where(distance == 0, 1, distance)
    return jnp.where((distance == 0) | (size == 0), 0, jnp.sign(difference) * ratio ** (p - 1))


@pack.lowering("aten::_cdist_forward", static=("p",))
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    """The p-norm distance of every row of x1 to every row of x2."""
    return _norm(x1[..., :, None, :] - x2[..., None, :, :], p)


@pack.lowering("aten::_cdist_backward", static=("p",))
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    """The gradient of x1; where the distance is 0 it is 0."""
    slope = _slope(x1[..., :, None, :] - x2[..., None, :, :], p, cdist[..., None])
    return jnp.sum(grad[..., None] * slope, axis=-2)


@pack.lowering("aten::_pdist_forward", static=("p",))
def pdist(self: Array, p: float = 2.0) -> Array:
    """The p-norm distance of every pair of different rows."""
    first, second = np.triu_indices(self.shape[0], 1)
    return _norm(self[first] - self[second], p)


@pack.lowering("aten::_pdist_backward", static=("p",))
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    """The gradient of the rows; where the distance is 0 it is 0."""
    first, second = np.triu_indices(self.shape[0], 1)
    slope = _slope(self[first] - self[second], p, pdist[..., None]) * grad[..., None]
    return jnp.zeros_like(self).at[first].add(slope).at[second].add(-slope)
