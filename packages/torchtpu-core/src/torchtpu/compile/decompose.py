"""Which operators AOTAutograd takes apart: those that no lowering serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torchtpu.compile import structure
from torchtpu.compile.walk import serves
from torchtpu.dispatch.fallback import decomposing, instead
from torchtpu.dispatch.schema import overload
from torchtpu.plugins.registry import registry


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The packs' decompositions, and torch's for operators without a lowering."""
    from torch._decomp import decomposition_table

    served = structure.VALUE_OPS.keys() | structure.DESCRIBED_OPS.keys() | structure.STRIDED_OPS.keys()
    table = {
        op: rule
        for op, rule in decomposition_table.items()
        if isinstance(op, OpOverload)
        and op not in served
        and not op._schema.is_mutable
        and serves(op) is None
    }
    for name, record in registry().decompositions.items():
        op = overload(name)
        if op is not None and (record.when == "always" or serves(op) is None):
            table[op] = _once(name, record.fn)
    table.update(_foreach())
    return table


def _once(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that leaves the operator alone inside itself, as dispatch does."""
    return decomposing(name, rule, lambda *args, **kwargs: NotImplemented)


def _foreach() -> dict[OpOverload, Callable[..., Any]]:
    """The foreach forms of operators that a pack decomposes although they have a lowering."""
    bases = {n for n, record in registry().decompositions.items() if record.when == "always"}
    packets = {f"_foreach_{name.removeprefix('aten::').partition('.')[0]}" for name in bases}
    found = {}
    for packet in (getattr(torch.ops.aten, name, None) for name in packets):
        for op in (getattr(packet, variant) for variant in packet.overloads()) if packet is not None else ():
            rule = None if op._schema.is_mutable else instead(op)
            if rule is not None:
                found[op] = rule
    return found
