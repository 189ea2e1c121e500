"""Element-wise arithmetic, comparison and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from torchtpu_ops._pack import pack
from torchtpu_ops._table import binary, divide, unary, wide

Array = jax.Array


def _sign(x: Array) -> Array:
    if x.dtype == jnp.bool_:
        return x
    return jnp.where(jnp.isnan(x), 0, jnp.sign(x))


def _sgn(x: Array) -> Array:
    if not jnp.iscomplexobj(x):
        return _sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


def _angle(x: Array) -> Array:
    if jnp.iscomplexobj(x):
        return jnp.angle(x)
    return jnp.where(x < 0, jnp.pi, jnp.where(jnp.isnan(x), x, 0))


def _exp2(x: Array) -> Array:
    """2 ** x, exact for whole numbers, which exp(x log 2) is not."""
    if jnp.iscomplexobj(x):
        return jnp.exp2(x)
    whole = jnp.clip(jnp.round(x), -5000, 5000)  # beyond, the result is 0 or infinite
    rest = jnp.where(jnp.isinf(x), 0, x - whole)
    return jnp.ldexp(jnp.exp(rest * math.log(2)), whole.astype(jnp.int32))


def _digamma(x: Array) -> Array:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


def _erfinv(y: Array) -> Array:
    """XLA's approximation and one step of Newton's method, near the ends on the complement."""
    size = jnp.abs(y)
    x = jnp.abs(special.erfinv(y))
    missing = jnp.where(size > 0.5, special.erfc(x) - (1 - size), size - special.erf(x))
    step = missing * (math.sqrt(math.pi) / 2) * jnp.exp(x * x)
    return jnp.copysign(jnp.where(size < 1, x + step, x), y)


def _erfcx(x: Array) -> Array:
    """exp(x * x) * erfc(x); for large x its asymptotic series, as the factors leave the range."""
    limit = 25.0 if x.dtype == jnp.float64 else 8.0
    near, far = jnp.minimum(x, limit), jnp.maximum(x, limit)
    term = series = jnp.ones_like(x)
    for k in range(1, 8):
        term = -term * (2 * k - 1) / (2 * far * far)
        series = series + term
    return jnp.where(
        x > limit, series / (far * math.sqrt(math.pi)), jnp.exp(near * near) * special.erfc(near)
    )


def _zeta(s: Array, q: Array) -> Array:
    """Hurwitz's zeta function; for q below 1 the recurrence zeta(s, q) = q ** -s + zeta(s, q + 1)."""
    s, q = jnp.broadcast_arrays(s, q)
    pole = (q <= 0) & (q == jnp.floor(q))
    # what is farther than that from the poles does not reach the leading digits
    start = jnp.where(pole, 1, jnp.maximum(q, q - jnp.floor(q) - 100_000))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, at = state
        return total + jnp.where(at < 1, at**-s, 0), jnp.where(at < 1, at + 1, at)

    total, at = lax.while_loop(lambda state: jnp.any(state[1] < 1), step, (jnp.zeros_like(q), start))
    return jnp.where(pole & (s >= 1), jnp.inf, total + special.zeta(s, at))


def _lcm(a: Array, b: Array) -> Array:
    return jnp.abs(jnp.lcm(a, b))


def _heaviside(x: Array, values: Array) -> Array:
    return jnp.where(x == 0, values, (x > 0).astype(x.dtype))


def _log_add_exp(a: Array, b: Array) -> Array:
    if not jnp.iscomplexobj(a):
        return jnp.logaddexp(a, b)
    low, high = jnp.where(a.real < b.real, a, b), jnp.where(a.real < b.real, b, a)
    return jnp.log(1 + jnp.exp(low - high)) + high


def _frac(x: Array) -> Array:
    return x - jnp.trunc(x)


