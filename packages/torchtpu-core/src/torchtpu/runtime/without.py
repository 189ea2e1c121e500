"""A traced program without the kernels in it: what serves where a kernel's compiler fails.

A kernel is one branch of a choice by platform, the last branch of which is the lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from torchtpu.plugins import Kernel, selection
from torchtpu.plugins.registry import registry
from torchtpu.runtime import rewrite

_MARK = "torchtpu kernel "


def marked(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` so that a traced program tells that it holds the kernel ``name``."""

    def kernel(*arrays: Any) -> Any:
        return fn(*arrays)

    kernel.__name__ = _MARK + name
    return jax.jit(kernel)


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr


def _names(jaxpr: Any) -> set[str]:
    found: set[str] = set()
    for eqn in jaxpr.eqns:
        name = str(eqn.params.get("name", ""))
        if name.startswith(_MARK):
            found.add(name.removeprefix(_MARK))
        found.update(*map(_names, _inner(eqn)))
    return found


def kernels(closed: Any) -> list[Kernel]:
    """The kernels that a traced program holds."""
    names = _names(closed.jaxpr)
    every = [kernel for found in registry().kernels.values() for kernel in found]
    return [kernel for kernel in every if selection.full_name(kernel) in names]


def _lowering(eqn: Any, given: Any) -> list[Any] | None:
    """The last branch in place of a choice that holds a kernel."""
    if eqn.primitive.name != "cond" or not any(map(_names, _inner(eqn))):
        return None
    last = eqn.params["branches"][-1]
    return rewrite.interpret(last.jaxpr, last.consts, given[1:], _lowering)


def plain(closed: Any) -> Any:
    """The program with the lowering in the place of every kernel."""

    def call(*arrays: Any) -> list[Any]:
        return rewrite.interpret(closed.jaxpr, closed.consts, arrays, _lowering)

    with jax.enable_x64(True):
        return jax.jit(call, keep_unused=True).trace(*closed.in_avals).jaxpr
