"""Padding by mirror images and by edges, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array


def _reflect(x: Array, axis: int, low: int, high: int) -> Array:
    size = x.shape[axis]
    parts = [lax.slice_in_dim(x, 1, low + 1, axis=axis)] if low > 0 else []
    parts = [lax.rev(p, (axis,)) for p in parts] + [x]
    if high > 0:
        parts.append(lax.rev(lax.slice_in_dim(x, size - 1 - high, size - 1, axis=axis), (axis,)))
    return jnp.concatenate(parts, axis) if len(parts) > 1 else x


def _replicate(x: Array, axis: int, low: int, high: int) -> Array:
    def edge(at: int, count: int) -> Array:
        piece = lax.index_in_dim(x, at, axis)
        return jnp.broadcast_to(piece, x.shape[:axis] + (count,) + x.shape[axis + 1 :])

    parts = [edge(0, low)] if low > 0 else []
    parts.append(x)
    if high > 0:
        parts.append(edge(x.shape[axis] - 1, high))
    return jnp.concatenate(parts, axis) if len(parts) > 1 else x


def _padded(x: Array, padding: list[int], extend: Callable[[Array, int, int, int], Array]) -> Array:
    """Extend each padded dimension, last one first; a negative amount crops afterwards."""
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        low, high = padding[2 * i : 2 * i + 2]
        x = extend(x, axis, max(low, 0), max(high, 0))
        x = lax.slice_in_dim(x, max(-low, 0), x.shape[axis] - max(-high, 0), axis=axis)
    return x


def _register(kind: str, extend: Callable[[Array, int, int, int], Array]) -> None:
    """Forward and gradient of one way to pad, for one to three dimensions."""

    def forward(self: Array, padding: list[int]) -> Array:
        return _padded(self, padding, extend)

    def backward(grad_output: Array, self: Array, padding: list[int]) -> Array:
        like = jax.ShapeDtypeStruct(self.shape, grad_output.dtype)
        (grad,) = jax.linear_transpose(lambda x: _padded(x, padding, extend), like)(grad_output)
        return grad  # type: ignore[no-any-return]

    for n in (1, 2, 3):
        pack.lowering(f"aten::{kind}_pad{n}d")(forward)
        pack.lowering(f"aten::{kind}_pad{n}d_backward")(backward)


_register("reflection", _reflect)
_register("replication", _replicate)
