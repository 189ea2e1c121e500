"""Householder factors, least squares, and eigenvalues of general matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
NumpyArray = npt.NDArray[Any]


@pack.lowering("aten::geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    """LAPACK's packed QR decomposition: R above, the reflections' vectors below, and their factors."""
    packed, tau = jnp.linalg.qr(self, mode="raw")
    return jnp.swapaxes(packed, -1, -2), tau


def _rotation(vectors: Array, tau: Array) -> Array:
    """The whole square Q of a packed decomposition."""
    rows, columns = vectors.shape[-2:]
    batch = [(0, 0, 0)] * (vectors.ndim - 2)
    zero = jnp.zeros((), vectors.dtype)
    square = lax.pad(vectors, zero, [*batch, (0, 0, 0), (0, rows - columns, 0)])
    return lax.linalg.householder_product(square, lax.pad(tau, zero, [*batch, (0, rows - tau.shape[-1], 0)]))


@pack.lowering("aten::ormqr")
def ormqr(self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False) -> Array:
    """The product of a packed Q, or its adjoint, with a matrix, or the other way round."""
    q = _rotation(self, input2)
    q = jnp.conj(jnp.swapaxes(q, -1, -2)) if transpose else q
    return q @ input3 if left else input3 @ q


def _full_rank(A: Array, b: Array) -> Array:
    """The least-squares or least-norm solution from a QR decomposition."""
    tall = A.shape[-2] >= A.shape[-1]
    q, r = jnp.linalg.qr(A if tall else jnp.conj(jnp.swapaxes(A, -1, -2)))
    adjoint = jnp.conj(jnp.swapaxes(q, -1, -2))
    if tall:
        return lax.linalg.triangular_solve(r, adjoint @ b, left_side=True)
    return q @ lax.linalg.triangular_solve(r, b, left_side=True, transpose_a=True, conjugate_a=True)


def _any_rank(A: Array, b: Array, rcond: Any) -> tuple[Array, Array, Array]:
    """The solution of least norm, the rank and the singular values, small ones taken for zero."""
    u, s, vh = jnp.linalg.svd(A, full_matrices=False)
    if rcond is None:
        rcond = jnp.finfo(s.dtype).eps * max(A.shape[-2:])
    kept = s > rcond * jnp.max(s, axis=-1, keepdims=True, initial=0)
    weight = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0)[..., None]
    turned = jnp.conj(jnp.swapaxes(u, -1, -2)) @ b
    x = jnp.conj(jnp.swapaxes(vh, -1, -2)) @ (weight.astype(b.dtype) * turned)
    return x, jnp.sum(kept, axis=-1).astype(jnp.int64), s


@pack.lowering("aten::linalg_lstsq")
def lstsq(
    self: Array, b: Array, rcond: Any = None, *, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    """Solution, residuals, rank and singular values; the last three only as far as LAPACK's driver gives them.

    With ``gelsd`` and ``gelss`` the rank decides whether there are residuals, so that the host computes
    them for a matrix with more rows than columns.
    """
    rows, columns = self.shape[-2:]
    vector = b.ndim == self.ndim - 1 and b.shape == self.shape[:-1]
    right = b[..., None] if vector else b
    batch = jnp.broadcast_shapes(self.shape[:-2], right.shape[:-2])
    A, right = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (self, right))
    none = jnp.zeros((0,), jnp.finfo(A.dtype).dtype)
    rank, values, residuals = jnp.zeros((0,), jnp.int64), none, none
    if driver == "gels":
        x = _full_rank(A, right)
    else:
        x, rank, values = _any_rank(A, right, rcond)
    counted = driver == "gels" or (
        driver in ("gelsd", "gelss") and rows > columns and bool(jnp.all(rank == columns))
    )
    if counted and rows > columns:
        residuals = jnp.sum(jnp.abs(right - A @ x) ** 2, axis=-2)
        residuals = residuals[..., 0] if vector else residuals
    return x[..., 0] if vector else x, residuals, rank, values if driver in ("gelsd", "gelss") else none


# what XLA has no operation for on accelerators runs as torch's own kernel on the host


@pack.lowering("aten::linalg_eig", host=True)
def eig(self: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Eigenvalues and vectors of a general matrix."""
    values, vectors = np.linalg.eig(self)
    return values, vectors


@pack.lowering("aten::_linalg_eigvals", "aten::linalg_eigvals", host=True)
def eigvals(self: NumpyArray) -> NumpyArray:
    """Eigenvalues of a general matrix."""
    return np.linalg.eigvals(self)
