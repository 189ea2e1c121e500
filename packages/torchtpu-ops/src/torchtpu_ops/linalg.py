"""Linear algebra on matrices and batches of them."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array


@pack.lowering("aten::linalg_cholesky_ex")
def cholesky_ex(self: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    """The Cholesky factor and 0, or 1 where the matrix is not positive definite."""
    # torch reads one triangle and never looks at the other
    lower = jnp.conj(jnp.swapaxes(self, -1, -2)) if upper else self
    factor = lax.linalg.cholesky(lower, symmetrize_input=False)
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
    vectors, values = lax.linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), A.dtype)


def _singular(lu: Array) -> Array:
    """LAPACK's info: the place (from 1) of the first zero on the diagonal of U, or 0."""
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(jnp.any(zero, axis=-1), jnp.argmax(zero, axis=-1) + 1, 0).astype(jnp.int32)


def _permutation(pivots: Array, rows: int) -> Array:
    """LAPACK's row swaps (from 1) as the order of rows that they lead to."""
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _triangles(lu: Array) -> tuple[Array, Array]:
    count = min(lu.shape[-2:])
    lower = jnp.tril(lu[..., :, :count], -1) + jnp.eye(lu.shape[-2], count, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :count, :])


def _permuted(perm: Array, dtype: Any) -> Array:
    """The matrix P of A = P L U for the order ``perm`` of A's rows."""
    return (jnp.arange(perm.shape[-1])[:, None] == perm[..., None, :]).astype(dtype)


def _need_pivot(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError("the LU decomposition without pivoting is not supported on the TPU")


@pack.lowering("aten::linalg_lu_factor_ex")
def lu_factor_ex(A: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    """The packed LU decomposition, its row swaps and the place of a zero pivot."""
    _need_pivot(pivot)
    lu, pivots, _ = lax.linalg.lu(A)
    return lu, pivots + 1, _singular(lu)


def _swaps_sign(pivots: Array, dtype: Any) -> Array:
    """The determinant of LAPACK's row swaps (from 1)."""
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype), axis=-1)
    return jnp.where(swaps % 2 == 0, 1, -1).astype(dtype)


@pack.lowering("aten::_linalg_det")
def det(A: Array) -> tuple[Array, Array, Array]:
    """The determinant and the packed LU decomposition that it comes from."""
    lu, pivots, _ = lu_factor_ex(A)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    return _swaps_sign(pivots, A.dtype) * jnp.prod(diagonal, axis=-1), lu, pivots


@pack.lowering("aten::_linalg_slogdet")
def slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    """Sign and logarithm of the determinant, and the packed LU decomposition that they come from."""
    lu, pivots, _ = lu_factor_ex(A)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    sign = _swaps_sign(pivots, A.dtype) * jnp.prod(jnp.sign(diagonal), axis=-1)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1), lu, pivots


