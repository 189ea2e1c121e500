"""Compares traced programs of one function at different sizes: what stays, and which numbers change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend import core

# say nothing about the values that an equation computes
_MUTE = frozenset(
    ("name", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "symbolic_zeros", "ctx_mesh")
)
Pair = tuple[type, Any, Any]  # a number's kind and its values in two programs


@dataclass
class Trace:
    """A program as ``frame``, which has no numbers, and the numbers; ``dims`` are the places of sizes."""

    closed: Any
    frame: list[Any] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._closed(self.closed)

    def _closed(self, closed: Any) -> None:
        for const in closed.consts:
            array = np.asarray(const)
            self.frame.append((array.dtype, array.shape, array.tobytes()))
        self._jaxpr(closed.jaxpr)

    def _jaxpr(self, jaxpr: Any) -> None:
        names: dict[Any, int] = {}
        for var in (*jaxpr.constvars, *jaxpr.invars):
            self._define(var, names)
        for eqn in jaxpr.eqns:
            self.frame.append(eqn.primitive.name)
            for var in eqn.invars:
                self._use(var, names)
            for var in eqn.outvars:
                self._define(var, names)
            self.params(eqn.params)
        for var in jaxpr.outvars:
            self._use(var, names)

    def _define(self, var: Any, names: dict[Any, int]) -> None:
        names[var] = len(names)
        shape = getattr(var.aval, "shape", ())
        self.frame.append((names[var], str(getattr(var.aval, "dtype", var.aval)), len(shape)))
        self.dims += range(len(self.numbers), len(self.numbers) + len(shape))
        self.numbers += shape

    def _use(self, var: Any, names: dict[Any, int]) -> None:
        if isinstance(var, core.Literal):
            self.frame.append(str(var.aval.dtype))  # type: ignore[attr-defined]
            self._leaf(literal(var))
        else:
            self.frame.append(names[var])

    def params(self, value: Any) -> None:
        """Add an equation's parameters."""
        if isinstance(value, dict):
            for key in sorted(value.keys() - _MUTE):
                self.frame.append(key)
                self.params(value[key])
        elif isinstance(value, tuple | list):
            self.frame.append(len(value))
            for item in value:
                self.params(item)
        elif isinstance(value, core.ClosedJaxpr):
            self._closed(value)
        elif isinstance(value, core.Jaxpr):
            self._jaxpr(value)
        else:
            self._leaf(value)

    def _leaf(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.frame.append((value.dtype, value.shape, value.tobytes()))
            return
        value = value.item() if isinstance(value, np.integer) else value
        if type(value) in (int, float) and not (isinstance(value, float) and math.isnan(value)):
            self.frame.append(type(value))
            self.numbers.append(value)
        else:
            self.frame.append(str(value))


def literal(var: Any) -> Any:
    """A literal's number as a Python number."""
    value = var.val.item() if hasattr(var.val, "item") else var.val
    for kind in (int, float):  # JAX's own subclasses, which carry a dtype, count as these
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value


class Slots:
    """The numbers in which ``small`` and ``large`` differ, each pair of values once."""

    def __init__(self, small: Trace, large: Trace) -> None:
        self.large = large
        self.places: dict[Pair, list[int]] = {}
        for i, (a, b) in enumerate(zip(small.numbers, large.numbers, strict=True)):
            if not same(a, b):
                self.places.setdefault((type(b), a, b), []).append(i)
        kinds = {kind: [p for p in self.places if p[0] is kind] for kind in (int, float)}
        self.order = {pair: n for pairs in kinds.values() for n, pair in enumerate(pairs)}
        self._varying = {i for group in self.places.values() for i in group}

    def values(self, trace: Trace) -> dict[Pair, Any] | None:
        """The numbers of ``trace`` for each slot, if it is this program with those alone changed."""
        large = self.large
        if trace.frame != large.frame:
            return None
        for i, (a, b) in enumerate(zip(trace.numbers, large.numbers, strict=True)):
            if i not in self._varying and not same(a, b):
                return None
        if any(trace.numbers[i] > large.numbers[i] for i in large.dims):
            return None
        found = {pair: [trace.numbers[i] for i in group] for pair, group in self.places.items()}
        if any(not same(v, group[0]) for group in found.values() for v in group):
            return None
        return {pair: group[0] for pair, group in found.items()}


def same(a: Any, b: Any) -> bool:
    """Equal, zeros of one sign."""
    return bool(a == b) and (a != 0 or math.copysign(1, a) == math.copysign(1, b))


def alike(a: Any, b: Any) -> bool:
    """Whether two equations have the same parameters, sizes included."""
    pair = []
    for params in (a, b):
        trace = Trace.__new__(Trace)
        trace.frame, trace.numbers, trace.dims = [], [], []
        trace.params(params)
        pair.append(trace)
    return pair[0].frame == pair[1].frame and _all_same(pair[0].numbers, pair[1].numbers)


def _all_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
