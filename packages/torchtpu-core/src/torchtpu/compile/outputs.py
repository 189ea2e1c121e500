"""What becomes of a graph's outputs: inputs, views of inputs, and fresh tensors with torch's strides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import torch
from torch import fx

from torchtpu.compile.structure import ALIASING
from torchtpu.compile.symbols import Symbols
from torchtpu.compile.walk import Env
from torchtpu.dispatch.build import Result
from torchtpu.tensors.dtypes import to_torch
from torchtpu.tensors.layout import buffer_layout, contiguous_strides
from torchtpu.tensors.storage import dense_order

View = tuple[Any, Any, dict[str, Any]]  # the operator, its further arguments


@dataclass(frozen=True)
class Output:
    """Item ``index`` of the inputs, fresh tensors or static values, seen through ``views``.

    ``host`` moves a tensor to the CPU, ``number`` reads it.
    """

    source: Literal["input", "fresh", "static"]
    index: int
    views: tuple[View, ...] = ()
    host: bool = False
    number: bool = False

    def take(self, sources: Mapping[str, Sequence[Any]]) -> Any:
        """The output's value."""
        value = sources[self.source][self.index]
        if self.views:
            with torch._C._AutoDispatchBelowAutograd():
                for op, rest, named in self.views:
                    value = op(value, *rest, **named)
        if self.number:
            return value.item()
        return value.cpu() if self.host else value


def _chain(node: fx.Node, stops: set[fx.Node], env: Env) -> tuple[fx.Node, tuple[View, ...]]:
    """The value that ``node`` is a view of, and the views that lead to it."""
    views: list[View] = []
    while node not in stops and node.target in ALIASING and isinstance(node.meta["val"], torch.Tensor):
        rest, named = fx.map_arg((node.args[1:], dict(node.kwargs)), env.__getitem__)
        views.append((node.target, rest, named))
        node = node.all_input_nodes[0]
    return node, tuple(views[::-1])


def _dense(node: fx.Node, symbols: Symbols) -> bool:
    value = node.meta["val"]
    shape, strides = (tuple(map(symbols.value, sizes)) for sizes in (value.shape, value.stride()))
    return dense_order(shape, strides) is not None


def plan(
    inputs: list[fx.Node], env: Env, wanted: list[fx.Node], symbols: Symbols
) -> tuple[list[Output], list[fx.Node], list[Any]]:
    """How to make each of ``wanted``; the nodes that the program returns, and the values that it need not."""
    stops = set(inputs)
    tensors = [n for n in wanted if isinstance(n.meta.get("val"), torch.Tensor) and env[n] is not None]
    chains = {node: _chain(node, stops, env) for node in tensors}
    roots = Counter(root for root, _ in chains.values())
    fresh: dict[fx.Node, int] = {}
    static: list[Any] = []
    outputs = []
    for node in wanted:
        if node not in chains:
            outputs.append(_plain(node, env[node], fresh, static))
            continue
        root, views = chains[node]
        if root in stops:
            outputs.append(Output("input", inputs.index(root), views))
            continue
        if roots[root] == 1 and _dense(node, symbols):
            root, views = node, ()
        host = node.meta["val"].device.type == "cpu"
        outputs.append(Output("fresh", fresh.setdefault(root, len(fresh)), views, host))
    return outputs, list(fresh), static


def _plain(node: fx.Node, value: Any, fresh: dict[fx.Node, int], static: list[Any]) -> Output:
    """A size, a number or nothing."""
    if isinstance(value, jax.Array):
        return Output("fresh", fresh.setdefault(node, len(fresh)), number=True)
    static.append(value)
    return Output("static", len(static) - 1)


def lay_out(node: fx.Node, value: Any, symbols: Symbols) -> tuple[Any, Result]:
    """The result's buffer in torch's stride order, and its description."""
    array, meta = jnp.asarray(value), node.meta["val"]
    shape = tuple(array.shape)
    if not isinstance(meta, torch.Tensor):
        return array, Result(buffer_layout(shape, to_torch(array.dtype)), shape, None)
    strides = tuple(symbols.value(s) for s in meta.stride())
    order = dense_order(shape, strides) if 0 not in shape and len(strides) == len(shape) else None
    if order is None or strides == contiguous_strides(shape) or sorted(order) == list(order):
        return array, Result(buffer_layout(shape, meta.dtype), shape, None)
    array = array.transpose(order)
    return array, Result(buffer_layout(tuple(array.shape), meta.dtype), shape, strides)