@pack.lowering("aten::linalg_lu")
def lu(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    """P, L and U with A = P L U."""
    _need_pivot(pivot)
    packed, _, perm = lax.linalg.lu(A)
    return _permuted(perm, A.dtype), *_triangles(packed)


@pack.lowering("aten::lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    """P, L and U from a packed decomposition; what is not asked for is empty."""
    none = jnp.zeros((0,), LU_data.dtype)
    low, up = _triangles(LU_data) if unpack_data else (none, none)
    if not unpack_pivots:
        return none, low, up
    return _permuted(_permutation(LU_pivots, LU_data.shape[-2]), LU_data.dtype), low, up


@pack.lowering("aten::linalg_lu_solve")
def lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    """Solve A X = B, or X A = B, or with A's adjoint, from A's packed decomposition."""
    if not left:
        turned = jnp.conj(jnp.swapaxes(B, -1, -2))
        return jnp.conj(jnp.swapaxes(lu_solve(LU, pivots, turned, adjoint=not adjoint), -1, -2))
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    LU, B = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (LU, B))
    perm = jnp.broadcast_to(_permutation(pivots, LU.shape[-1]), (*batch, LU.shape[-1]))[..., None]
    solve, flip = lax.linalg.triangular_solve, {"transpose_a": adjoint, "conjugate_a": adjoint}
    low = {"left_side": True, "lower": True, "unit_diagonal": True, **flip}
    up = {"left_side": True, "lower": False, **flip}
    if adjoint:
        x = solve(LU, solve(LU, B, **up), **low)
        return jnp.take_along_axis(x, jnp.argsort(perm, axis=-2), axis=-2)
    return solve(LU, solve(LU, jnp.take_along_axis(B, perm, axis=-2), **low), **up)


@pack.lowering("aten::_linalg_solve_ex")
def solve_ex(
    A: Array, B: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """The solution, the packed decomposition of A and the place of a zero pivot."""
    lu, pivots, info = lu_factor_ex(A)
    vector = B.ndim == 1 or B.shape == A.shape[:-1]
    x = lu_solve(lu, pivots, B[..., None] if vector else B, left=left or vector)
    return x[..., 0] if vector else x, lu, pivots, info


def _polar_svd(a: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
    """U, S and Vh of one matrix from its polar decomposition (Nakatsukasa and Higham, 2013).

    What JAX itself does on a TPU, whose compiler ends the process on JAX's version with 64-bit types on.
    """
    rows, columns = a.shape
    if rows < columns:
        u, s, vh = _polar_svd(jnp.conj(a.T), full_matrices)
        return jnp.conj(vh.T), s, jnp.conj(u.T)
    basis, square = lax.linalg.qr(a, full_matrices=full_matrices)
    unitary, hermitian, _, _ = lax.linalg.qdwh(square[:columns], is_hermitian=False, max_iterations=10)
    v, s = lax.linalg.eigh(hermitian, sort_eigenvalues=False)
    order = jnp.argsort(s, descending=True)
    s, v = jnp.maximum(s, 0)[order], v[:, order]
    # the product's columns are not orthogonal where singular values vanish
    u, r = lax.linalg.qr(unitary @ v, full_matrices=False)
    u = basis[:, :columns] @ (u * jnp.where(jnp.diagonal(r).real < 0, -1, 1).astype(a.dtype))
    u = jnp.concatenate((u, basis[:, columns:]), axis=1)
    finite = jnp.all(jnp.isfinite(a))
    return (
        jnp.where(finite, u, jnp.nan),
        jnp.where(finite, s, jnp.nan),
        jnp.where(finite, jnp.conj(v.T), jnp.nan),
    )


def _svd(a: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
    def on_tpu(x: Array) -> tuple[Array, Array, Array]:
        one = functools.partial(_polar_svd, full_matrices=full_matrices)
        for _ in x.shape[:-2]:
            one = jax.vmap(one)
        return one(x)

    def elsewhere(x: Array) -> tuple[Array, Array, Array]:
        return tuple(jnp.linalg.svd(x, full_matrices=full_matrices))

    if a.size == 0:
        return elsewhere(a)
    return lax.platform_dependent(a, tpu=on_tpu, default=elsewhere)


@pack.lowering("aten::_linalg_svd")
def svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    """The singular value decomposition; without vectors U and Vh are empty."""
    if compute_uv:
        return _svd(A, full_matrices)
    none = jnp.zeros((0,), A.dtype)
    return none, jnp.linalg.svd(A, compute_uv=False), none


@pack.lowering("aten::linalg_inv_ex")
def inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    """The inverse and 0, or 1 where there is none."""
    lu, pivots, info = lu_factor_ex(A)
    identity = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return lu_solve(lu, pivots, identity), info


@pack.lowering("aten::linalg_solve_triangular")
def solve_triangular(
    self: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:  # fmt: skip
    """Solve A X = B, or X A = B, for a triangular A."""
    batch = jnp.broadcast_shapes(self.shape[:-2], B.shape[:-2])
    a = jnp.broadcast_to(self, batch + self.shape[-2:])
    b = jnp.broadcast_to(B, batch + B.shape[-2:])
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@pack.lowering("aten::cholesky_solve")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    """Solve with a Cholesky factor."""
    batch = jnp.broadcast_shapes(self.shape[:-2], input2.shape[:-2])
    factor = jnp.broadcast_to(input2, batch + input2.shape[-2:])
    return linalg.cho_solve((factor, not upper), jnp.broadcast_to(self, batch + self.shape[-2:]))


@pack.lowering("aten::triangular_solve")
def triangular_solve(
    self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    """Solve A X = self for a triangular A; also A as it was broadcast."""
    batch = jnp.broadcast_shapes(self.shape[:-2], A.shape[:-2])
    a, b = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (A, self))
    options = {"lower": not upper, "transpose_a": transpose, "unit_diagonal": unitriangular}
    return lax.linalg.triangular_solve(a, b, left_side=True, **options), a


@pack.lowering("aten::cholesky_inverse")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    """The inverse of the matrix whose Cholesky factor is given."""
    identity = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return linalg.cho_solve((self, not upper), identity)


@pack.lowering("aten::linalg_householder_product")
def householder_product(input: Array, tau: Array) -> Array:
    """The first columns of the product of Householder reflections."""
    return lax.linalg.householder_product(input, tau)


def _taylor(x: Array) -> Array:
    """The exponential's Taylor polynomial of degree 18, in blocks of four powers."""
    one = jnp.eye(x.shape[-1], dtype=x.dtype)
    square = x @ x
    powers = [one, x, square, square @ x]
    total = jnp.zeros_like(x)
    for start in (16, 12, 8, 4, 0):
        block = sum(p / math.factorial(start + i) for i, p in enumerate(powers) if start + i <= 18)
        total = total @ (square @ square) + block
    return total


@pack.lowering("aten::linalg_matrix_exp")
def matrix_exp(self: Array) -> Array:
    """The matrix exponential: a Taylor polynomial of a scaled matrix, then squared."""
    x = wide(self)
    if not x.size:
        return x
    norm = jnp.max(jnp.sum(jnp.abs(x), axis=-2), axis=-1)
    # up to these norms degree 18 is exact to the last bit (https://doi.org/10.3390/math7121174)
    bound = 1.09 if norm.dtype == jnp.float64 else 3.01
    times = jnp.ceil(jnp.log2(jnp.maximum(norm, bound) / bound))
    times = jnp.where(jnp.isfinite(times), times, 0).astype(jnp.int32)[..., None, None]
    out = _taylor(x * jnp.exp2(-times.astype(norm.dtype)).astype(x.dtype))
    return lax.fori_loop(0, jnp.max(times), lambda i, y: jnp.where(i < times, y @ y, y), out)


@pack.lowering("aten::linalg_cross")
def cross(self: Array, other: Array, *, dim: int = -1) -> Array:
    """The cross product of vectors of three along ``dim``."""

    def turned(x: Array, by: int) -> Array:
        return jnp.roll(x, -by, axis=dim)

    self, other = jnp.broadcast_arrays(self, other)
    return turned(self, 1) * turned(other, 2) - turned(self, 2) * turned(other, 1)
