"""From a module to the graph that is exported: functional ATen for the device, in operators that have a lowering."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from torchtpu.compile.decompose import decompositions
from torchtpu.compile.structure import DESCRIBED_OPS, STRIDED_OPS, VALUE_OPS
from torchtpu.compile.walk import serves


def exported(
    what: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """``what`` if it is a program, else what ``torch.export.export`` makes of a module; TypeError, ValueError."""
    if isinstance(what, ExportedProgram):
        if args is not None or kwargs is not None or dynamic_shapes is not None:
            raise ValueError(
                "torchtpu: a program has its arguments; give args, kwargs and dynamic_shapes for modules"
            )
        return what
    if not isinstance(what, torch.nn.Module):
        raise TypeError(f"torchtpu: save needs a module or an ExportedProgram, not {type(what).__name__}")
    if args is None and not kwargs:
        raise ValueError("torchtpu: a module needs example args or kwargs to be exported")
    return torch.export.export(what, args or (), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)


def lowerable(program: ExportedProgram) -> ExportedProgram:
    """The program for tensors on the device, its operators decomposed as ``torch.compile`` does it.

    ``program`` and its tensors stay as they are; the copy's state has shapes and no memory.
    """
    module = copy.deepcopy(program.graph_module)
    for node, copied in zip(program.graph.nodes, module.graph.nodes, strict=True):
        copied.name = (
            node.name
        )  # the signature's; a copy gives other names where Python has a function of that name
    moved = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict={name: _hollow(value) for name, value in program.state_dict.items()},
        range_constraints=copy.copy(program.range_constraints),
        module_call_graph=program.module_call_graph[:1],
        constants={name: _hollow(value) for name, value in program.constants.items()},
        verifiers=[program.verifier],
    )
    _autocast_on_device(module)
    made = move_to_device_pass(moved, "tpu:0").run_decompositions(_table())
    _drop_checks(made.graph)
    return made


def _autocast_on_device(module: fx.GraphModule) -> None:
    """Let autocast that holds for the program's tensors hold for them on the device."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    homes = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            if node.target is torch.ops.higher_order.wrap_with_autocast and node.args[0] in homes:
                node.args = ("tpu", *node.args[1:])


def _drop_checks(graph: fx.Graph) -> None:
    """Take out what raises an error that depends on data, such as torch.linalg's of singular matrices."""
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.with_effects and node.args[1] in _CHECKS:
            for user in list(node.users):  # only the token, as a check has no result
                user.replace_all_uses_with(node.args[0])
                graph.erase_node(user)
            graph.erase_node(node)


def _hollow(value: Any) -> Any:
    """A tensor like ``value`` on the device, whose memory is not there before somebody writes."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="tpu:0")
    return torch.nn.Parameter(made, value.requires_grad) if isinstance(value, torch.nn.Parameter) else made


def _table() -> dict[OpOverload, Callable[..., Any]]:
    """`decompositions`, and the composite operators, which AOTAutograd takes apart by itself and export does not."""
    from torch._decomp import decomposition_table

    table = decompositions()
    served = VALUE_OPS.keys() | DESCRIBED_OPS.keys() | STRIDED_OPS.keys()
    for op in [*torch.export.default_decompositions(), *_KEPT_BY_EXPORT]:
        composite = isinstance(op, OpOverload) and _composite(op) and op not in served and serves(op) is None
        if composite and table.get(op) is decomposition_table.get(op):  # no pack has a rule of its own
            table[op] = _rule(op)
    return table


def _rule(op: OpOverload) -> Callable[..., Any]:
    """What `op.decompose` calls, which cannot be used: torch registers the rule for ``op`` itself."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return op.py_kernels[key] if callable(op.py_kernels.get(key)) else partial(op._op_dk, key)


_CHECKS = (torch.ops.aten._linalg_check_errors.default,)
# composite operators that torch.export's own table leaves whole
_KEPT_BY_EXPORT = (torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.vec)


def _composite(op: OpOverload) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def needed(graph: fx.Graph) -> list[fx.Node]:
    """The computing nodes that results depend on; torch's checks of sizes are not among them."""
    wanted = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in wanted:
            wanted.update(node.all_input_nodes)
    return [n for n in graph.nodes if n in wanted and n.op not in ("placeholder", "output")]
