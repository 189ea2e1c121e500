"""Builds the JAX function of one call: read views, promote, apply the lowering, write back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from torchtpu.dispatch import choice
from torchtpu.dispatch.schema import UNLOWERED, overload
from torchtpu.dispatch.template import ScalarHole, TensorHole, fill
from torchtpu.plugins import Lowering
from torchtpu.tensors.dtypes import to_numpy

_KINDS = {
    "default": KIND.DEFAULT,
    "no_opmath": KIND.NO_OPMATH,
    "int_to_float": KIND.INT_TO_FLOAT,
    "always_bool": KIND.ALWAYS_BOOL,
    "complex_to_float": KIND.COMPLEX_TO_FLOAT,
    "bool_to_long": KIND.BOOL_TO_LONG,
}
_NUMBER = {float: 1.5, int: 1, bool: True, complex: 1.5j}


def _promotable(op: OpOverload, metas: dict[str, Any]) -> list[Any]:
    """The tensors and numbers that decide the compute dtype."""
    chosen = []
    for arg in op._schema.arguments:
        value = metas.get(arg.name)
        kind = str(arg.type)
        if value is None or arg.kwarg_only:
            continue
        if "Tensor" in kind or "number" in kind:
            chosen += list(value) if isinstance(value, list | tuple) else [value]
    return [c for c in chosen if isinstance(c, torch.Tensor | int | float | complex | bool)]


def _type_name(dtype: torch.dtype) -> str:
    """``Float``, as torch's messages call a dtype."""
    return torch.empty(0, dtype=dtype).type().removeprefix("torch.").removesuffix("Tensor")


def check_cast(dtype: torch.dtype, target: torch.dtype) -> None:
    """Raise torch's error if a result of ``dtype`` must not be stored in ``target``."""
    if not torch.can_cast(dtype, target):
        raise RuntimeError(
            f"result type {_type_name(dtype)} can't be cast to the desired output type {_type_name(target)}"
        )


def check_result(op: OpOverload, lowering: Lowering, metas: dict[str, Any], target: torch.dtype) -> None:
    """`check_cast` for an element-wise operator, as some of torch's meta kernels let it pass."""
    if lowering.promote is not None:
        _, result = elementwise_dtypes(*_promotable(op, metas), type_promotion_kind=_KINDS[lowering.promote])
        check_cast(result, target)


def compute_dtype(op: OpOverload, lowering: Lowering, metas: dict[str, Any]) -> Any:
    """The NumPy dtype that torch computes in, by the lowering's promotion rule."""
    args = _promotable(op, metas)
    compute, _ = elementwise_dtypes(*args, type_promotion_kind=_KINDS[lowering.promote or "default"])
    return to_numpy(compute)


def apply(op: OpOverload, lowering: Lowering, metas: dict[str, Any], values: dict[str, Any], key: Any) -> Any:
    """Call the lowering with ``values`` (JAX arrays and static values by schema name)."""
    left_out: frozenset[str] = UNLOWERED if lowering.schema is None else frozenset()
    values = {k: v for k, v in values.items() if k not in left_out}
    if lowering.promote is not None:
        dtype = compute_dtype(op, lowering, metas)
        kinds = {a.name: str(a.type) for a in op._schema.arguments}
        for name, value in values.items():
            if ("Tensor" in kinds[name] or "number" in kinds[name]) and name not in lowering.static:
                values[name] = _cast(value, dtype)
    if isinstance(values.get("dtype"), torch.dtype):
        values["dtype"] = to_numpy(values["dtype"])
    positional, keyword = [], {}
    arguments = _arguments(op, lowering)
    for arg in arguments:
        if arg.name in left_out or arg.is_out:
            continue
        if arg.name not in values:
            break_positional = not arg.kwarg_only
            if break_positional and not any(_later(arguments, arg.name, values)):
                continue
            if break_positional:
                positional.append(arg.default_value)
            continue
        if arg.kwarg_only:
            keyword[arg.name] = values[arg.name]
        else:
            positional.append(values[arg.name])
    if lowering.rng:
        keyword["key"] = key
    return choice.call(lowering, arguments, values, (positional, keyword))


def _arguments(op: OpOverload, lowering: Lowering) -> list[Any]:
    """The arguments in the lowering's order, which is that of polygamma also for polygamma_."""
    own = list(op._schema.arguments)
    served = overload(lowering.op)
    theirs = list(served._schema.arguments) if served is not None else own
    same = {a.name for a in own} == {a.name for a in theirs}
    return theirs if same else own


def _later(arguments: list[Any], name: str, values: dict[str, Any]) -> list[bool]:
    names = [a.name for a in arguments if not a.kwarg_only and not a.is_out]
    return [n in values for n in names[names.index(name) + 1 :]]


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(v, dtype) for v in value]
    if value is None or isinstance(value, str):
        return value
    array = jnp.asarray(value)
    if array.dtype == jnp.bool_ and jnp.issubdtype(dtype, jnp.inexact):
        # XLA makes a choice of the product with a converted bool, but 0 * NaN is NaN
        array = array.astype(jnp.uint8)
    return array.astype(dtype)


def foreach(
    op: OpOverload,
    base: OpOverload,
    lowering: Lowering,
    metas: dict[str, Any],
    values: dict[str, Any],
    key: Any,
) -> list[Any]:
    """Apply the base operator to each element of the lists."""
    described = elements(op, base, metas)
    return [
        apply(base, lowering, described_one, one, key)
        for described_one, one in zip(described, elements(op, base, values), strict=True)
    ]


def elements(op: OpOverload, base: OpOverload, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of ``base`` for each element of a foreach call's lists."""
    names = [a.name for a in op._schema.arguments if not a.is_out]
    pairs = [(n, a.name) for n, a in zip(names, base._schema.arguments, strict=False) if n in values]
    listed = {a.name for a in op._schema.arguments if str(a.type).startswith("List")}
    count = len(values[next(n for n in names if n in listed)])
    return [{t: values[n][i] if n in listed else values[n] for n, t in pairs} for i in range(count)]


def bind(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The given arguments by schema name."""
    names = [a.name for a in op._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def with_numbers(tree: Any, metas: Sequence[torch.Tensor]) -> Any:
    """The call's tree with meta tensors and sample numbers, for promotion."""

    def scalar(hole: ScalarHole) -> Any:
        if hole.dtype is not None and not hole.wrapped:
            return torch.empty((), dtype=hole.dtype, device="meta")
        return _NUMBER[hole.kind]

    return fill(tree, lambda hole: metas[hole.index], scalar)


def with_arrays(tree: Any, tensors: Sequence[jax.Array], scalars: Sequence[jax.Array]) -> Any:
    """The call's tree with traced values."""

    def scalar(hole: ScalarHole) -> Any:
        value = scalars[hole.index]
        return value.astype(to_numpy(hole.dtype)) if hole.dtype is not None and not hole.wrapped else value

    def tensor(hole: TensorHole) -> Any:
        return tensors[hole.index]

    return fill(tree, tensor, scalar)


def flatten(result: Any) -> list[Any]:
    """Results as one flat list; None stays."""
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in flatten(item)]
    return [result]


Body = Callable[..., list[Any]]
