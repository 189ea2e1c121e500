"""The matrix products; half types accumulate in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

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


@pack.lowering("aten::_weight_int8pack_mm")
def weight_int8pack_mm(self: Array, mat2: Array, scales: Array) -> Array:
    """Floats times the transpose of int8 weights, which have a scale for each row."""
    return _matmul(self, mat2.astype(self.dtype).T) * scales


@pack.lowering("aten::_scaled_mm")
def scaled_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Array:
    """The product of 8-bit floats, added up in float32; scales for the whole, or for rows and columns.

    ``scale_result`` changes nothing, as on the CPU.
    """
    # bfloat16 holds every 8-bit float, and all platforms multiply it
    exact = [x.astype(jnp.bfloat16) for x in (self, mat2)]
    out = jnp.matmul(*exact, preferred_element_type=jnp.float32) * scale_a * scale_b
    return out if bias is None else out + bias


def _is_one(x: Any) -> bool:
    return isinstance(x, int) and x == 1


def _times(x: Array, factor: Any) -> Array:
    """``x`` scaled; a factor for whole numbers loses its fraction, as on the CPU."""
    if _is_one(factor):
        return x
    return x * (factor if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.asarray(factor).astype(x.dtype))


def _added(bias: Array, product: Array, beta: Any, alpha: Any) -> Array:
    product = _times(wide(product), alpha)
    if _is_one(beta):
        return bias + product
    # beta 0 hides NaN in the bias
    return jnp.where(jnp.asarray(beta) == 0, product, _times(wide(bias), beta) + product)


@pack.lowering("aten::addmm", "aten::baddbmm", "aten::addmv")
def addmm(self: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * (a @ b)."""
    return _added(self, _matmul(a, b), beta, alpha)


@pack.lowering("aten::addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * the sum of the batch's products."""
    return _added(self, jnp.sum(wide(_matmul(batch1, batch2)), axis=0), beta, alpha)


@pack.lowering("aten::addr")
def addr(self: Array, vec1: Array, vec2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """beta * self + alpha * the outer product."""
    return _added(self, jnp.outer(wide(vec1), wide(vec2)), beta, alpha)
