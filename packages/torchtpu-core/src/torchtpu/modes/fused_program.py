"""From a recorded graph to one program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu.dispatch.build import Entry, Result
from torchtpu.runtime import program as programs
from torchtpu.runtime import transfer
from torchtpu.runtime.rewrite import safe_updates
from torchtpu.tensors.layout import Layout

# Numbers travel in one vector for each kind: a launch costs time for every argument.
_PACKED: dict[type, tuple[type, Any]] = {
    float: (float, np.float64),
    int: (int, np.int64),
    bool: (int, np.int64),
    complex: (complex, np.complex128),
}
_KINDS = (float, int, complex)


class FusedProgram:
    """One executable for a graph: outputs in the order of the live values."""

    __slots__ = ("_kinds", "_packed", "program")

    def __init__(self, program: programs.Program, kinds: list[type]) -> None:
        self.program, self._kinds = program, kinds
        self._packed: dict[Any, Any] = {}

    def run(self, inputs: list[Any], scalars: Sequence[tuple[type, Any]]) -> list[Any]:
        """Launch with the graph's inputs and numbers."""
        vectors = [self._vector(kind, scalars) for kind in self._kinds]
        full = inputs + vectors
        return self.program.run([full[k] for k in self.program.kept])

    def _vector(self, kind: type, scalars: Sequence[tuple[type, Any]]) -> Any:
        numbers = tuple([v for k, v in scalars if _PACKED[k][0] is kind])
        key = (kind, numbers)
        found = self._packed.get(key) if 0 not in numbers else None  # 0.0 equals -0.0
        if found is None:
            if len(self._packed) > 8:
                self._packed.clear()
            found = self._packed[key] = transfer.put(np.array(numbers, _PACKED[kind][1]))
        return found


@cache
def zeros(layout: Layout) -> Entry:
    """An operator without inputs that fills a buffer of ``layout`` with zeros."""
    closed = programs.trace(lambda: [jnp.zeros(layout.shape, layout.np_dtype)], [])
    return Entry("zeros", closed, [], (), [Result(layout, layout.shape, None)], [None], False, True)


def _callable(entry: Entry) -> Any:
    """The entry as one jitted function: a graph that uses it often traces and lowers it once."""
    if entry.function is None:
        entry.function = programs.function(entry.name, safe_updates(entry.closed))
    return entry.function


def _needed(edges: list[Any], live: tuple[int, ...]) -> list[tuple[int, Any, int]]:
    """The operators that the live values depend on, with the indices of their first value and number."""
    placed, value, number = [], 0, 0
    for edge in edges:
        placed.append((value, edge, number))
        value += edge[0].outputs
        number += edge[0].numbers
    wanted, kept = set(live), []
    for first, edge, start in reversed(placed):
        if any(i in wanted for i in range(first, first + edge[0].outputs)):
            wanted.update(i for i in edge[1:] if i >= 0)
            kept.append((first, edge, start))
    return kept[::-1]


def build(
    edges: list[Any], live: tuple[int, ...], dead: tuple[int, ...], inputs: list[Any], scalars: Any
) -> FusedProgram:
    """Compile the operators behind ``live``; ``dead`` inputs give their memory to the outputs."""
    steps, count = _needed(edges, live), len(inputs)
    places: list[tuple[type, type, int]] = []
    sizes: dict[type, int] = dict.fromkeys(_KINDS, 0)
    for kind, _ in scalars:
        pack = _PACKED[kind][0]
        places.append((kind, pack, sizes[pack]))
        sizes[pack] += 1
    kinds: list[type] = [k for k in _KINDS if sizes[k]]

    def fn(*flat: Any) -> list[Any]:
        vectors = dict(zip(kinds, flat[count:], strict=True))
        values: dict[int, Any] = {}
        for first, edge, start in steps:
            entry = edge[0]
            args = [values[i] if i >= 0 else flat[~i] for i in edge[1:]]
            state = [args.pop()] if entry.rng else []
            for kind, pack, place in places[start : start + entry.numbers]:
                number = vectors[pack][place]
                args.append(number != 0 if kind is bool else number)
            values.update(enumerate(_callable(entry)(*args, *state), first))
        return [values[i] for i in live]

    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs]
    avals += [jax.ShapeDtypeStruct((sizes[k],), _PACKED[k][1]) for k in kinds]
    closed = programs.trace(fn, avals)
    free = [(a.aval.shape, a.aval.dtype) for a in closed.jaxpr.outvars]
    donate = []
    for k in dead:
        slot = (inputs[k].shape, inputs[k].dtype)
        if slot in free:
            free.remove(slot)
            donate.append(k)
    return FusedProgram(programs.compile("fused", closed, avals, donate), kinds)
