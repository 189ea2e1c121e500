"""The factors of symmetric and Hermitian indefinite matrices, pivoted after Bunch and Kaufman as in LAPACK."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
_ALPHA = (1 + math.sqrt(17)) / 8  # bounds the growth of the elements


def _size(x: Array) -> Array:
    """LAPACK's cheap absolute value."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _swap(x: Array, i: Array, j: Array) -> Array:
    """``x`` with rows i and j exchanged."""
    at = jnp.arange(x.shape[0])
    return x[jnp.where(at == i, j, jnp.where(at == j, i, at))]


def _pivot(work: Array, k: Array) -> tuple[Array, Array, Array]:
    """Which row comes to the front at step k, whether the pivot is two by two, and whether all is zero."""
    at = jnp.arange(work.shape[0])
    own, column = _size(work[k, k]), jnp.where(at > k, _size(work[:, k]), 0)
    big, biggest = jnp.argmax(column), jnp.max(column)
    row = jnp.max(jnp.where((at >= k) & (at != big), _size(work[big]), 0))
    none = jnp.maximum(own, biggest) == 0
    stay = none | (own >= _ALPHA * biggest) | (own * row >= _ALPHA * biggest * biggest)
    alone = _size(work[big, big]) >= _ALPHA * row
    return jnp.where(stay, k, big), ~stay & ~alone, none


def _inverse(block: Array) -> Array:
    (a, b), (c, d) = block
    return jnp.array([[d, -b], [-c, a]]) / (a * d - b * c)


def _adjoint(x: Array, hermitian: bool) -> Array:
    return jnp.conj(x.T) if hermitian else x.T


def _step(hermitian: bool, state: tuple[Array, ...]) -> tuple[Array, ...]:
    """Take one or two columns out of the trailing matrix."""
    k, work, out, pivots, info = state
    n, at = work.shape[0], jnp.arange(work.shape[0])
    place, double, none = _pivot(work, k)
    front = k + double
    work = _swap(_swap(work, front, place).T, front, place).T
    one = jnp.where(none, 0, work[:, k] / jnp.where(none, 1, work[k, k]))
    one = jnp.where(at > k, one, 0)
    pair = jnp.stack([work[:, k], work[:, jnp.minimum(k + 1, n - 1)]], axis=1)
    block = jnp.stack([pair[k], pair[jnp.minimum(k + 1, n - 1)]])
    two = jnp.where((at > k + 1)[:, None], pair @ jnp.where(double, _inverse(block), 0), 0)
    below = jnp.where((at > front)[:, None], pair, 0)
    single = jnp.outer(one, _adjoint(below[:, :1], hermitian))
    work = work - jnp.where(double, two @ _adjoint(below, hermitian), single)
    first = jnp.where(at == k, pair[:, 0], jnp.where(double, two[:, 0], one))
    first = jnp.where(double & (at == k + 1), pair[:, 0], first)
    second = jnp.where(at == k + 1, pair[:, 1], two[:, 1])
    out = jnp.where(at == k, first[:, None], out)
    out = jnp.where(double & (at == k + 1), second[:, None], out)
    mark = jnp.where(double, -(place + 1), place + 1).astype(jnp.int32)
    pivots = jnp.where((at == k) | (double & (at == k + 1)), mark, pivots)
    info = jnp.where((info == 0) & none, k + 1, info).astype(jnp.int32)
    return k + 1 + double, work, out, pivots, info


def _whole(lower: Array, hermitian: bool) -> Array:
    """The matrix whose lower triangle is given; a Hermitian diagonal is real."""
    strict = jnp.tril(lower, -1)
    diagonal = jnp.diagonal(lower)
    diagonal = diagonal.real.astype(lower.dtype) if hermitian else diagonal
    return strict + _adjoint(strict, hermitian) + jnp.diag(diagonal)


@pack.lowering("aten::linalg_ldl_factor_ex")
def ldl_factor_ex(
    self: Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    """L and the block diagonal D in one matrix, LAPACK's pivots, and the place of a zero pivot."""
    n, batch = self.shape[-1], self.shape[:-2]
    if not self.size:
        return self, jnp.zeros((*batch, n), jnp.int32), jnp.zeros(batch, jnp.int32)

    def factor(lower: Array) -> tuple[Array, ...]:
        start = jnp.zeros((), jnp.int64), _whole(lower, hermitian), jnp.zeros_like(lower)
        state = (*start, jnp.zeros(n, jnp.int32), jnp.zeros((), jnp.int32))
        return lax.while_loop(lambda s: s[0] < n, functools.partial(_step, hermitian), state)[2:]  # type: ignore[arg-type]

    ld, pivots, info = jax.vmap(factor)(self.reshape(-1, n, n))
    return ld.reshape(self.shape), pivots.reshape(*batch, n), info.reshape(batch)


def _halves(pivots: Array) -> tuple[Array, Array]:
    """Which rows begin and which end a two-by-two pivot."""

    def follow(inside: Array, negative: Array) -> tuple[Array, Array]:
        first = negative & ~inside
        return first, first

    begin = lax.scan(follow, jnp.zeros((), jnp.bool_), pivots < 0)[1]
    return begin, jnp.concatenate([jnp.zeros(1, jnp.bool_), begin[:-1]])


def _solve(ld: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    n, at = ld.shape[0], jnp.arange(ld.shape[0])
    begin, end = _halves(pivots)
    place = jnp.abs(pivots) - 1
    # L has no element between the two rows of one pivot, where D has one
    pairs = begin[None, :] & (at[:, None] == at[None, :] + 1)
    unit = jnp.where(pairs, 0, jnp.tril(ld, -1))

    def down(k: Any, x: Array) -> Array:
        x = jnp.where(end[k], x, _swap(x, jnp.where(begin[k], k + 1, k), place[k]))
        return x - unit[:, k, None] * x[k]

    def up(i: Any, x: Array) -> Array:
        k = n - 1 - i
        column = jnp.conj(unit[:, k]) if hermitian else unit[:, k]
        x = x.at[k].add(-(column @ x))
        return jnp.where(end[k], x, _swap(x, jnp.where(begin[k], k + 1, k), place[k]))

    x = lax.fori_loop(0, n, down, b)
    return lax.fori_loop(0, n, up, jnp.linalg.solve(_diagonal(ld, pairs, hermitian), x))


def _diagonal(ld: Array, pairs: Array, hermitian: bool) -> Array:
    """The block diagonal D."""
    side = jnp.where(pairs, ld, 0)
    return jnp.diag(jnp.diagonal(ld)) + side + _adjoint(side, hermitian)


@pack.lowering("aten::linalg_ldl_solve")
def ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False) -> Array:
    """Solve with the factors of ``ldl_factor_ex``."""
    n = LD.shape[-1]
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    shape = (*batch, *B.shape[-2:])
    if not math.prod(shape):
        return jnp.zeros(shape, B.dtype)
    ld = jnp.broadcast_to(LD, (*batch, n, n)).reshape(-1, n, n)
    marks = jnp.broadcast_to(pivots, (*batch, n)).reshape(-1, n)
    right = jnp.broadcast_to(B, shape).reshape(-1, *B.shape[-2:])
    solve = functools.partial(_solve, hermitian=hermitian)
    return jax.vmap(solve)(ld, marks, right).reshape(shape)
