"""From a Python function's signature to the schema of a torch operator."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

import jax

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str"}
_LISTS = (list, tuple, collections.abc.Sequence)


@dataclass(frozen=True)
class Operator:
    """The schema of a function, and how the function is called with the schema's arguments.

    ``names`` are its arguments in order, ``tuples`` those that are annotated as tuples; ``static`` are Python
    values that no program has as inputs. ``results`` counts its arrays, None for a list of them.
    """

    schema: str
    names: tuple[str, ...]
    static: tuple[str, ...]
    tuples: frozenset[str]
    results: int | None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *first: Any) -> Any:
        """``fn`` on ``first`` and the arguments as torch passes them."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        given = {n: tuple(v) if n in self.tuples and v is not None else v for n, v in given.items()}
        if isinstance(fn, functools.partial) and fn.keywords:
            return fn(*first, **given)  # a bound keyword may stand before others
        return fn(*first, *list(given.values())[: len(args)], **{n: given[n] for n in kwargs})


def operator(name: str, fn: Callable[..., Any], static_argnames: Collection[str] | None = None) -> Operator:
    """The operator ``name`` (``ns::op``) of a function, by its annotations.

    An argument is a tensor unless its annotation or its default says otherwise. Numbers are static, or, where
    ``static_argnames`` is given, those that it names and all that are not floats. Raises TypeError for what has
    no place in a schema, ValueError for a name of another form.
    """
    _check_name(name)
    hints = _hints(fn)
    parameters = _parameters(name, fn)
    unknown = set(static_argnames or ()) - {p.name for p in parameters}
    if unknown:
        raise ValueError(f"{name}: static_argnames has {', '.join(sorted(unknown))}, which is no argument")
    kinds = {p.name: _kind(name, p, hints.get(p.name), static_argnames or ()) for p in parameters}
    shown, keyword_only = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
            keyword_only = True
        if keyword_only and "Tensor" in kinds[p.name]:
            raise TypeError(f"{name}: torch takes no keyword-only tensor; give {p.name!r} a place before '*'")
        default = "" if p.default is p.empty else f"={_default(name, p)}"
        shown.append(f"{kinds[p.name]} {p.name}{default}")
    results, count = _results(name, hints.get("return"))
    numbers = [n for n, kind in kinds.items() if "Tensor" not in kind]
    static = [
        n for n in numbers if static_argnames is None or n in static_argnames or "float" not in kinds[n]
    ]
    return Operator(
        schema=f"{name}({', '.join(shown)}) -> {results}",
        names=tuple(kinds),
        static=tuple(static),
        tuples=frozenset(n for n in kinds if get_origin(_without_none(hints.get(n))[0]) is tuple),
        results=count,
    )


def _check_name(name: str) -> None:
    namespace, _, op = name.partition("::")
    if not (namespace.isidentifier() and op.isidentifier()):
        raise ValueError(f"{name!r} is not a name of the form 'namespace::operator'")


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as objects; those that cannot be evaluated as the strings that they are."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    target = inspect.unwrap(fn if inspect.isroutine(fn) or hasattr(fn, "__wrapped__") else type(fn).__call__)
    try:
        return typing.get_type_hints(target)
    except Exception:  # a name that only a type checker imports
        return dict(getattr(target, "__annotations__", {}))


def _parameters(name: str, fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The function's arguments, without those that a `functools.partial` has bound.

    What follows a bound keyword keeps its place here; `inspect` calls it keyword-only.
    """
    if isinstance(fn, functools.partial):
        inner = _parameters(name, fn.func)
        return [p for p in inner[len(fn.args) :] if p.name not in fn.keywords]
    found = list(inspect.signature(fn).parameters.values())
    for p in found:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(
                f"{name}: {p} has no place in a schema; annotate one argument with list[jax.Array]"
            )
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    """``X`` of ``X | None``, and whether it was one."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        if len(rest) == 1 and len(rest) < len(get_args(hint)):
            return rest[0], True
    return hint, False


def _is_tensor(hint: Any) -> bool:
    named = getattr(hint, "__name__", str(hint)).rsplit(".", 1)[-1]
    return hint in (jax.Array, jax.typing.ArrayLike) or named in ("Tensor", "Array", "ndarray")


def _is_list_of_tensors(hint: Any) -> bool:
    inner = get_args(hint)
    return get_origin(hint) in _LISTS and len({*inner} - {...}) == 1 and _is_tensor(inner[0])


def _kind(name: str, p: inspect.Parameter, hint: Any, static: Collection[str]) -> str:
    """The schema's type of an argument."""
    if hint is None:
        if type(p.default) in _PLAIN:
            return _PLAIN[type(p.default)]
        if p.name in static:
            raise TypeError(f"{name}: annotate static argument {p.name!r} with int, float, bool or str")
        return "Tensor?" if p.default is None else "Tensor"
    inner, optional = _without_none(hint)
    if get_origin(inner) is typing.Literal:
        inner = type(get_args(inner)[0])
    kind = _element(inner)
    if kind is None and get_origin(inner) in _LISTS:
        items = {*get_args(inner)} - {...}
        element = _element(items.pop()) if len(items) == 1 else None
        kind = None if element is None else f"{element}[]"
    if kind is None:
        raise TypeError(
            f"{name}: argument {p.name!r} is annotated {hint!r}; a schema knows jax.Array, torch.Tensor, int, "
            "float, bool, str, lists and tuples of one of them, and Optional; bind others with functools.partial"
        )
    return kind + ("?" if optional or p.default is None else "")


def _element(hint: Any) -> str | None:
    return "Tensor" if _is_tensor(hint) else _PLAIN.get(hint)


def _default(name: str, p: inspect.Parameter) -> str:
    value = p.default
    if value is None or (isinstance(value, bool | int | float) and math.isfinite(value)):
        return str(value)
    if isinstance(value, str) and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if isinstance(value, list | tuple) and all(type(v) in (int, float, bool) for v in value):
        return f"[{', '.join(map(str, value))}]"
    raise TypeError(f"{name}: the default {value!r} of {p.name!r} has no form in a schema")


def _results(name: str, hint: Any) -> tuple[str, int | None]:
    """The schema's results and their number, by the annotation; one tensor without."""
    if hint is None or _is_tensor(hint):
        return "Tensor", 1
    inner = get_args(hint)
    if get_origin(hint) is tuple and ... not in inner and inner and all(map(_is_tensor, inner)):
        return f"({', '.join(['Tensor'] * len(inner))})" if len(inner) > 1 else "Tensor", len(inner)
    if _is_list_of_tensors(hint):
        return "Tensor[]", None
    raise TypeError(
        f"{name}: the result is annotated {hint!r}; it can be jax.Array, a tuple of them, or list[jax.Array]"
    )