TO_FLOAT: dict[str, Callable[[Array], Array]] = {
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan,
    "atanh": jnp.arctanh, "cos": jnp.cos, "cosh": jnp.cosh, "sin": jnp.sin, "sinh": jnp.sinh, "tan": jnp.tan,
    "tanh": jnp.tanh, "exp": jnp.exp, "exp2": _exp2, "expm1": jnp.expm1, "log": jnp.log, "log2": jnp.log2,
    "log10": jnp.log10, "log1p": jnp.log1p, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "reciprocal": lambda x: 1 / x,
    "erf": special.erf, "erfc": special.erfc, "erfinv": _erfinv, "lgamma": special.gammaln,
    "digamma": _digamma, "i0": special.i0, "sigmoid": jax.nn.sigmoid, "sinc": jnp.sinc,
    "special_entr": special.entr, "special_ndtri": special.ndtri, "special_log_ndtr": special.log_ndtr,
    "special_i0e": special.i0e, "special_i1": special.i1, "special_i1e": special.i1e,
    "special_erfcx": _erfcx, "special_modified_bessel_i0": special.i0, "special_modified_bessel_i1": special.i1,
}  # fmt: skip
SAME: dict[str, Callable[[Array], Array]] = {
    "neg": jnp.negative, "sign": _sign, "sgn": _sgn, "ceil": jnp.ceil, "floor": jnp.floor, "round": jnp.round,
    "trunc": jnp.trunc, "frac": _frac, "conj_physical": jnp.conj,
    "deg2rad": jnp.deg2rad, "rad2deg": jnp.rad2deg,
}  # fmt: skip
TO_BOOL: dict[str, Callable[[Array], Array]] = {
    "isnan": jnp.isnan, "isinf": jnp.isinf, "isposinf": jnp.isposinf,
    "isneginf": jnp.isneginf, "signbit": jnp.signbit, "logical_not": jnp.logical_not,
}  # fmt: skip
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal,
}  # fmt: skip
BITWISE: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor,
}  # fmt: skip
SHIFTS: dict[str, Callable[[Array, Array], Array]] = {
    "left_shift": jnp.left_shift, "right_shift": jnp.right_shift,
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "fmax": jnp.fmax, "fmin": jnp.fmin, "maximum": jnp.maximum, "minimum": jnp.minimum, "hypot": jnp.hypot,
    "gcd": jnp.gcd, "lcm": _lcm, "heaviside": _heaviside, "logaddexp": _log_add_exp, "logaddexp2": jnp.logaddexp2,
}  # fmt: skip
BINARY_TO_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    "atan2": jnp.arctan2, "igamma": special.gammainc, "igammac": special.gammaincc,
}  # fmt: skip
LOGICAL: dict[str, Callable[[Array, Array], Array]] = {
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "logical_xor": jnp.logical_xor,
}  # fmt: skip


for _name, _fn in TO_FLOAT.items():
    unary(_name, _fn, "int_to_float")
for _name, _fn in SAME.items():
    unary(_name, _fn, "default")
for _name, _fn in TO_BOOL.items():
    unary(_name, _fn, None)
unary("abs", jnp.abs, "complex_to_float")
unary("angle", _angle, None)
unary("bitwise_not", jnp.bitwise_not, None)
for _name, _op in COMPARE.items():
    binary(_name, ("Tensor", "Scalar"), _op, "always_bool")
for _name, _op in BITWISE.items():
    binary(_name, ("Tensor", "Scalar", "Scalar_Tensor"), _op, "default")
for _name, _op in SHIFTS.items():
    binary(f"bitwise_{_name}", ("Tensor", "Tensor_Scalar", "Scalar_Tensor"), _op, "default")
    binary("__lshift__" if _name == "left_shift" else "__rshift__", ("Tensor", "Scalar"), _op, "default")
for _name, _op in BINARY.items():
    binary(_name, ("",), _op, "default")
for _name, _op in BINARY_TO_FLOAT.items():
    binary(_name, ("",), _op, "int_to_float")
for _name, _op in LOGICAL.items():
    binary(_name, ("",), _op, "always_bool")
binary("mul", ("Tensor", "Scalar"), jnp.multiply, "default")
binary("copysign", ("Tensor", "Scalar"), jnp.copysign, "int_to_float")
binary("nextafter", ("",), jnp.nextafter, "no_opmath")  # the neighbour is that of the narrow type


def _scaled(other: Array, alpha: Any) -> Array:
    return other if isinstance(alpha, int) and alpha == 1 else other * alpha


@pack.lowering("aten::add.Tensor", "aten::add.Scalar", promote="default")
def add(self: Array, other: Array, alpha: Any = 1) -> Array:
    """self + alpha * other."""
    if self.dtype == jnp.bool_:
        return self | (other & jnp.asarray(alpha, bool))
    return self + _scaled(other, alpha)


@pack.lowering("aten::sub.Tensor", "aten::sub.Scalar", promote="default")
def sub(self: Array, other: Array, alpha: Any = 1) -> Array:
    """self - alpha * other."""
    return self - _scaled(other, alpha)


@pack.lowering("aten::rsub.Tensor", "aten::rsub.Scalar", promote="default")
def rsub(self: Array, other: Array, alpha: Any = 1) -> Array:
    """other - alpha * self."""
    return other - _scaled(self, alpha)


@pack.lowering("aten::div.Tensor", "aten::div.Scalar", promote="int_to_float")
def div(self: Array, other: Array) -> Array:
    """True division."""
    return divide(self, other)


