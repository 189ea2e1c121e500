"""A compiled XLA program and its cheap call."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core

from torchtpu import events
from torchtpu.errors import user_frame
from torchtpu.plugins import selection
from torchtpu.runtime import cache, client, legalize, mappings, precision, without

compilations = [0]
launches = [0]
alive = [0]
LIMIT = 8192  # live programs
SMALL = 16  # equations
forget: list[Callable[[], None]] = []  # empties the caches that hold programs
observers: list[Callable[[str, Any, Sequence[Any], Sequence[int]], None]] = []  # told of every compilation
# the innermost makes what is launched, from (name, jaxpr, avals, donated) and the usual maker
makers: list[Callable[..., Any]] = []


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
        alive[0] += 1

    def __del__(self, count: list[int] = alive) -> None:  # the module may be gone at exit, its list is not
        count[0] -= 1

    def text(self) -> str:
        """The optimised HLO."""
        return str(self._compiled.as_text())

    def run(self, buffers: Sequence[Any]) -> list[Any]:
        """Launch asynchronously; ``buffers`` are those that ``kept`` lists, in its order."""
        launches[0] += 1
        return self.execute(buffers).consume_with_handlers(self.handlers)


def used(closed: Any) -> list[int]:
    """Indices of the inputs that any equation or output reads."""
    seen = {id(v) for eqn in closed.jaxpr.eqns for v in eqn.invars}
    seen.update(id(v) for v in closed.jaxpr.outvars)
    return [i for i, v in enumerate(closed.jaxpr.invars) if id(v) in seen]


def _size(jaxpr: Any) -> int:
    """Number of equations, those of called functions included; one that calls an exported program is no small one."""
    if any(e.primitive.name == "call_exported" for e in jaxpr.eqns):
        return SMALL
    inner = (e.params["jaxpr"].jaxpr for e in jaxpr.eqns if e.primitive.name in ("jit", "pjit"))
    return len(jaxpr.eqns) + sum(map(_size, inner))


def _options(closed: Any) -> dict[str, Any]:
    # XLA's new CPU fusion emitters double the compile time of small programs and win nothing there; a
    # whole optimizer step of 1.8 million numbers runs four times as fast with them.
    small = client.platform() == "cpu" and _size(closed.jaxpr) < SMALL
    return {"xla_cpu_use_fusion_emitters": False} if small else {}


def trace(fn: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The closed jaxpr of ``fn(*arrays) -> list`` for ``avals``, with 64-bit types on in this call only.

    Matrix products in it have the calling thread's precision.
    """

    def traced() -> Any:
        exact = jax.default_matmul_precision(precision.current())
        with exact, jax.enable_x64(True), jax.default_device(client.device()):
            return jax.jit(fn, keep_unused=True).trace(*avals).jaxpr

    # eager work between two graphs of a compiled function runs under Dynamo's frame evaluation
    disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
    return traced() if disable is None else disable(traced)()


def host_only(closed: Any) -> str | None:
    """Why the device in use, or an absent TPU that programs are made for, cannot run a traced function."""
    tpu = any(platform == "tpu" for platform, _ in selection.targets(client.platform()))
    return legalize.refused(closed) if tpu else None


def function(name: str, closed: Any) -> Callable[..., Any]:
    """A traced function as a jitted one, to be called inside the trace of another."""
    flat = core.jaxpr_as_fun(closed)

    def named(*arrays: Any) -> Any:
        return flat(*arrays)

    named.__name__ = name
    return jax.jit(named)


def lower(
    name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int], sharding: Any = None
) -> tuple[Any, tuple[int, ...]]:
    """A traced function as StableHLO for the device of ``sharding``, and the inputs that it reads."""
    kept = used(closed)
    closed = legalize.legal(closed, "tpu" if sharding is not None else client.platform())
    with lowering():
        jitted = pruned(name, closed, avals, donate, kept, sharding)
        return jitted.lower(*[_placed(avals[k], sharding) for k in kept]), tuple(kept)


@contextmanager
def lowering() -> Iterator[None]:
    """JAX's settings for lowering: 64-bit types, our device, and exact products.

    What a lowering of JAX's own makes only now (an eigensolver's products) has to be exact.
    """
    exact = jax.default_matmul_precision("highest")
    with exact, jax.enable_x64(True), jax.default_device(client.device()):
        yield


def pruned(
    name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int], kept: Sequence[int], sharding: Any
) -> Any:
    """The jitted function of the ``kept`` inputs alone."""
    flat = core.jaxpr_as_fun(closed)

    def call(*arrays: Any) -> Any:
        full = [_hole(a) for a in avals]
        for index, array in zip(kept, arrays, strict=True):
            full[index] = array
        return flat(*full)

    call.__name__ = name
    donated = tuple(i for i, k in enumerate(kept) if k in donate)
    where = {} if sharding is None else {"out_shardings": sharding}
    return jax.jit(call, donate_argnums=donated, keep_unused=True, **where)


def _placed(aval: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


def forget_all() -> None:
    """Drop every program that nothing but a cache holds."""
    for empty in forget:
        empty()
    gc.collect()  # a recorded graph's points know their parents


def compile(
    name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int], options: dict[str, Any] | None = None
) -> Program:
    """Compile a traced function; unread inputs are dropped.

    ``donate`` names inputs whose memory the outputs may take over, ``options`` adds XLA compiler options.
    """
    if alive[0] >= LIMIT or mappings.scarce():
        forget_all()
    for observe in observers:
        observe(name, closed, avals, donate)
    make = partial(_made, name, closed, avals, donate, options)
    return makers[-1](name, closed, avals, donate, make) if makers else make()


def _made(
    name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int], options: dict[str, Any] | None
) -> Program:
    try:
        return _compiled(name, closed, avals, donate, options)
    except Exception as error:  # whatever a kernel's compiler raises
        held = without.kernels(closed)
        if not held or selection.required():
            raise
        made = _compiled(name, without.plain(closed), avals, donate, options)
        for kernel in held:
            selection.refuse(kernel, error)
        return made


def _compiled(
    name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int], options: dict[str, Any] | None
) -> Program:
    lowered, kept = lower(name, closed, avals, donate)
    start, hits = time.perf_counter(), cache.hits[0]
    compiled = cache.compile(lowered, {**_options(closed), **(options or {})})
    compilations[0] += 1
    if "compile" in events.handlers:
        source = "disk" if cache.hits[0] > hits else "compiler"
        seconds = time.perf_counter() - start
        events.emit(
            events.Event(kind="compile", name=name, where=user_frame(), source=source, seconds=seconds)
        )
    return Program(name, compiled, kept)


def _hole(aval: Any) -> Any:
    """A placeholder for an input that nothing reads."""
    return np.zeros((), aval.dtype) if aval.shape == () else jax.numpy.zeros(aval.shape, aval.dtype)
