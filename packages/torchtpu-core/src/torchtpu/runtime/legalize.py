"""What libtpu's compiler cannot take: rewritten before a program is lowered for a TPU, or left to the host.

Found by compiling torch's operator database for v5e and tpu7x with libtpu 0.0.42. On some of these
programs libtpu ends the process instead of raising.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

Rule = Callable[[Any], Callable[..., Any] | None]


def _convert(eqn: Any) -> Callable[..., Any] | None:
    """Conversions from and to complex128 part by part."""
    before, after = eqn.invars[0].aval.dtype, np.dtype(eqn.params["new_dtype"])
    if np.complex128 not in (before, after) or before == after:
        return None
    part = np.zeros(0, after).real.dtype

    def convert(x: Any) -> Any:
        real = lax.real(x) if jnp.iscomplexobj(x) else x
        if after.kind != "c":
            return real.astype(after)
        imaginary = lax.imag(x) if jnp.iscomplexobj(x) else jnp.zeros_like(real)
        return lax.complex(real.astype(part), imaginary.astype(part))

    return convert


RULES: dict[str, Rule] = {"convert_element_type": _convert}


def legal(closed: Any) -> Any:
    """``closed`` with every equation that a rule names replaced, in inner programs too."""
    return closed.replace(jaxpr=_jaxpr(closed.jaxpr))


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


def _jaxpr(jaxpr: Any) -> Any:
    eqns = [_eqn(e) for e in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=eqns)


def _eqn(eqn: Any) -> Any:
    rule = RULES.get(eqn.primitive.name)
    function = rule(eqn) if rule is not None else None
    if function is not None:
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        with jax.enable_x64(True):
            call = jax.make_jaxpr(jax.jit(function))(*avals).jaxpr.eqns[0]
        return call.replace(invars=eqn.invars, outvars=eqn.outvars)
    params = {name: _inner(value) for name, value in eqn.params.items()}
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


def _inner(value: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        new = _jaxpr(value.jaxpr)
        return value if new is value.jaxpr else value.replace(jaxpr=new)
    if isinstance(value, core.Jaxpr):
        return _jaxpr(value)
    if isinstance(value, tuple):
        items = tuple(_inner(v) for v in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value
