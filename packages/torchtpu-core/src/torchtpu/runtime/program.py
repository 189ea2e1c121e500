"""A compiled XLA program and its cheap call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from torchtpu.runtime import cache, client

compilations = [0]
launches = [0]


class Program:
    """One executable: ``run`` takes the kept buffers and returns the output arrays."""

    __slots__ = ("_compiled", "execute", "handlers", "kept", "name")

    def __init__(self, name: str, compiled: Any, kept: tuple[int, ...]) -> None:
        self.name = name
        self._compiled = compiled
        call = compiled._executable.unsafe_call
        self.execute = call.xla_executable.execute_sharded
        self.handlers = call.out_handler.handlers
        self.kept = kept

    def run(self, buffers: Sequence[Any]) -> list[Any]:
        """Launch asynchronously; ``buffers`` are those that ``kept`` lists, in its order."""
        launches[0] += 1
        return self.execute(buffers).consume_with_handlers(self.handlers)


def _used(closed: Any) -> list[int]:
    """Indices of the inputs that any equation or output reads."""
    seen = {id(v) for eqn in closed.jaxpr.eqns for v in eqn.invars}
    seen.update(id(v) for v in closed.jaxpr.outvars)
    return [i for i, v in enumerate(closed.jaxpr.invars) if id(v) in seen]


def _options() -> dict[str, Any]:
    # XLA's new CPU fusion emitters double the compile time of small programs and win nothing there.
    return {"xla_cpu_use_fusion_emitters": False} if client.platform() == "cpu" else {}


def build(name: str, fn: Callable[..., Any], avals: Sequence[Any], donate: Sequence[int]) -> Program:
    """Trace and compile ``fn(*arrays) -> list`` for ``avals``; unread inputs are dropped.

    ``donate`` names inputs whose memory the outputs may take over. Runs with 64-bit types on,
    in this call only.
    """
    device = client.device()
    with jax.enable_x64(True), jax.default_device(device):
        closed = jax.jit(fn, keep_unused=True).trace(*avals).jaxpr
        kept = _used(closed)
        flat = core.jaxpr_as_fun(closed)

        def pruned(*arrays: Any) -> Any:
            full = [_hole(a) for a in avals]
            for index, array in zip(kept, arrays, strict=True):
                full[index] = array
            return flat(*full)

        pruned.__name__ = name
        donated = tuple(i for i, k in enumerate(kept) if k in donate)
        jitted = jax.jit(pruned, donate_argnums=donated, keep_unused=True)
        compiled = cache.compile(jitted.lower(*[avals[k] for k in kept]), _options())
    compilations[0] += 1
    return Program(name, compiled, tuple(kept))


def _hole(aval: Any) -> Any:
    """A placeholder for an input that nothing reads."""
    return np.zeros((), aval.dtype) if aval.shape == () else jax.numpy.zeros(aval.shape, aval.dtype)
