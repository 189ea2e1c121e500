"""Makers of lowerings that differ only in one function, and the arithmetic that families share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array


def unary(name: str, fn: Callable[[Array], Array], promote: Any) -> None:
    """Register ``fn`` as the lowering of an operator on one tensor."""

    def lowering(self: Array) -> Array:
        return fn(self)

    lowering.__doc__ = f"Element-wise {name}."
    pack.lowering(f"aten::{name}", promote=promote)(lowering)


def binary(base: str, overloads: tuple[str, ...], fn: Callable[[Array, Array], Array], promote: Any) -> None:
    """Register ``fn`` for the overloads of an operator on two tensors, or on a tensor and a number."""

    def lowering(self: Array, other: Array) -> Array:
        return fn(self, other)

    lowering.__doc__ = f"Element-wise {base}."
    names = [f"aten::{base}.{overload}" if overload else f"aten::{base}" for overload in overloads]
    pack.lowering(*names, promote=promote)(lowering)


def wide(x: Array) -> Array:
    """``x`` in the dtype that torch accumulates in: float32 for the half types."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def divide(a: Array, b: Any) -> Array:
    """a / b, correctly rounded where ``b`` is broadcast."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return a / b
    # XLA turns division by a broadcast value into a product with its reciprocal, so that x / x is
    # not always 1; a divisor that depends on the dividend is left alone.
    return a / jnp.where(jnp.isnan(a), a, b)
