"""Traces the large program of a pair once more, so that it computes what smaller ones would, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from torchtpu.compile.align import alike, literal
from torchtpu.compile.padded import Numbers, Padded, Refused, Sizes, all_joined, varies, whole
from torchtpu.runtime.rewrite import bind

CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
    "checkpoint": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One equation in both programs, its operands and their sizes."""

    numbers: Numbers
    small: Any
    large: Any
    ins: list[Padded]
    sizes: list[Sizes]
    outs: list[Sizes]

    @property
    def params(self) -> dict[str, Any]:
        """The large program's parameters."""
        return self.large.params  # type: ignore[no-any-return]

    def pairs(self, name: str) -> list[tuple[Any, Any]]:
        """A parameter that lists numbers, in both programs."""
        return list(zip(self.small.params[name], self.large.params[name], strict=True))

    def fixed(self) -> bool:
        """Whether no size and no parameter varies."""
        every = (s for sizes in (*self.sizes, *self.outs) for s in sizes)
        return not any(map(varies, every)) and alike(self.small.params, self.large.params)

    def bind(self, arrays: Sequence[Any], **changed: Any) -> list[Any]:
        """The operation itself, on arrays."""
        return bind(self.large, arrays, **changed)

    def plain(self) -> list[Padded]:
        """The operands without split dimensions."""
        return [
            all_joined(self.numbers, value, sizes) for value, sizes in zip(self.ins, self.sizes, strict=True)
        ]


Rule = Callable[[Step], list[Padded]]


def sizes_of(small: Any, large: Any) -> Sizes:
    """The sizes of one variable in both programs."""
    return tuple(zip(getattr(small.aval, "shape", ()), getattr(large.aval, "shape", ()), strict=True))


def walk(numbers: Numbers, small: Any, large: Any, args: Sequence[Padded]) -> list[Padded]:
    """The results of a closed jaxpr, given in two sizes, for ``args`` that hold a call's values."""
    from torchtpu.compile.pad_rules import RULES

    values: dict[Any, Padded] = {}
    for var, const in zip(large.jaxpr.constvars, large.consts, strict=True):
        values[var] = whole(const, sizes_of(var, var))
    values.update(zip(large.jaxpr.invars, args, strict=True))

    def read(a: Any, b: Any) -> Padded:
        if not isinstance(b, core.Literal):
            return values[b]
        value = literal(b)
        if type(value) in (int, float):
            value = numbers.number(literal(a), value) if value == value else value
        return whole(jnp.asarray(value).astype(b.aval.dtype), ())  # type: ignore[attr-defined]

    for a, b in zip(small.jaxpr.eqns, large.jaxpr.eqns, strict=True):
        try:
            ins = [read(x, y) for x, y in zip(a.invars, b.invars, strict=True)]
            out = _equation(numbers, a, b, ins, RULES)
        except Refused as reason:  # the outermost equation is the one that has the name
            reason.node = str(b.source_info.name_stack).partition("/")[0] or reason.node
            raise
        values.update(zip(b.outvars, out, strict=True))
    return [read(x, y) for x, y in zip(small.jaxpr.outvars, large.jaxpr.outvars, strict=True)]


def _equation(
    numbers: Numbers, small: Any, large: Any, ins: list[Padded], rules: Mapping[str, Rule]
) -> list[Padded]:
    called = CALLS.get(large.primitive.name)
    if called is not None:
        return walk(numbers, _closed(small.params[called]), _closed(large.params[called]), ins)
    sizes, outs = _sizes(small.invars, large.invars), _sizes(small.outvars, large.outvars)
    step = Step(numbers, small, large, ins, sizes, outs)
    if step.fixed() and large.primitive.name not in ("scan", "while", "cond"):
        return [whole(v, s) for v, s in zip(step.bind([i.array for i in ins]), outs, strict=True)]
    rule = rules.get(large.primitive.name)
    if rule is None:
        raise Refused(f"{large.primitive.name} has no rule for padding")
    return rule(step)


def _sizes(small: Sequence[Any], large: Sequence[Any]) -> list[Sizes]:
    return [sizes_of(a, b) for a, b in zip(small, large, strict=True)]


def _closed(jaxpr: Any) -> Any:
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
