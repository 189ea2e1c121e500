"""Linear algebra on matrices and batches of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy import linalg

from torchtpu_ops._pack import pack

Array = jax.Array


@pack.lowering("aten::linalg_cholesky_ex")
def cholesky_ex(self: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    """The Cholesky factor and 0, or 1 where the matrix is not positive definite."""
    factor = jnp.linalg.cholesky(self)
    info = jnp.any(jnp.isnan(factor), axis=(-2, -1)).astype(jnp.int32)
    return (jnp.conj(jnp.swapaxes(factor, -1, -2)) if upper else factor), info


@pack.lowering("aten::cholesky")
def cholesky(self: Array, upper: bool = False) -> Array:
    """The Cholesky factor."""
    return cholesky_ex(self, upper=upper)[0]


@pack.lowering("aten::linalg_qr")
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """The QR decomposition."""
    if mode == "r":
        return jnp.zeros((0,), A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@pack.lowering("aten::_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    """Eigenvalues and vectors of a Hermitian matrix."""
    values, vectors = jnp.linalg.eigh(A, UPLO=UPLO)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


@pack.lowering("aten::linalg_inv_ex")
def inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    """The inverse and 0, or 1 where there is none."""
    inverse = jnp.linalg.inv(A)
    return inverse, jnp.any(~jnp.isfinite(inverse), axis=(-2, -1)).astype(jnp.int32)


@pack.lowering("aten::linalg_solve_triangular")
def solve_triangular(
    self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:  # fmt: skip
    """Solve A X = B, or X A = B, for a triangular A."""
    batch = jnp.broadcast_shapes(self.shape[:-2], B.shape[:-2])
    a = jnp.broadcast_to(self, batch + self.shape[-2:])
    b = jnp.broadcast_to(B, batch + B.shape[-2:])
    return jax.lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@pack.lowering("aten::cholesky_solve")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    """Solve with a Cholesky factor."""
    batch = jnp.broadcast_shapes(self.shape[:-2], input2.shape[:-2])
    factor = jnp.broadcast_to(input2, batch + input2.shape[-2:])
    return linalg.cho_solve((factor, not upper), jnp.broadcast_to(self, batch + self.shape[-2:]))
