"""Bessel and Airy functions, and orthogonal polynomials."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial import chebyshev
from scipy import special

from torchtpu_ops._table import binary, unary

Array = jax.Array
Ufunc = Callable[[Any], Any]
_TERMS = 48
_NEAR, _FAR = 2.0, 8.0  # up to here the modified, and the other, Bessel functions are series in x * x
_AIRY = 2.09  # up to here the Airy function is a series in x


@functools.cache
def _coefficients(name: str) -> np.ndarray:
    """The Chebyshev series of the smooth function called ``name`` in `_SMOOTH`, in double precision."""
    fn, low, high = _SMOOTH[name]
    series = chebyshev.chebinterpolate(lambda t: fn((t + 1) * (high - low) / 2 + low), _TERMS)
    wanted = np.flatnonzero(np.abs(series) > 1e-17 * np.abs(series).max())
    return series[: wanted[-1] + 1]


def _smooth(name: str, at: Array) -> Array:
    """The smooth function called ``name`` at points of its interval, by Clenshaw's recurrence."""
    _, low, high = _SMOOTH[name]
    series = _coefficients(name)
    size = np.flatnonzero(np.abs(series) > jnp.finfo(at.dtype).eps / 64 * np.abs(series).max())[-1] + 1
    t = (jnp.clip(at, low, high) - low) * (2 / (high - low)) - 1
    older = newer = jnp.zeros_like(t)
    for factor in series[size - 1 : 0 : -1]:
        newer, older = 2 * t * newer - older + factor, newer
    return t * newer - older + series[0]


def _turned(order: int, part: int) -> Ufunc:
    """Amplitude towards the cosine (0) or sine (1) of a Bessel function far out, over u = (8 / x)²."""

    def fn(u: Any) -> Any:
        x = _FAR / np.sqrt(u)
        angle, scale = x - (order / 2 + 0.25) * np.pi, np.sqrt(np.pi * x / 2)
        first, second = special.jv(order, x), special.yv(order, x)
        if part == 0:
            return scale * (first * np.cos(angle) + second * np.sin(angle))
        return scale * (second * np.cos(angle) - first * np.sin(angle)) * x / _FAR

    return fn


def _airy_turned(part: int) -> Ufunc:
    """Amplitude towards the sine (0) or cosine (1) of the Airy function at -x, over u = 1 / zeta."""

    def fn(u: Any) -> Any:
        x = (1.5 / u) ** (2 / 3)
        angle, scale = 1 / u + np.pi / 4, np.sqrt(np.pi) * x**0.25
        first, _, second, _ = special.airy(-x)
        if part == 0:
            return scale * (first * np.sin(angle) + second * np.cos(angle))
        return scale * (first * np.cos(angle) - second * np.sin(angle))

    return fn


def _airy_decay(u: Any) -> Any:
    x = (1.5 / u) ** (2 / 3)
    return special.airye(x)[0] * 2 * np.sqrt(np.pi) * x**0.25


def _root(u: Any) -> Any:
    return np.sqrt(np.maximum(u, 1e-30))


# what is left of each function once its logarithm, poles and oscillation are taken off; its interval
_SMOOTH: dict[str, tuple[Ufunc, float, float]] = {
    "j0": (lambda u: special.j0(_root(u)), 0, _FAR**2),
    "j1": (lambda u: special.j1(_root(u)) / _root(u), 0, _FAR**2),
    "y0": (lambda u: special.y0(_root(u)) - np.log(u) / np.pi * special.j0(_root(u)), 0, _FAR**2),
    "y1": (
        lambda u: (
            special.y1(_root(u)) + 2 / np.pi / _root(u) - np.log(u) / np.pi * special.j1(_root(u))
        ) / _root(u), 0, _FAR**2,
    ),
    "k0": (lambda u: special.k0(_root(u)) + np.log(u / 4) / 2 * special.i0(_root(u)), 0, _NEAR**2),
    "k1": (lambda u: _root(u) * (special.k1(_root(u)) - np.log(u / 4) / 2 * special.i1(_root(u))), 0, _NEAR**2),
    "i0": (lambda u: special.i0(_root(u)), 0, _NEAR**2),
    "i1": (lambda u: special.i1(_root(u)) / _root(u), 0, _NEAR**2),
    "k0 far": (lambda u: special.k0e(_NEAR / u) * np.sqrt(_NEAR / u), 0, 1),
    "k1 far": (lambda u: special.k1e(_NEAR / u) * np.sqrt(_NEAR / u), 0, 1),
    **{f"cos {n}": (_turned(n, 0), 0, 1) for n in (0, 1)},
    **{f"sin {n}": (_turned(n, 1), 0, 1) for n in (0, 1)},
    "airy": (lambda x: special.airy(x)[0], -_AIRY, _AIRY),
    "airy far": (_airy_decay, 0, 1.5 / _AIRY**1.5),
    "airy sin": (_airy_turned(0), 0, 1.5 / _AIRY**1.5),
    "airy cos": (_airy_turned(1), 0, 1.5 / _AIRY**1.5),
}  # fmt: skip