def _check_divisor(self: Any, other: Any, rounding_mode: str | None = "floor") -> None:
    """Raise what CPU raises for a whole number divided by zero."""
    if rounding_mode is not None and np.result_type(self, other).kind in "iu" and not np.all(other):
        raise RuntimeError("ZeroDivisionError")


@pack.lowering("aten::div.Tensor_mode", "aten::div.Scalar_mode", validate=_check_divisor)
def div_mode(self: Array, other: Array, *, rounding_mode: str | None = None) -> Array:
    """Division rounded by ``trunc`` or ``floor``."""
    return _rounded_division(self, other, rounding_mode)


def _rounded_division(self: Array, other: Any, mode: str | None) -> Array:
    whole = jnp.result_type(self, other)
    if mode is None:
        self = self if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(jnp.float32)
        return divide(self.astype(jnp.result_type(self, other)), other)
    a, b = (wide(jnp.asarray(v).astype(whole)) for v in (self, other))
    if jnp.issubdtype(whole, jnp.integer):
        return jnp.floor_divide(a, b) if mode == "floor" else lax.div(*jnp.broadcast_arrays(a, b))
    if mode == "floor":
        return _floor_divide(a, b)
    quotient = divide(a, b)
    if a.dtype != whole:  # CPU rounds the quotient of half types before it cuts the fraction
        kind = jnp.finfo(whole)
        quotient = lax.reduce_precision(quotient, kind.nexp, kind.nmant)
    return jnp.trunc(quotient)


def _floor_divide(a: Array, b: Array) -> Array:
    """Python's floor division of floats; the quotient is rounded from an exact remainder."""
    mod = lax.rem(*jnp.broadcast_arrays(a, b))
    quotient = divide(a - mod, b)
    quotient = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(quotient), a / b), floor)
    return jnp.where(b == 0, a / b, floor)


@pack.lowering("aten::floor_divide", "aten::floor_divide.Scalar", promote="default", validate=_check_divisor)
def floor_divide(self: Array, other: Array) -> Array:
    """Division rounded down."""
    return _rounded_division(self, other, "floor")


@pack.lowering(
    "aten::remainder.Tensor",
    "aten::remainder.Scalar",
    "aten::remainder.Scalar_Tensor",
    promote="default",
    validate=_check_divisor,
)
def remainder(self: Array, other: Array) -> Array:
    """The remainder with the divisor's sign."""
    return jnp.remainder(self, other)


@pack.lowering("aten::fmod.Tensor", "aten::fmod.Scalar", promote="default", validate=_check_divisor)
def fmod(self: Array, other: Array) -> Array:
    """The remainder with the dividend's sign."""
    return jnp.fmod(self, other)


def _whole_power(base: Array, exponent: Array) -> Array:
    """Powers of whole numbers by squaring, wrapping as CPU's do; 0, 1 or -1 for negative exponents."""

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        square, left, result = state
        return square * square, left >> 1, jnp.where(left & 1 == 1, result * square, result)

    base, exponent = jnp.broadcast_arrays(base, exponent)
    start = (base, jnp.maximum(exponent, 0), jnp.ones_like(base))
    power = lax.while_loop(lambda state: jnp.any(state[1] > 0), step, start)[2]
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return power
    odd = jnp.where(exponent & 1 == 1, -1, 1)
    inverse = jnp.where(base == 1, 1, jnp.where(base == -1, odd, 0))
    return jnp.where(exponent < 0, inverse, power).astype(base.dtype)


def _power(self: Array, exponent: Array) -> Array:
    if jnp.issubdtype(self.dtype, jnp.integer):
        return _whole_power(self, exponent)
    return jnp.power(self, exponent)


@pack.lowering("aten::pow.Tensor_Tensor", "aten::pow.Scalar", promote="default")
def pow_tensor(self: Array, exponent: Array) -> Array:
    """self ** exponent."""
    return _power(self, exponent)


@pack.lowering("aten::pow.Tensor_Scalar", promote="default", static=("exponent",))
def pow_scalar(self: Array, exponent: Any) -> Array:
    """self ** exponent for a Python number; small powers are products."""
    if self.dtype == jnp.bool_:
        return self | (not exponent)
    if jnp.issubdtype(self.dtype, jnp.integer) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    if exponent == 2:
        return self * self
    if exponent == 1:
        return self
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -1 and not jnp.issubdtype(self.dtype, jnp.integer):
        return 1 / self
    if exponent == -0.5:
        return lax.rsqrt(self)
    if isinstance(exponent, int) and exponent >= 0:
        return lax.integer_pow(self, exponent) if exponent <= 8 else jnp.power(self, exponent)
    return _power(self, jnp.asarray(exponent, self.dtype))


