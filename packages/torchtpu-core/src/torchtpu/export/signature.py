"""What an exported program takes and gives, out of torch's own signature of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from torchtpu.export.container import ExportError, Input, Output, State
from torchtpu.export.lowering import Wanted, aval
from torchtpu.tensors.storage import dense_order

_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")
_PLAIN = (bool, int, float, str, type(None))


@dataclass
class Plan:
    """How a program is called: `Wanted` for its trace, ``described`` for its `Info`, ``tensors`` for the file."""

    wanted: Wanted
    described: dict[str, Any]
    tensors: list[torch.Tensor]


def plan(program: ExportedProgram, lowered: ExportedProgram) -> Plan:
    """The plan of ``lowered``, which was made of ``program``; `ExportError` for what a file cannot hold."""
    from torchtpu.compile.higher import draws

    nodes = {node.name: node for node in lowered.graph.nodes}
    state = _states(program, lowered, nodes)
    dims = Dimensions(lowered)
    names = argument_names(program)
    places = dict(state.places)
    inputs, avals = [], [aval(t, t.shape) for t in state.tensors]
    users = [s for s in lowered.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    for spec, name in zip(users, names, strict=True):
        if isinstance(spec.arg, ConstantArgument):
            inputs.append(Input(name=name, value=_plain(name, spec.arg.value)))
            continue
        value = _tensor_of(spec.arg, nodes, f"argument {name}")
        places[nodes[spec.arg.name]] = len(avals)
        inputs.append(Input(name=name, dtype=_name(value), shape=dims.shown(name, value.shape)))
        avals.append(aval(value, dims.symbolic(inputs[-1].shape)))
    writes, results, outputs = _results(lowered, nodes, places, dims)
    random = draws([n for n in lowered.graph.nodes if n.op != "placeholder"], lowered.graph_module)
    spec_in, spec_out = program.call_spec.in_spec, program.call_spec.out_spec
    args, kwargs = pytree.tree_unflatten(names, spec_in)
    described = {
        "state": tuple(state.found), "inputs": tuple(inputs), "outputs": tuple(outputs),
        "in_spec": _dumped(spec_in), "out_spec": _dumped(spec_out),
        "positional": tuple(_positional(program, len(args))), "keywords": tuple(kwargs), "dimensions": dims.ranges,
    }  # fmt: skip
    return Plan(Wanted(places, avals, writes, results, random), described, state.tensors)


def _dumped(spec: Any) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError as error:  # a class without a registered name
        raise ExportError(
            f"torchtpu: an argument or result is of a class that a file cannot name: {error}"
        ) from error


def _name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, _PLAIN):
        raise ExportError(f"torchtpu: {name} is a {type(value).__name__}, which a file cannot hold")
    return value


def _tensor_of(arg: Any, nodes: dict[str, fx.Node], what: str) -> torch.Tensor:
    if not isinstance(arg, TensorArgument):
        raise ExportError(
            f"torchtpu: {what} is a {type(arg).__name__}; only tensors and fixed values can be exported"
        )
    return nodes[arg.name].meta["val"]  # type: ignore[no-any-return]


@dataclass
class _State:
    """The stored tensors, each once, and the placeholders that read them."""

    found: list[State] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    places: dict[fx.Node, int] = field(default_factory=dict)


def _states(program: ExportedProgram, lowered: ExportedProgram, nodes: dict[str, fx.Node]) -> _State:
    state = _State()
    keys: dict[Any, int] = {}
    for spec in lowered.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT or _idle(spec, nodes):
            continue
        kind, target = _KINDS.get(spec.kind), spec.target
        if spec.kind is InputKind.TOKEN:
            users = [str(user.args[1]) for user in nodes[spec.arg.name].users if user.op != "output"]
            raise ExportError(
                f"torchtpu: {', '.join(users)} has an effect, which a program on the device cannot have"
            )
        if kind is None or target is None:
            raise ExportError(
                f"torchtpu: {target or spec.arg} is a {spec.kind.name}, which a file cannot hold"
            )
        value = next(
            d[target] for d in (program.state_dict, program.constants, lowered.constants) if target in d
        )
        persistent = kind == "parameter" or bool(spec.persistent)
        place = keys.setdefault(_identity(value), len(state.tensors))
        state.places[nodes[spec.arg.name]] = place
        if place == len(state.tensors):
            state.tensors.append(value)
            state.found.append(
                State(
                    names=(target,),
                    kind=kind,
                    dtype=_name(value),
                    shape=tuple(value.shape),
                    persistent=persistent,
                )
            )
        else:
            first = state.found[place]
            names = (*first.names, target)
            state.found[place] = State(**{**first.__dict__, "names": names})
    return state


def _idle(spec: Any, nodes: dict[str, fx.Node]) -> bool:
    """Whether an input is the token that orders effects, of which none is left."""
    return spec.kind is InputKind.TOKEN and all(user.op == "output" for user in nodes[spec.arg.name].users)


def _identity(value: torch.Tensor) -> Any:
    """Equal for tensors that are the same memory in the same form."""
    place = value.untyped_storage()._cdata, value.storage_offset()
    return *place, value.dtype, tuple(value.shape), value.stride(), value.is_conj(), value.is_neg()


class Dimensions:
    """The dynamic dimensions of a program's arguments: their names, ranges and JAX's symbols."""

    def __init__(self, lowered: ExportedProgram) -> None:
        found = [n.meta["val"] for n in lowered.graph.nodes if n.op == "placeholder"]
        sizes = [size for value in found if isinstance(value, torch.Tensor) for size in value.shape]
        used = {size.node.expr for size in sizes if isinstance(size, torch.SymInt)}
        self.ranges: dict[str, tuple[int, int | None]] = {}
        for symbol, limits in lowered.range_constraints.items():
            if symbol in used:
                upper = int(limits.upper) if limits.upper.is_Integer else None
                self.ranges[str(symbol)] = int(limits.lower), upper
        self._symbols: dict[str, Any] = {}

    def shown(self, name: str, shape: Iterable[Any]) -> tuple[int | str, ...]:
        """The sizes of an argument, dynamic ones by name or as torch computes them from others."""
        sizes = tuple(str(s) if isinstance(s, torch.SymInt) else int(s) for s in shape)
        for size in sizes:
            if isinstance(size, str) and size not in self.ranges:
                raise ExportError(
                    f"torchtpu: dynamic dimension {size} of argument {name} is not supported yet"
                )
        return sizes

    def symbolic(self, shape: Sequence[int | str]) -> tuple[Any, ...]:
        """JAX's sizes; all dynamic ones belong to one scope."""
        if self.ranges and not self._symbols:
            from jax import export

            limits = [f"{name} >= {least}" for name, (least, _) in self.ranges.items()]
            limits += [f"{name} <= {most}" for name, (_, most) in self.ranges.items() if most is not None]
            try:
                symbols = export.symbolic_shape(", ".join(self.ranges), scope=export.SymbolicScope(limits))
            except ValueError as error:
                known = ", ".join(self.ranges)
                raise ExportError(
                    f"torchtpu: dynamic dimensions {known} are not supported yet: {error}"
                ) from error
            self._symbols = dict(zip(self.ranges, symbols, strict=True))
        return tuple(self._symbols[s] if isinstance(s, str) else s for s in shape)