def _waves(order: int, x: Array) -> tuple[Array, Array]:
    """Far out: the functions of the first and second kind at positive ``x``."""
    x = jnp.maximum(x, _FAR)
    u, angle = (_FAR / x) ** 2, x - (order / 2 + 0.25) * math.pi
    even, odd = _smooth(f"cos {order}", u), _smooth(f"sin {order}", u) * (_FAR / x)
    scale, cos, sin = jnp.sqrt(2 / math.pi / x), jnp.cos(angle), jnp.sin(angle)
    return scale * (even * cos - odd * sin), scale * (even * sin + odd * cos)


def _j(order: int) -> Callable[[Array], Array]:
    def fn(x: Array) -> Array:
        size = jnp.abs(x)
        near = _smooth(f"j{order}", size * size) * size**order
        out = jnp.where(size <= _FAR, near, _waves(order, size)[0])
        return jnp.where(x < 0, -out, out) if order else out

    return fn


def _y(order: int) -> Callable[[Array], Array]:
    def fn(x: Array) -> Array:
        log = 2 / math.pi * jnp.log(x) * _j(order)(x)
        near = log + _smooth(f"y{order}", x * x) * x**order - (2 / math.pi / x if order else 0)
        out = jnp.where(x <= _FAR, near, _waves(order, x)[1])
        return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, out))

    return fn


def _k(order: int, scaled: bool) -> Callable[[Array], Array]:
    def fn(x: Array) -> Array:
        u, sign = x * x, 1 if order else -1
        log = sign * jnp.log(x / 2) * _smooth(f"i{order}", u) * x**order
        near = log + _smooth(f"k{order}", u) / x**order
        far = _smooth(f"k{order} far", _NEAR / jnp.maximum(x, _NEAR)) / jnp.sqrt(x)
        out = jnp.where(
            x <= _NEAR, near * jnp.exp(x) if scaled else near, far if scaled else far * jnp.exp(-x)
        )
        return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, out))

    return fn


def _airy_ai(x: Array) -> Array:
    size = jnp.maximum(jnp.abs(x), _AIRY)
    zeta = size * jnp.sqrt(size) * (2 / 3)
    u, root = 1 / zeta, math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(size))
    angle = zeta + math.pi / 4
    wave = (jnp.sin(angle) * _smooth("airy sin", u) + jnp.cos(angle) * _smooth("airy cos", u)) / root
    decay = jnp.exp(-zeta) * _smooth("airy far", u) / (2 * root)
    out = jnp.where(x > _AIRY, decay, jnp.where(x < -_AIRY, wave, _smooth("airy", x)))
    return jnp.where(jnp.isinf(x), jnp.nan, out)


def _spherical_j0(x: Array) -> Array:
    series = 1 - x * x / 6 * (1 - x * x / 20 * (1 - x * x / 42 * (1 - x * x / 72 * (1 - x * x / 110))))
    out = jnp.where(jnp.abs(x) < 0.5, series, jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), 0, out)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "bessel_j0": _j(0), "bessel_j1": _j(1), "bessel_y0": _y(0), "bessel_y1": _y(1),
    "modified_bessel_k0": _k(0, False), "modified_bessel_k1": _k(1, False),
    "scaled_modified_bessel_k0": _k(0, True), "scaled_modified_bessel_k1": _k(1, True),
    "airy_ai": _airy_ai, "spherical_bessel_j0": _spherical_j0,
}  # fmt: skip
for _name, _function in FUNCTIONS.items():
    unary(f"special_{_name}", _function, "int_to_float")

