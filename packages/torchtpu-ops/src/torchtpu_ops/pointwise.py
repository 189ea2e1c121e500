"""Element-wise arithmetic, comparison and special functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from torchtpu_ops._pack import pack

Array = jax.Array


def _sgn(x: Array) -> Array:
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


def _frac(x: Array) -> Array:
    return x - jnp.trunc(x)


TO_FLOAT: dict[str, Callable[[Array], Array]] = {
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan,
    "atanh": jnp.arctanh, "cos": jnp.cos, "cosh": jnp.cosh, "sin": jnp.sin, "sinh": jnp.sinh, "tan": jnp.tan,
    "tanh": jnp.tanh, "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log2": jnp.log2,
    "log10": jnp.log10, "log1p": jnp.log1p, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "reciprocal": lambda x: 1 / x,
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv, "lgamma": special.gammaln,
    "digamma": special.digamma, "i0": special.i0, "sigmoid": jax.nn.sigmoid, "sinc": jnp.sinc,
    "special_entr": special.entr, "special_ndtri": special.ndtri, "special_log_ndtr": special.log_ndtr,
    "special_i0e": special.i0e, "special_i1": special.i1, "special_i1e": special.i1e,
}  # fmt: skip
SAME: dict[str, Callable[[Array], Array]] = {
    "neg": jnp.negative, "sign": jnp.sign, "sgn": _sgn, "ceil": jnp.ceil, "floor": jnp.floor, "round": jnp.round,
    "trunc": jnp.trunc, "frac": _frac, "conj_physical": jnp.conj, "positive": lambda x: x, "square": lambda x: x * x,
    "deg2rad": jnp.deg2rad, "rad2deg": jnp.rad2deg,
}  # fmt: skip
TO_BOOL: dict[str, Callable[[Array], Array]] = {
    "isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite, "isposinf": jnp.isposinf,
    "isneginf": jnp.isneginf, "signbit": jnp.signbit, "logical_not": jnp.logical_not,
}  # fmt: skip
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal,
}  # fmt: skip
BITWISE: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor,
    "bitwise_left_shift": jnp.left_shift, "bitwise_right_shift": jnp.right_shift,
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "mul": jnp.multiply, "fmax": jnp.fmax, "fmin": jnp.fmin, "maximum": jnp.maximum, "minimum": jnp.minimum,
    "copysign": jnp.copysign, "hypot": jnp.hypot, "nextafter": jnp.nextafter, "gcd": jnp.gcd, "lcm": jnp.lcm,
    "heaviside": jnp.heaviside, "logaddexp": jnp.logaddexp, "logaddexp2": jnp.logaddexp2,
}  # fmt: skip
LOGICAL: dict[str, Callable[[Array, Array], Array]] = {
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "logical_xor": jnp.logical_xor,
}  # fmt: skip


def _unary(name: str, fn: Callable[[Array], Array], promote: Any) -> None:
    """Register one function of one tensor."""

    def lowering(self: Array) -> Array:
        return fn(self)

    lowering.__doc__ = f"Element-wise {name}."
    pack.lowering(f"aten::{name}", promote=promote)(lowering)


def _binary(names: tuple[str, ...], fn: Callable[[Array, Array], Array], promote: Any) -> None:
    """Register one function of two tensors, or a tensor and a number."""

    def lowering(self: Array, other: Array) -> Array:
        return fn(self, other)

    lowering.__doc__ = f"Element-wise {names[0]}."
    pack.lowering(*names, promote=promote)(lowering)


for _name, _fn in TO_FLOAT.items():
    if _fn is not None:
        _unary(_name, _fn, "int_to_float")
for _name, _fn in SAME.items():
    _unary(_name, _fn, "default")
for _name, _fn in TO_BOOL.items():
    _unary(_name, _fn, None)
_unary("abs", jnp.abs, "complex_to_float")
_unary("angle", jnp.angle, None)
_unary("bitwise_not", jnp.bitwise_not, None)
for _name, _op in COMPARE.items():
    _binary((f"aten::{_name}.Tensor", f"aten::{_name}.Scalar"), _op, "always_bool")
for _name, _op in BITWISE.items():
    _variants = (f"aten::{_name}.Tensor", f"aten::{_name}.Tensor_Scalar", f"aten::{_name}.Scalar_Tensor")
    _binary(_variants, _op, "default")
for _name, _op in BINARY.items():
    _names = (
        [f"aten::{_name}.Tensor", f"aten::{_name}.Scalar"]
        if _name in ("mul", "copysign")
        else [f"aten::{_name}"]
    )
    _binary(tuple(_names), _op, "int_to_float" if _name == "copysign" else "default")
for _name, _op in LOGICAL.items():
    _binary((f"aten::{_name}",), _op, "always_bool")


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
    return self / other


@pack.lowering("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(self: Array, other: Array, *, rounding_mode: str | None = None) -> Array:
    """Division rounded by ``trunc`` or ``floor``."""
    return _rounded_division(self, other, rounding_mode)


def _rounded_division(self: Array, other: Any, mode: str | None) -> Array:
    whole = jnp.result_type(self, other)
    if mode is None:
        return jnp.true_divide(self, other)
    half = whole in (jnp.float16, jnp.bfloat16)
    a, b = (jnp.asarray(v).astype(jnp.float32 if half else whole) for v in (self, other))
    if jnp.issubdtype(whole, jnp.integer):
        return jnp.floor_divide(a, b) if mode == "floor" else lax.div(*jnp.broadcast_arrays(a, b))
    if mode == "trunc":
        return jnp.trunc(a / b)
    return _floor_divide(a, b)


def _floor_divide(a: Array, b: Array) -> Array:
    """Python's floor division of floats; the quotient is rounded from an exact remainder."""
    mod = lax.rem(*jnp.broadcast_arrays(a, b))
    quotient = (a - mod) / b
    quotient = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(quotient), a / b), floor)
    return jnp.where(b == 0, a / b, floor)


