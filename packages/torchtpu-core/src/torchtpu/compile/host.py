"""Which nodes of a graph run on the host: those that update CPU tensors from CPU tensors alone.

An optimizer counts its steps in such tensors. As part of a program they would go to the device and come
back in every step, and the host would wait for it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torchtpu.compile.walk import COPY


def updates(nodes: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes that compute the new values of CPU inputs, and the copies that write them.

    The former need nothing of the device, so they may run before everything else; the latter come last,
    as others may still read the old values.
    """
    copies = [n for n in nodes if n.target is COPY and n.args[0].op == "placeholder" and _on_cpu(n)]  # type: ignore[union-attr]
    needed: set[fx.Node] = set()
    writes = []
    for copy in copies:
        cone = _cone(copy.args[1])
        if cone is not None:
            needed |= cone
            writes.append(copy)
    return [n for n in nodes if n in needed], writes


def _cone(node: Any) -> set[fx.Node] | None:
    """What must run before ``node``, itself included; None where that is not the host's alone."""
    found: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node) or not _on_cpu(node):
            return None
        if node in found or node.op == "placeholder":
            continue
        functional = isinstance(node.target, OpOverload) and not node.target._schema.is_mutable
        if node.op != "call_function" or not (functional or node.target is operator.getitem):
            return None
        found.add(node)
        waiting += node.all_input_nodes
    return found


def _on_cpu(node: fx.Node) -> bool:
    """Whether the node gives tensors on the CPU and nothing else."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) and value else [value]
    return all(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in values)
