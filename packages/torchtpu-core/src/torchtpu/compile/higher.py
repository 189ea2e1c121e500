"""Rules for higher-order operators: control flow, nested graphs, random numbers that are drawn again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload

from torchtpu.compile.walk import Unlowerable, Walk, rule_graph, serves

Values = Sequence[Any]


def _strong(values: Values) -> list[jax.Array]:
    """Arrays whose dtypes do not give way, as branches and loop states must agree in them."""
    return [lax.convert_element_type(jnp.asarray(v), jnp.asarray(v).dtype) for v in values]


def _closed(walk: Walk, node: fx.Node, module: fx.GraphModule) -> Callable[..., list[jax.Array]]:
    """``module`` as a function; it must not draw random numbers, as their count would depend on data."""

    def call(*args: Any) -> list[jax.Array]:
        before = walk.state, walk.draws
        values = walk.call(module, *args)
        if walk.draws != before[1]:
            walk.state, walk.draws = before
            raise Unlowerable(node, "its number of random draws depends on data")
        return _strong(values)

    return call


def _cond(walk: Walk, node: fx.Node, pred: Any, true: Any, false: Any, operands: Values = ()) -> list[Any]:
    if isinstance(pred, bool):
        return walk.call(true if pred else false, *operands)
    branches = [_closed(walk, node, module) for module in (true, false)]
    return list(lax.cond(jnp.asarray(pred).reshape(()), *[lambda b=b: b(*operands) for b in branches]))


def _while(walk: Walk, node: fx.Node, test: Any, body: Any, carried: Values, extra: Values = ()) -> list[Any]:
    check, step = _closed(walk, node, test), _closed(walk, node, body)
    return list(
        lax.while_loop(
            lambda state: check(*state, *extra)[0].reshape(()),
            lambda state: step(*state, *extra),
            _strong(carried),
        )
    )


def _scan(walk: Walk, node: fx.Node, combine: Any, init: Values, xs: Values, extra: Values = ()) -> list[Any]:
    step, count = _closed(walk, node, combine), len(init)

    def body(state: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        values = step(*state, *items, *extra)
        return values[:count], values[count:]

    last, stacked = lax.scan(body, _strong(init), list(xs))
    return [*last, *stacked]


def _map(walk: Walk, node: fx.Node, module: Any, xs: Values, extra: Values = ()) -> list[Any]:
    return _scan(walk, node, module, (), xs, extra)


def _nested(walk: Walk, node: fx.Node, module: Any, identifier: Any, *operands: Any) -> list[Any]:
    return walk.call(module, *operands)


def _result(node: fx.Node) -> Any:
    """What torch says of the operator's own result; the pair has no description."""
    part = next(u for u in node.users if u.target is operator.getitem and u.args[1] == 1)
    return part.meta["val"]


def _save_state(walk: Walk, node: fx.Node, op: OpOverload, *args: Any, **kwargs: Any) -> list[Any]:
    state = walk.state
    return [state, walk.operator(node, op, args, kwargs, _result(node))]


def _with_state(walk: Walk, node: fx.Node, state: Any, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    now = walk.state, walk.draws
    walk.state = state
    value = walk.operator(node, op, args, kwargs, node.meta["val"])
    walk.state, walk.draws = now
    return value


RULES: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while,
    "scan": _scan,
    "map_impl": _map,
    "invoke_subgraph": _nested,
    "run_and_save_rng_state": _save_state,
    "run_with_rng_state": _with_state,
}


def describe_states(nodes: Sequence[fx.Node]) -> None:
    """Add what torch's partitioner leaves out when an operator draws the same numbers again in the backward.

    Saved states are the device's, torch describes them as its CPU generator's; results it does not describe.
    """
    for node in nodes:
        source = node.args[0] if node.target is operator.getitem else None
        target = source.target if isinstance(source, fx.Node) else None
        if str(target) == "run_and_save_rng_state" and node.args[1] == 0:
            node.meta["val"] = torch.empty(4, dtype=torch.uint32, device="meta")
        elif str(node.target) == "run_with_rng_state" and "val" not in node.meta:
            op: Any = node.args[1]
            args, kwargs = fx.map_arg((node.args[2:], node.kwargs), lambda n: n.meta["val"])
            mode = detect_fake_mode([n.meta.get("val") for n in nodes])
            with mode or nullcontext():
                node.meta["val"] = op(*args, **kwargs)


def draws(nodes: Sequence[fx.Node], module: torch.nn.Module) -> bool:
    """Whether any node may draw from the device's random stream."""
    for node in nodes:
        if isinstance(node.target, OpOverload):
            found = serves(node.target)
            if found is not None and found.lowering is not None and found.lowering.rng:
                return True
            made = rule_graph(node.target, node.args, node.kwargs) if found is None else None
            if made is not None and draws(list(made[0].graph.nodes), made[0]):
                return True
        elif str(node.target) == "run_and_save_rng_state":
            return True
        elif node.op == "get_attr":
            inner = getattr(module, str(node.target), None)
            if isinstance(inner, fx.GraphModule) and draws(list(inner.graph.nodes), inner):
                return True
    return False
