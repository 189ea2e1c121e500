"""What a platform's compiler cannot take: rewritten before a program is lowered, or left to the host.

A TPU's: found by compiling torch's operator database for v5e and tpu7x with libtpu 0.0.42. On some of these
programs libtpu ends the process instead of raising. Elsewhere: Pallas kernels that were written for a TPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

Rule = Callable[[Any], Any]  # from an equation to the one in its place, or to itself


def _convert(eqn: Any) -> Any:
    """Conversions from and to complex128 part by part."""
    before, after = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])
    if np.complex128 not in (before, after) or before == after:
        return eqn
    part = np.zeros(0, after).real.dtype

    def convert(x: Any) -> Any:
        real = lax.real(x) if jnp.iscomplexobj(x) else x
        if after.kind != "c":
            return real.astype(after)
        imaginary = lax.imag(x) if jnp.iscomplexobj(x) else jnp.zeros_like(real)
        return lax.complex(real.astype(part), imaginary.astype(part))

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    with jax.enable_x64(True):
        call = jax.make_jaxpr(jax.jit(convert))(*avals).jaxpr.eqns[0]
    return call.replace(invars=eqn.invars, outvars=eqn.outvars)


def _kernel(eqn: Any) -> Any:
    """A Pallas kernel whose matrix products have precisions that Mosaic takes."""
    body = _jaxpr(eqn.params["jaxpr"], {"dot_general": _product})
    same = body is eqn.params["jaxpr"]
    return eqn if same else eqn.replace(params={**eqn.params, "jaxpr": body})


def _product(eqn: Any) -> Any:
    """A product in a kernel: full or one pass for float32, nothing stated for narrower types, exact in one pass."""
    stated = eqn.params["precision"]
    if not isinstance(stated, tuple):
        return eqn
    wide = all(v.aval.dtype == np.float32 for v in eqn.invars)
    high, highest = lax.Precision.HIGH, lax.Precision.HIGHEST
    taken = tuple(highest if p == high else p for p in stated) if wide else None
    return eqn if taken == stated else eqn.replace(params={**eqn.params, "precision": taken})


def _interpreted(eqn: Any) -> Any:
    """A Pallas kernel as XLA operations: no platform but the one it was written for compiles it."""
    return eqn if eqn.params["interpret"] else eqn.replace(params={**eqn.params, "interpret": True})


RULES: dict[str, dict[str, Rule]] = {
    "tpu": {"convert_element_type": _convert, "pallas_call": _kernel},
    "cpu": {"pallas_call": _interpreted},
}


def legal(closed: Any, platform: str) -> Any:
    """``closed`` with every equation that a rule of the platform names replaced, in inner programs too."""
    new = _jaxpr(closed.jaxpr, RULES.get(platform, {}))
    return closed if new is closed.jaxpr else closed.replace(jaxpr=new)


_SOLVERS = "lu qr geqrf geqp3 householder_product eigh eig svd schur hessenberg tridiagonal"
# "Only F32 and C64 types are implemented", "Unexpected operand type for FFT", and bits of a float64,
# which the TPU holds as two float32
_NOT_64 = frozenset((*_SOLVERS.split(), "fft", "bitcast_convert_type", "nextafter", "exp2", "digamma"))
_SCALARS = frozenset(("convert_element_type", "complex", "jit", "pjit"))  # may make complex128 scalars


def _is_wide(var: Any) -> bool:
    return getattr(var.aval, "dtype", None) == np.complex128


def refused(closed: Any) -> str | None:
    """Why the program has to run on the host of a TPU, or None.

    float64 is emulated, but not everywhere; complex128 is only there for numbers on their way to complex64.
    """
    jaxpr = closed.jaxpr
    if any(_is_wide(v) for v in jaxpr.outvars) or any(_is_wide(v) and v.aval.ndim for v in jaxpr.invars):
        return "complex128 arrays"
    return _refused(jaxpr)


def _refused(jaxpr: Any) -> str | None:
    for eqn in equations(jaxpr):
        name = eqn.primitive.name
        if any(_is_wide(v) and (v.aval.ndim or name not in _SCALARS) for v in eqn.outvars):
            return f"{name} of complex128"
        kinds = {str(getattr(v.aval, "dtype", "")) for v in eqn.invars}
        if name in _NOT_64 and kinds & {"float64", "complex128"}:
            return f"{name} of float64"
    return None


def _jaxpr(jaxpr: Any, rules: dict[str, Rule]) -> Any:
    eqns = [_eqn(e, rules) for e in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=eqns)


def _eqn(eqn: Any, rules: dict[str, Rule]) -> Any:
    rule = rules.get(eqn.primitive.name)
    new = rule(eqn) if rule is not None else eqn
    if new is not eqn:
        return new
    params = {name: _inner(value, rules) for name, value in eqn.params.items()}
    changed = any(params[name] is not value for name, value in eqn.params.items())
    return eqn.replace(params=params) if changed else eqn


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs inside an equation: bodies of loops, branches, called functions."""
    values = [w for v in eqn.params.values() for w in (v if isinstance(v, list | tuple) else (v,))]
    return [getattr(v, "jaxpr", v) for v in values if isinstance(v, core.Jaxpr | core.ClosedJaxpr)]


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, each before those of the programs inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)


def _inner(value: Any, rules: dict[str, Rule]) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        new = _jaxpr(value.jaxpr, rules)
        return value if new is value.jaxpr else value.replace(jaxpr=new)
    if isinstance(value, core.Jaxpr):
        return _jaxpr(value, rules)
    if isinstance(value, tuple):
        items = tuple(_inner(v, rules) for v in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value
