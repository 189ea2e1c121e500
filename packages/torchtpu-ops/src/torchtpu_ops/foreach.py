"""List forms whose per-tensor operator does not follow from the name."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack
from torchtpu_ops.shape import copy

Array = jax.Array


def _norm(x: Array, order: float, dtype: Any) -> Array:
    wide = dtype if dtype is not None else x.dtype
    if jnp.finfo(wide).bits < 32:
        wide = jnp.float32
    size = jnp.abs(x.astype(wide))
    if order == math.inf:
        return jnp.max(size, initial=0)
    if order == -math.inf:
        return jnp.min(size)
    if order == 0:
        return jnp.sum((size != 0).astype(size.dtype))
    if order == 1:
        return jnp.sum(size)
    return jnp.sqrt(jnp.sum(size * size)) if order == 2 else jnp.sum(size**order) ** (1 / order)


@pack.lowering("aten::_foreach_norm.Scalar", static=("ord",))
def foreach_norm(self: list[Array], ord: float = 2, dtype: Any = None) -> list[Array]:
    """The vector norm of each tensor."""
    return [_norm(x, float(ord), dtype) for x in self]


@pack.lowering("aten::_foreach_copy")
def foreach_copy(self: list[Array], src: list[Array]) -> list[Array]:
    """Each source cast to its target."""
    return [copy(a, b) for a, b in zip(self, src, strict=True)]


@pack.lowering("aten::_foreach_zero")
def foreach_zero(self: list[Array]) -> list[Array]:
    """Zeros in place of each tensor."""
    return [jnp.zeros_like(x) for x in self]
