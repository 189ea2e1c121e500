"""The matrix products; half types accumulate in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array


def _matmul(a: Array, b: Array) -> Array:
    if a.dtype in (jnp.float16, jnp.bfloat16):
        return jnp.matmul(a, b, preferred_element_type=jnp.float32)
    return jnp.matmul(a, b)


@pack.lowering("aten::mm", "aten::bmm", "aten::mv", "aten::dot")
def mm(self: Array, other: Array) -> Array:
    """A plain product."""
    return _matmul(self, other)


@pack.lowering("aten::vdot")
def vdot(self: Array, other: Array) -> Array:
    """The dot product with the first vector conjugated."""
    return _matmul(jnp.conj(self), other)


@pack.lowering("aten::_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    """int8 product accumulated in int32."""
    return jnp.matmul(self, mat2, preferred_element_type=jnp.int32)


def _is_one(x: Any) -> bool:
    return isinstance(x, int) and x == 1


def _added(bias: Array, product: Array, beta: Any, alpha: Any) -> Array:
    product = product if _is_one(alpha) else product * alpha
    if _is_one(beta):
        return bias + product
    return jnp.where(jnp.asarray(beta) == 0, product, bias * beta + product)  # beta 0 hides NaN in the bias


@pack.lowering("aten::addmm", "aten::baddbmm", "aten::addmv")
def addmm(self: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * (a @ b)."""
    return _added(self, _matmul(a, b), beta, alpha)


@pack.lowering("aten::addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * the sum of the batch's products."""
    return _added(self, jnp.sum(_matmul(batch1, batch2), axis=0), beta, alpha)


@pack.lowering("aten::addr")
def addr(self: Array, vec1: Array, vec2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * the outer product."""
    return _added(self, jnp.outer(vec1, vec2), beta, alpha)
