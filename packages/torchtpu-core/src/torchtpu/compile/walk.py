"""Computes the nodes of an FX graph with JAX values, through the lowerings that eager mode uses."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchtpu.compile import structure
from torchtpu.dispatch import lower
from torchtpu.dispatch.call import Encoder
from torchtpu.dispatch.fallback import decomposing, instead
from torchtpu.dispatch.schema import Family, family, op_name
from torchtpu.plugins.registry import registry
from torchtpu.tensors.dtypes import to_numpy
from torchtpu.tensors.random import key_and_next

COPY = torch.ops.aten.copy_.default
Env = dict[fx.Node, Any]


class Unlowerable(Exception):
    """XLA cannot express ``node``, or no lowering serves it."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(f"torchtpu: {node.target} cannot be part of a program: {reason}")
        self.node = node


class Walk:
    """One pass over a graph while JAX traces; ``state`` is the random stream's, ``draws`` counts its use.

    ``written`` lists the inputs that the graph has overwritten.
    """

    def __init__(self, module: torch.nn.Module, state: Any) -> None:
        self.module, self.state, self.draws = module, state, 0
        self.written: list[fx.Node] = []

    def call(self, module: fx.GraphModule, *args: Any) -> list[Any]:
        """The outputs of a graph inside the graph; its random draws count here."""
        inner = Walk(module, self.state)
        nodes = list(module.graph.nodes)
        env: Env = dict(zip([n for n in nodes if n.op == "placeholder"], args, strict=True))
        inner.run([n for n in nodes if n.op not in ("placeholder", "output")], env)
        self.state, self.draws = inner.state, self.draws + inner.draws
        return list(fx.map_arg(_listed(nodes[-1].args[0]), env.__getitem__))

    def run(self, nodes: Iterable[fx.Node], env: Env) -> None:
        """Add the values of ``nodes`` to ``env``."""
        for node in nodes:
            try:
                with jax.named_scope(node.name):  # tells which node an equation is from
                    env[node] = self._value(node, env)
            except Unlowerable:
                raise
            except structure.NotDense:
                raise Unlowerable(node, "its input's memory order is not known") from None
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
                raise Unlowerable(node, "its result depends on data") from error

    def _value(self, node: fx.Node, env: Env) -> Any:
        if node.op == "get_attr":
            return _constant(node, self.module)
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target is COPY:
            return self._copy(node, args, env)
        if isinstance(target, OpOverload):
            return self.operator(node, target, args, kwargs, node.meta.get("val"))
        if isinstance(target, HigherOrderOperator):
            return self._higher(node, args, kwargs)
        if target is structure.batched:
            return self._batched(node, *args)
        return target(*args, **kwargs)  # arithmetic on sizes

    def _batched(self, node: fx.Node, a: Any, b: Any) -> Any:
        found = serves(torch.ops.aten.bmm.default)
        if found is None:
            raise Unlowerable(node, "bmm has no lowering")

        def product(a: Any, b: Any) -> Any:
            return self._lowered(found, node, (a, b), {})[0]

        for _ in range(a.ndim - 3):
            product = jax.vmap(product)
        return _typed([product(a, b)], node.meta["val"])

    def _higher(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        from torchtpu.compile.higher import RULES

        rule = RULES.get(node.target.name())  # type: ignore[union-attr]
        if rule is None:
            raise Unlowerable(node, "it is a higher-order operator without a rule")
        return rule(self, node, *args, **kwargs)

    def operator(self, node: fx.Node, op: OpOverload, args: Any, kwargs: Any, wanted: Any) -> Any:
        """The value of ``op`` in the form and dtypes of ``wanted``; ``node`` ends in op's own arguments."""
        if op in structure.VALUE_OPS:
            return structure.VALUE_OPS[op](*args, **kwargs)
        if op in structure.DESCRIBED_OPS:
            return structure.DESCRIBED_OPS[op](wanted, *args, **kwargs)
        if op in structure.STRIDED_OPS:
            return structure.STRIDED_OPS[op](node.args[0].meta["val"], *args, **kwargs)  # type: ignore[union-attr]
        found = serves(op)
        if found is None:
            return self._apart(node, op, args, kwargs)
        if found.lowering is not None and found.lowering.rng and _on_cpu(wanted):
            raise Unlowerable(node, "it draws from the CPU's generator")
        return _typed(self._lowered(found, node, args, kwargs), wanted)

    def _apart(self, node: fx.Node, op: OpOverload, args: Any, kwargs: Any) -> Any:
        """A composite operator that a pack takes apart, where autograd, which is to do it, was not on."""
        made = rule_graph(op, node.args[len(node.args) - len(args) :], node.kwargs)
        if made is None:
            raise Unlowerable(node, "it has no lowering")
        module, which = made
        leaves = tree_flatten((args, kwargs))[0]
        out = self.call(module, *[leaves[i] for i in which])
        return out[0] if len(op._schema.returns) == 1 else out

    def _lowered(self, found: Family, node: fx.Node, args: Any, kwargs: Any) -> list[Any]:
        op, lowering = found.op, found.lowering
        assert lowering is not None
        if kwargs.get("generator") is not None:
            raise Unlowerable(node, "it draws from a generator of its own")
        own = node.args[len(node.args) - len(args) :]
        samples = fx.map_arg((own, node.kwargs), lambda n: _sample(n.meta.get("val")))
        metas = lower.bind(op, *samples)
        values = {
            name: _number(value) if varies else value
            for name, value, varies in _varying(found, lower.bind(op, args, kwargs))
        }
        key = None
        if lowering.rng:
            key, self.state = key_and_next(self.state)
            self.draws += 1
        if found.base is not None:
            out: Any = lower.foreach(op, found.base, lowering, metas, values, key)
        else:
            out = lower.apply(op, lowering, metas, values, key)
        return lower.flatten(out)

    def _copy(self, node: fx.Node, args: Any, env: Env) -> Any:
        target = node.args[0]
        assert isinstance(target, fx.Node)
        value = jnp.broadcast_to(structure._to_copy(args[1], target.meta["val"].dtype), args[0].shape)
        if target.op == "placeholder" and target not in self.written:
            self.written.append(target)
        env[target] = value
        return value


_families: dict[OpOverload, tuple[Any, Family, Encoder]] = {}


def serves(op: OpOverload) -> Family | None:
    """The family of a functional operator that can be part of a program."""
    table = registry().lowerings
    cached = _families.get(op)
    if cached is None or cached[0] is not table:
        made = family(op, table)
        cached = _families[op] = table, made, Encoder(made)
    found = cached[1]
    usable = found.lowering is not None and not found.lowering.host
    return found if usable and not found.writes and not found.hidden else None


def rule_graph(op: OpOverload, args: Any, kwargs: Any) -> tuple[fx.GraphModule, list[int]] | None:
    """The graph of a pack's rule that takes the place of torch's own parts of ``op``; None if there is none.

    ``args`` and ``kwargs`` are those of a node. It takes the tensors among them, whose places it comes with.
    """
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    rule = instead(op) if op._can_decompose() else None
    if rule is None:
        return None
    whole = decomposing(op_name(op), rule, op.decompose)
    leaves, tree = tree_flatten(fx.map_arg((args, kwargs), lambda n: n.meta.get("val")))
    which = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        full = list(leaves)
        for i, tensor in zip(which, tensors, strict=True):
            full[i] = tensor
        args, kwargs = tree_unflatten(full, tree)
        return whole(*args, **kwargs)

    tensors = [leaves[i] for i in which]
    made = make_fx(run)(*tensors)
    if any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in made.graph.nodes):
        made = make_fx(functionalize(made))(*tensors)
    return made, which


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _varying(found: Family, values: dict[str, Any]) -> Iterable[tuple[str, Any, bool]]:
    by_name = _families[found.op][2].by_name
    return ((name, value, by_name[name]) for name, value in values.items())


