"""Rewrites of traced programs that a platform's compiler needs."""

from __future__ import annotations

from collections.abc import Sequence
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


def _interpret(jaxpr: Any, consts: Any, args: Any) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        given = [v.val if isinstance(v, core.Literal) else values[v] for v in eqn.invars]
        if eqn.primitive.name == "dynamic_update_slice":
            out = [_select(*given)]
        elif eqn.primitive.name in ("jit", "pjit"):
            inner = eqn.params["jaxpr"]
            out = _interpret(inner.jaxpr, inner.consts, given)
        else:
            out = bind(eqn, given)
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
        return jax.jit(lambda *args: _interpret(closed.jaxpr, closed.consts, args)).trace(*avals).jaxpr