def _results(
    lowered: ExportedProgram, nodes: dict[str, fx.Node], places: dict[fx.Node, int], dims: Dimensions
) -> tuple[list[tuple[int, fx.Node]], list[tuple[fx.Node, tuple[int, ...]]], list[Output]]:
    signature = lowered.graph_signature
    targets = {s.target: nodes[s.arg.name] for s in signature.input_specs if s.target is not None}
    writes, results, outputs = {}, [], []
    for spec in signature.output_specs:
        if spec.kind.name in _MUTATIONS:
            target = targets.get(spec.target) or nodes[str(spec.target)]
            writes[places[target]] = nodes[spec.arg.name]
            continue
        if spec.kind is OutputKind.TOKEN:
            continue
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise ExportError(f"torchtpu: {spec.kind.name} among the results is not supported")
        if isinstance(spec.arg, ConstantArgument):
            outputs.append(Output(value=_plain("a result", spec.arg.value)))
            continue
        value = _tensor_of(spec.arg, nodes, "a result")
        order = _order(value)
        shape = tuple(s if isinstance(s, int) else str(s) for s in value.shape)
        outputs.append(Output(dtype=_name(value), shape=shape, order=order))
        results.append((nodes[spec.arg.name], order))
    return sorted(writes.items()), results, outputs


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """The order of dimensions in memory, with the example's sizes where they are dynamic."""
    shape, strides = ([_hint(n) for n in sizes] for sizes in (value.shape, value.stride()))
    dense = None if 0 in shape else dense_order(tuple(shape), tuple(strides))
    return dense if dense is not None else tuple(range(value.dim()))


def _hint(size: Any) -> int:
    return size.node.hint if isinstance(size, torch.SymInt) else int(size)


def argument_names(program: ExportedProgram) -> list[str]:
    """What to call each leaf of the arguments, such as ``x``, ``batch['mask']``."""
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    first = dict(zip(_positional(program, len(args)), args, strict=True))
    names = {}
    for root, value in [*first.items(), *kwargs.items()]:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            names[leaf] = f"{root}{pytree.keystr(path)}"
    return [names[k] for k in range(spec.num_leaves)]


def _positional(program: ExportedProgram, count: int) -> list[str]:
    signature = program.module_call_graph[0].signature
    known = list(signature.forward_arg_names or []) if signature is not None else []
    return [*known[:count], *(f"args[{k}]" for k in range(len(known), count))]