@pack.lowering("aten::floor_divide", "aten::floor_divide.Scalar", promote="default")
def floor_divide(self: Array, other: Array) -> Array:
    """Division rounded down."""
    return _rounded_division(self, other, "floor")


@pack.lowering(
    "aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", promote="default"
)
def remainder(self: Array, other: Array) -> Array:
    """The remainder with the divisor's sign."""
    return jnp.remainder(self, other)


@pack.lowering("aten::fmod.Tensor", "aten::fmod.Scalar", promote="default")
def fmod(self: Array, other: Array) -> Array:
    """The remainder with the dividend's sign."""
    return jnp.fmod(self, other)


def _power(self: Array, exponent: Array) -> Array:
    if not jnp.issubdtype(self.dtype, jnp.integer):
        return jnp.power(self, exponent)
    negative = exponent < 0
    safe = jnp.power(self, jnp.where(negative, 0, exponent))
    inverse = jnp.where(self == 1, 1, jnp.where(self == -1, jnp.where(exponent % 2 == 0, 1, -1), 0))
    return jnp.where(negative, inverse, safe)


@pack.lowering("aten::pow.Tensor_Tensor", "aten::pow.Scalar", promote="default")
def pow_tensor(self: Array, exponent: Array) -> Array:
    """self ** exponent."""
    return _power(self, exponent)


@pack.lowering("aten::pow.Tensor_Scalar", promote="default", static=("exponent",))
def pow_scalar(self: Array, exponent: Any) -> Array:
    """self ** exponent for a Python number; small powers are products."""
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


@pack.lowering("aten::atan2", promote="int_to_float")
def atan2(self: Array, other: Array) -> Array:
    """The angle of (other, self)."""
    return jnp.arctan2(self, other)


@pack.lowering(
    "aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", promote="int_to_float"
)
def xlogy(self: Array, other: Array) -> Array:
    """self * log(other), 0 where self is 0 and other is not NaN."""
    return jnp.where(jnp.isnan(other), jnp.nan, jnp.where(self == 0, 0, self * jnp.log(other)))


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
    return self + _scaled(tensor1 / tensor2, value)


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