Step = Callable[[Any, Array, Array, Array], Array]


def _recurrence(first: Callable[[Array], Array], step: Step, limit: bool = False) -> Callable[..., Array]:
    """The polynomial of degree n from those of degree 0 (one) and 1, one degree after the other."""

    def fn(x: Array, n: Array) -> Array:
        x, n = jnp.broadcast_arrays(x, n)
        degree = n.astype(jnp.int64)

        def body(k: Any, pair: tuple[Array, Array]) -> tuple[Array, Array]:
            old, new = pair
            following = step(jnp.asarray(k, x.dtype), x, new, old)
            return jnp.where(k < degree, new, old), jnp.where(k < degree, following, new)

        start = jnp.ones_like(x), first(x)
        out = lax.fori_loop(1, jnp.max(degree, initial=1), body, start)[1]
        out = jnp.where(degree < 1, start[0], out)
        if limit:  # torch gives up before these overflow
            out = jnp.where(degree > (512 if x.dtype == jnp.float64 else 128), jnp.nan, out)
        return jnp.where(degree < 0, 0, out)

    return fn


def _angular(
    first: Callable[[Array], Array], edge: Ufunc, turn: Callable[..., Array]
) -> Callable[..., Array]:
    """A Chebyshev polynomial; high degrees inside (-1, 1) by angle, as torch computes them."""
    steps = _recurrence(first, lambda k, x, new, old: 2 * x * new - old)

    def fn(x: Array, n: Array) -> Array:
        degree = jnp.trunc(n)
        inside = jnp.clip(x, -1, 1)
        high = (degree > 8) & (jnp.abs(x) < 1)
        out = jnp.where(high, turn(degree, jnp.arccos(inside)), steps(x, jnp.where(high, 0, degree)))
        right, left = edge(degree)
        sign = jnp.where(degree % 2 == 0, 1, -1)
        out = jnp.where(x == 1, right, jnp.where(x == -1, sign * left, out))
        return jnp.where(degree < 0, 0, out)

    return fn


def _shifted(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, n: fn(2 * x - 1, n)


_CHEBYSHEV: dict[str, Callable[..., Array]] = {
    "t": _angular(lambda x: x, lambda n: (1, 1), lambda n, a: jnp.cos(n * a)),
    "u": _angular(lambda x: 2 * x, lambda n: (n + 1, n + 1), lambda n, a: jnp.sin((n + 1) * a) / jnp.sin(a)),
    "v": _angular(
        lambda x: 2 * x - 1,
        lambda n: (1, 2 * n + 1),
        lambda n, a: jnp.cos((n + 0.5) * a) / jnp.cos(a / 2),
    ),
    "w": _angular(
        lambda x: 2 * x + 1,
        lambda n: (2 * n + 1, 1),
        lambda n, a: jnp.sin((n + 0.5) * a) / jnp.sin(a / 2),
    ),
}
POLYNOMIALS: dict[str, Callable[..., Array]] = {
    **{f"chebyshev_polynomial_{kind}": fn for kind, fn in _CHEBYSHEV.items()},
    **{f"shifted_chebyshev_polynomial_{kind}": _shifted(fn) for kind, fn in _CHEBYSHEV.items()},
    "hermite_polynomial_h": _recurrence(
        lambda x: 2 * x, lambda k, x, new, old: 2 * x * new - 2 * k * old, limit=True
    ),
    "hermite_polynomial_he": _recurrence(lambda x: x, lambda k, x, new, old: x * new - k * old, limit=True),
    "laguerre_polynomial_l": _recurrence(
        lambda x: 1 - x, lambda k, x, new, old: ((2 * k + 1 - x) * new - k * old) / (k + 1)
    ),
    "legendre_polynomial_p": _recurrence(
        lambda x: x, lambda k, x, new, old: ((2 * k + 1) * x * new - k * old) / (k + 1)
    ),
}
for _name, _polynomial in POLYNOMIALS.items():
    binary(f"special_{_name}", ("", "x_scalar", "n_scalar"), _polynomial, "int_to_float")
