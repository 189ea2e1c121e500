"""Rewrites of traced programs that a platform's compiler needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core

from torchtpu.runtime import client


def _select(base: jax.Array, part: jax.Array, *starts: jax.Array) -> jax.Array:
    """`lax.dynamic_update_slice` by element-wise selection."""
    inside: Any = True
    low = []
    for dim, (size, length, start) in enumerate(zip(base.shape, part.shape, starts, strict=True)):
        first = np.clip(start, 0, size - length) if isinstance(start, np.generic | int) else start
        first = first if isinstance(first, np.generic | int) else lax.clamp(0, first, size - length)
        low.append(first)
        if length != size:
            place = lax.broadcasted_iota(np.int64, base.shape, dim)
            inside = inside & (place >= first) & (place < first + length)
    if inside is True:
        return part
    zero = np.zeros((), base.dtype)
    if all(isinstance(s, np.generic | int) for s in low):
        sizes = zip(low, base.shape, part.shape, strict=True)
        wide = lax.pad(part, zero, [(int(s), n - m - int(s), 0) for s, n, m in sizes])
    else:
        wide = lax.dynamic_update_slice(lax.full(base.shape, zero), part, low)
    return lax.select(inside, wide, base)


def bind(eqn: Any, given: Sequence[Any], **changed: Any) -> list[Any]:
    """The results of an equation for other inputs, and for other parameters where ``changed`` says so."""
    params = eqn.primitive.get_bind_params({**eqn.params, **changed})
    subfuns, params = params if isinstance(params, tuple) else ((), params)  # the pair until jax 0.9
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*subfuns, *given, **params)
    return out if eqn.primitive.multiple_results else [out]


def _selected(eqn: Any, given: Any) -> list[Any] | None:
    return [_select(*given)] if eqn.primitive.name == "dynamic_update_slice" else None


def interpret(jaxpr: Any, consts: Any, args: Any, rule: Callable[[Any, Any], list[Any] | None]) -> list[Any]:
    """The results of a jaxpr; ``rule`` (equation, inputs) gives those of equations that change, else None."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        given = [v.val if isinstance(v, core.Literal) else values[v] for v in eqn.invars]
        out = rule(eqn, given)
        if out is None and eqn.primitive.name in ("jit", "pjit"):
            inner = eqn.params["jaxpr"]
            out = interpret(inner.jaxpr, inner.consts, given, rule)
        out = bind(eqn, given) if out is None else out
        values.update(zip(eqn.outvars, out, strict=True))
    return [v.val if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars]


def _updates(jaxpr: Any) -> bool:
    inner = (e.params["jaxpr"].jaxpr for e in jaxpr.eqns if e.primitive.name in ("jit", "pjit"))
    return any(e.primitive.name == "dynamic_update_slice" for e in jaxpr.eqns) or any(map(_updates, inner))


def safe_updates(closed: Any, platform: str | None = None) -> Any:
    """A jaxpr for ``platform``, or the one in use, with slices written by selection where XLA would go wrong.

    XLA's CPU compiler (jaxlib 0.10.2) writes an update in place although the value that it writes is
    computed, in the same loop, from elements that it has overwritten: it misses that when there is a
    reshape between. So does `jax.jit` of such a function.
    """
    if (platform or client.platform()) != "cpu" or not _updates(closed.jaxpr):
        return closed
    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.in_avals]
        return (
            jax.jit(lambda *args: interpret(closed.jaxpr, closed.consts, args, _selected)).trace(*avals).jaxpr
        )