@pack.lowering(
    "aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", promote="int_to_float"
)
def xlogy(self: Array, other: Array) -> Array:
    """self * log(other), 0 where self is 0 and other is not NaN."""
    return jnp.where(jnp.isnan(other), jnp.nan, jnp.where(self == 0, 0, self * jnp.log(other)))


@pack.lowering(
    "aten::special_xlog1py",
    "aten::special_xlog1py.self_scalar",
    "aten::special_xlog1py.other_scalar",
    promote="int_to_float",
)
def xlog1py(self: Array, other: Array) -> Array:
    """self * log(1 + other), 0 where self is 0 and other is not NaN."""
    return jnp.where(jnp.isnan(other), jnp.nan, jnp.where(self == 0, 0, self * jnp.log1p(other)))


@pack.lowering(
    "aten::special_zeta",
    "aten::special_zeta.self_scalar",
    "aten::special_zeta.other_scalar",
    promote="int_to_float",
)
def zeta(self: Array, other: Array) -> Array:
    """The Hurwitz zeta function."""
    return _zeta(self, other)


@pack.lowering("aten::polygamma", promote="int_to_float")
def polygamma(n: int, self: Array) -> Array:
    """The n-th derivative of digamma."""
    if n == 0:
        return _digamma(self)
    return (-1.0) ** (n + 1) * math.factorial(n) * _zeta(jnp.asarray(n + 1, self.dtype), self)


@pack.lowering("aten::frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    """Mantissa in [0.5, 1) and exponent of 2."""
    return jnp.frexp(wide(self))


@pack.lowering("aten::where.self")
def where(condition: Array, self: Array, other: Array) -> Array:
    """Choose by ``condition``."""
    dtype = jnp.result_type(self, other)
    return jnp.where(condition != 0, self.astype(dtype), other.astype(dtype))


def _clamp(x: Array, low: Any, high: Any) -> Array:
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


@pack.lowering("aten::clamp", "aten::clamp.Tensor", promote="default")
def clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    """Limit to [min, max]."""
    return _clamp(self, min, max)


@pack.lowering("aten::clamp_min", "aten::clamp_min.Tensor", promote="default")
def clamp_min(self: Array, min: Any) -> Array:
    """Limit from below."""
    return jnp.maximum(self, min)


@pack.lowering("aten::clamp_max", "aten::clamp_max.Tensor", promote="default")
def clamp_max(self: Array, max: Any) -> Array:
    """Limit from above."""
    return jnp.minimum(self, max)


@pack.lowering("aten::addcmul", promote="default")
def addcmul(self: Array, tensor1: Array, tensor2: Array, *, value: Any = 1) -> Array:
    """self + value * tensor1 * tensor2."""
    return self + _scaled(tensor1 * tensor2, value)


@pack.lowering("aten::addcdiv", promote="int_to_float")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, *, value: Any = 1) -> Array:
    """self + value * tensor1 / tensor2."""
    return self + _scaled(divide(tensor1, tensor2), value)


@pack.lowering("aten::lerp.Scalar", "aten::lerp.Tensor", promote="default")
def lerp(self: Array, end: Array, weight: Array) -> Array:
    """self + weight * (end - self), exact at both ends."""
    near = jnp.abs(weight) < 0.5
    return jnp.where(near, self + weight * (end - self), end - (end - self) * (1 - weight))


@pack.lowering("aten::nan_to_num")
def nan_to_num(self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """Replace NaN and infinities."""
    return jnp.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@pack.lowering("aten::logit", promote="int_to_float", static=("eps",))
def logit(self: Array, eps: float | None = None) -> Array:
    """log(x / (1 - x)), clamped by ``eps``."""
    x = self if eps is None or eps < 0 else jnp.clip(self, eps, 1 - eps)
    return jnp.log(x / (1 - x))


@pack.lowering("aten::round.decimals", promote="default")
def round_decimals(self: Array, *, decimals: int = 0) -> Array:
    """Round to a number of decimals."""
    scale = 10.0 ** abs(decimals)
    return jnp.round(self * scale) / scale if decimals >= 0 else jnp.round(self / scale) * scale


@pack.lowering("aten::complex")
def complex_(real: Array, imag: Array) -> Array:
    """A complex tensor from its parts."""
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@pack.lowering("aten::polar")
def polar(abs: Array, angle: Array) -> Array:
    """A complex tensor from modulus and angle."""
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))