def _on_cpu(described: Any) -> bool:
    first = described[0] if isinstance(described, list | tuple) else described
    return isinstance(first, torch.Tensor) and first.device.type == "cpu"


def _number(value: Any) -> Any:
    """A number as a weakly typed array, as eager mode passes it."""
    if isinstance(value, list | tuple):
        return [_number(v) for v in value]
    return jnp.asarray(value) if isinstance(value, bool | int | float | complex) else value


def _sample(value: Any) -> Any:
    """What decides promotion: the tensor's description, or a number of the same kind."""
    if isinstance(value, list | tuple):
        return [_sample(v) for v in value]
    for symbolic, number in ((torch.SymInt, 1), (torch.SymFloat, 1.5), (torch.SymBool, True)):
        if isinstance(value, symbolic):
            return number
    return value


def _typed(leaves: list[Any], wanted: Any) -> Any:
    """The results in torch's structure and dtypes."""
    rest = iter(leaves)

    def build(want: Any) -> Any:
        if isinstance(want, list | tuple):
            return [build(w) for w in want]
        leaf = next(rest, None)
        if leaf is None or not isinstance(want, torch.Tensor):
            return leaf
        return jnp.asarray(leaf).astype(to_numpy(want.dtype))

    return build(wanted)


def _constant(node: fx.Node, module: torch.nn.Module) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "cpu":
        raise Unlowerable(node, "it is a constant on the device")
    return jnp.asarray(value.detach().view(torch.uint8).numpy().view(to_numpy(value.dtype))
                       if value.dtype is torch.bfloat16 else value.detach().numpy())  # fmt: skip


def describe(node: fx.Node) -> str:
    """The operator's name for messages."""
    return op_name(node.target) if isinstance(node.target, OpOverload) else str(node.target)


def located(node: fx.Node) -> str:
    """The operator and the user's line, as lines for the end of a message."""
    frames = re.findall(r'File "(.+)", line (\d+), in (\S+)', node.stack_trace or "")
    place = "\n  at {}:{} in {}".format(*frames[-1]) if frames else ""
    return f"\n  operator: {describe(node)}{place}"
