"""Schemas of new operators: their names, their arguments, and the schemas of their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Signature:
    """What is needed of a schema: argument names, which are tensors and which are keyword-only."""

    names: tuple[str, ...]
    tensors: frozenset[str]
    keyword_only: frozenset[str]
    defaults: dict[str, Any]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, in schema order."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        return {name: given.get(name, self.defaults.get(name)) for name in self.names}

    def call(self, fn: Callable[..., Any], bound: dict[str, Any]) -> Any:
        """``fn`` on the arguments as the schema passes them."""
        positional = [v for n, v in bound.items() if n not in self.keyword_only]
        return fn(*positional, **{n: v for n, v in bound.items() if n in self.keyword_only})


def name_of(schema: str) -> str:
    """``ns::name[.overload]`` of a schema; ValueError for one that cannot be served."""
    name = schema.split("(")[0].strip()
    if name.count("::") != 1 or "(" not in schema or "->" not in schema:
        raise ValueError(f"{schema!r} is not a schema 'ns::name(Tensor x, …) -> Tensor'")
    if "!" in schema or "(a" in schema.split("->")[1]:
        raise ValueError(f"{name}: a new operator must return fresh tensors and write none")
    return name


@cache
def signature(schema: str) -> Signature:
    """What torch's parser reads in a schema."""
    import torch

    arguments = torch._C.parse_schema(schema).arguments
    return Signature(
        names=tuple(a.name for a in arguments),
        tensors=frozenset(a.name for a in arguments if "Tensor" in str(a.type)),
        keyword_only=frozenset(a.name for a in arguments if a.kwarg_only),
        defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
    )


def check(schema: str) -> None:
    """Raise what is wrong with a schema: torch's parser's error, or `name_of`'s, or that it takes no tensor."""
    if name_of(schema) and not signature(schema).tensors:
        raise ValueError(f"{name_of(schema)}: a new operator needs a Tensor among its arguments")


def backward_schema(schema: str, outputs: bool = False) -> str:
    """The schema of the operator that gives the gradients of ``schema``'s floating tensors, in order.

    It takes the gradients of the floating results, the results themselves if ``outputs``, and the arguments.
    """
    left = schema.split("->")[0]
    base, _, variant = name_of(schema).partition(".")
    arguments = left[left.index("(") + 1 : left.rindex(")")]
    # each level names its gradients anew, as the arguments of the level below are among its own
    level = left.count("Tensor[] grads") or ""
    given = f"Tensor[] grads{level}, " + (f"Tensor[] outputs{level}, " if outputs else "")
    return f"{base}_backward{variant and '.' + variant}({given}{arguments}) -> Tensor[]"
