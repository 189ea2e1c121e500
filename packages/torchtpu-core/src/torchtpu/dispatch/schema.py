"""Operator families: which lowering serves an overload, and which arguments it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from torchtpu.plugins import Lowering

# Never reach a lowering; those that shape the result's metadata still reach torch's meta kernel.
UNLOWERED = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "implicit"}
)
# In-place names whose functional twin does not follow from the name.
TWINS = {
    "aten::normal_": "aten::normal_functional",
    "aten::bernoulli_.float": "aten::bernoulli.p",
    "aten::bernoulli_.Tensor": "aten::bernoulli.Tensor",
    "aten::_index_put_impl_": "aten::index_put",
    "aten::__ilshift__.Tensor": "aten::__lshift__.Tensor",
    "aten::__ilshift__.Scalar": "aten::__lshift__.Scalar",
    "aten::__irshift__.Tensor": "aten::__rshift__.Tensor",
    "aten::__irshift__.Scalar": "aten::__rshift__.Scalar",
    # both forms write the running statistics
    "aten::_native_batch_norm_legit.out": "aten::_native_batch_norm_legit",
    "aten::_batch_norm_with_update.out": "aten::_batch_norm_with_update",
}
# torch's kernels write these arguments although the schema does not say so; the lowering returns
# their new values after its results.
HIDDEN_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
}


def op_name(op: OpOverload) -> str:
    """``aten::add.Tensor``; the default overload has no suffix."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


@dataclass(frozen=True)
class Family:
    """How one overload is served.

    ``writes`` names the mutated arguments in schema order, ``outs`` those that are ``out=``.
    ``base`` is the per-element operator of a foreach overload.
    """

    op: OpOverload
    lowering: Lowering | None
    writes: tuple[str, ...]
    outs: tuple[str, ...]
    hidden: tuple[str, ...]
    base: OpOverload | None = None


def overload(name: str) -> OpOverload | None:
    """The overload called ``ns::op[.overload]``, or None if this torch has none."""
    namespace, _, rest = name.partition("::")
    base, _, variant = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, variant or "default", None) if packet is not None else None


def _type(arg: Any) -> str:
    return str(arg.type)


def _signature(op: OpOverload) -> list[tuple[str, str]]:
    return [
        (a.name, _type(a))
        for a in op._schema.arguments
        if not a.is_out and a.name not in UNLOWERED | {"dtype"}
    ]


def functional(op: OpOverload) -> str | None:
    """The name of the functional twin of a mutating overload."""
    name = op_name(op)
    if name in TWINS:
        return TWINS[name]
    schema = op._schema
    if any(a.is_out for a in schema.arguments):
        return _matching(op, op._overloadpacket)
    base, _, variant = name.partition(".")
    if not base.endswith("_"):
        return None
    twin = base[:-1] + (f".{variant}" if variant else "")
    # some overloads are named otherwise: pow_.Scalar and pow.Tensor_Scalar
    packet = getattr(torch.ops.aten, base.removeprefix("aten::")[:-1], None)
    known = packet is None or overload(twin) is not None
    return twin if known else (_matching(op, packet) or twin)


def _matching(op: OpOverload, packet: Any) -> str | None:
    """The functional overload in ``packet`` that takes the same arguments."""
    wanted = _signature(op)
    for variant in packet.overloads():
        other = getattr(packet, variant)
        if not other._schema.is_mutable and _signature(other) == wanted:
            return op_name(other)
    return None


_ELEMENT = {"List[Tensor]": "Tensor", "List[number]": "number"}


def foreach_base(op: OpOverload, lowerings: Mapping[str, Lowering]) -> OpOverload | None:
    """The operator that a functional ``_foreach_`` overload applies to each element."""
    name = op._schema.name
    if not name.startswith("aten::_foreach_"):
        return None
    base = name.removeprefix("aten::_foreach_")
    wanted = [_ELEMENT.get(_type(a), _type(a)) for a in op._schema.arguments]
    for candidate in (
        {"sub": ["sub"], "maximum": ["maximum", "clamp_min"], "minimum": ["minimum", "clamp_max"]}
    ).get(base, [base]):
        packet = getattr(torch.ops.aten, candidate, None)
        for variant in packet.overloads() if packet is not None else ():
            other = getattr(packet, variant)
            types = [_type(a) for a in other._schema.arguments]
            required = len([a for a in other._schema.arguments if not a.has_default_value()])
            fits = types[: len(wanted)] == wanted and required <= len(wanted)
            if fits and not other._schema.is_mutable and op_name(other) in lowerings:
                return other
    return None


def family(op: OpOverload, lowerings: Mapping[str, Lowering]) -> Family:
    """Find the lowering that serves ``op``; ``lowering`` is None if there is none."""
    schema, name = op._schema, op_name(op)
    writes = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    served = name if name in lowerings or not writes else functional(op)
    lowering = lowerings.get(served or "")
    base = None
    if lowering is None and served is not None:
        twin = overload(served)
        base = foreach_base(twin, lowerings) if twin is not None else None
        lowering = lowerings[op_name(base)] if base is not None else None
    hidden = HIDDEN_WRITES.get(name, ()) if lowering is not None else ()
    return Family(op, lowering, writes, outs, hidden, base)
