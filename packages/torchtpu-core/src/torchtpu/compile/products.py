"""A graph pass for attention: batched products keep the dimensions that torch merges into one for ``bmm``.

torch takes ``matmul`` of four dimensions apart into views, a product of three and a view back. On the TPU a
merged batch fixes the memory order of all its operands, and whole activations are copied for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from torchtpu.compile.structure import batched
from torchtpu.plugins.pack import Pack

aten = torch.ops.aten
pack = Pack(api="1.0")
_VIEWS = {aten.view.default, aten._unsafe_view.default}


@pack.graph_pass("torchtpu.batches", before=("torchtpu.unused",))
def batches(module: fx.GraphModule) -> bool:
    """Make every ``bmm`` whose results are all seen as (…, m, n) a product of that batch."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=aten.bmm.default):
        batch = _batch(node)
        if batch is None:
            continue
        with module.graph.inserting_before(node):
            operands = tuple(_split(module.graph, operand, batch) for operand in node.args)
            made = module.graph.call_function(batched, operands)
        users = list(node.users)
        made.meta = dict(users[0].meta)
        for user in users:
            user.replace_all_uses_with(made)
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        changed = True
    return changed


def _split(graph: fx.Graph, operand: Any, batch: tuple[int, ...]) -> fx.Node:
    """``operand`` with its batch's own dimensions."""
    shape = (*batch, *operand.meta["val"].shape[1:])
    made = graph.call_function(aten.view.default, (operand, list(shape)))
    made.meta["val"] = operand.meta["val"].view(shape)
    return made


def _batch(node: fx.Node) -> tuple[int, ...] | None:
    """The batch that all users of a product agree on, if it is more than one dimension of fixed sizes."""
    shape = node.meta["val"].shape
    if not node.users or any(user.target not in _VIEWS for user in node.users):
        return None
    seen, *others = [user.meta["val"].shape for user in node.users]
    if not all(isinstance(n, int) for sizes in (shape, seen, *others) for n in sizes):
        return None  # sizes that vary cannot be compared without a guard
    if any(other != seen for other in others) or len(seen) < 4:
        return None
    return tuple(seen[:-2]) if seen[-2:] == shape[1:] and math.prod(seen[:-2]) == shape[0] else None
