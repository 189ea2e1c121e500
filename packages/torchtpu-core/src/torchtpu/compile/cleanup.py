"""Our own graph passes, registered as a pack registers its own: casts and views that do nothing, unused results."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchtpu.compile.structure import ALIASING
from torchtpu.compile.walk import COPY
from torchtpu.plugins.pack import Pack

aten = torch.ops.aten
pack = Pack(api="1.0")
# may give back the values that they are given
_COPIES = {
    aten._to_copy.default, aten.clone.default, aten._unsafe_view.default, torch.ops.prims.convert_element_type.default,
}  # fmt: skip
_VIEWS = {aten.expand.default, aten.slice.Tensor, aten.view.default, aten.alias.default, aten.detach.default}


@pack.graph_pass("torchtpu.noops")
def noops(module: fx.GraphModule) -> bool:
    """Remove casts, copies and views whose result is what they are given.

    What is returned, itself or a view of it, stays: the caller expects memory of its own.
    """
    written = {n.args[0] for n in module.graph.nodes if n.target is COPY}
    changed = False
    for node in list(module.graph.nodes):
        if node.target not in _COPIES | _VIEWS or node.args[0] in written or _returned(node):
            continue
        if _alike(node.args[0], node):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            changed = True
    return changed


def _returned(node: fx.Node) -> bool:
    """Whether the graph gives back the node or a view of it, or writes it to an input."""
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or user.target is COPY:
                return True
            if user.target in ALIASING or user.target is operator.getitem:
                waiting.append(user)
    return False


def _alike(one: Any, other: fx.Node) -> bool:
    """Whether both nodes describe tensors of one shape, memory order, dtype and device."""
    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if not all(isinstance(n, int) for t in (a, b) for n in (*t.shape, *t.stride())):
        return False  # sizes that vary: to compare them would make torch compile again
    same = a.shape == b.shape and a.stride() == b.stride()
    return same and a.dtype == b.dtype and a.device == b.device and a.is_conj() == b.is_conj()


@pack.graph_pass("torchtpu.unused", after=("torchtpu.noops",))
def unused(module: fx.GraphModule) -> bool:
    """Remove operators whose results nobody reads; those that draw random numbers stay, as the stream moves on."""
    return bool(module.graph.eliminate_dead_code())
