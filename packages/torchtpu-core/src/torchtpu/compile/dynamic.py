"""One program for many sizes: inputs are padded to a bucket, results are cut from padded arrays when read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import fx

from torchtpu.compile.align import Pair, Slots, Trace
from torchtpu.compile.buckets import Buckets, bounds, distinct
from torchtpu.compile.pad_walk import sizes_of, walk
from torchtpu.compile.padded import Numbers, Refused, Size, all_joined, whole
from torchtpu.compile.symbols import Symbols
from torchtpu.runtime import client, transfer
from torchtpu.runtime import program as programs
from torchtpu.tensors.layout import Layout, buffer_layout, contiguous_strides
from torchtpu.tensors.pending import LATER, Pending
from torchtpu.tensors.storage import dense_order, layout_of, materialize, new_tensor

Tracer = Callable[[list[Any], Symbols], Any]  # a key and the sizes behind it to a closed jaxpr


class Grown:
    """An array with padding behind the values of ``shape``; called, the values alone."""

    __slots__ = ("array", "shape")

    def __init__(self, array: Any, shape: tuple[int, ...]) -> None:
        self.array, self.shape = array, shape

    def __call__(self) -> Any:
        """The array without its padding."""
        inside = tuple(slice(n) for n in self.shape)
        if client.platform() == "cpu":  # host memory: a copy compiles nothing
            return transfer.put(np.ascontiguousarray(transfer.to_host(self.array)[inside]).copy())
        with jax.enable_x64(True):
            return self.array[inside]


def grown(store: Any, shape: tuple[int, ...]) -> Any:
    """A storage's array with padding up to ``shape``."""
    buffer = store.buffer
    later = buffer.__class__ is Pending and buffer.index == LATER and isinstance(buffer.value, Grown)
    if later and tuple(buffer.value.array.shape) == shape:
        return buffer.value.array
    array = materialize(store, "a compiled graph reads it")
    if tuple(array.shape) == shape:
        return array
    if client.platform() == "cpu":
        padded = np.zeros(shape, array.dtype)
        padded[tuple(slice(n) for n in array.shape)] = transfer.to_host(array)
        return transfer.put(padded)
    with jax.enable_x64(True):
        return jnp.pad(array, [(0, n - m) for n, m in zip(shape, array.shape, strict=True)])


def at(nodes: Sequence[fx.Node], key: Sequence[Any], symbols: Symbols) -> list[Any]:
    """The key of a call whose inputs have the sizes that ``symbols`` gives them."""
    out: list[Any] = []
    for node, kind, place in zip(nodes, key[::2], key[1::2], strict=True):
        meta = node.meta.get("val")
        if isinstance(kind, Layout) and isinstance(meta, torch.Tensor):
            out += (_layout(kind, tuple(map(symbols.value, meta.shape))), place)
        elif isinstance(meta, torch.SymInt) and isinstance(place, int) and kind is int:
            out += (kind, symbols.value(meta))
        else:
            out += (kind, place)
    return out


def _layout(kind: Layout, shape: tuple[int, ...]) -> Layout:
    """A layout like ``kind`` for other sizes."""
    if shape == kind.shape:
        return kind
    if kind.canonical:
        return buffer_layout(shape, kind.dtype)
    order = _order(kind)
    if order is None:
        raise Refused("a view of varying size")
    base = buffer_layout(tuple(shape[i] for i in order), kind.dtype)
    strides = dict(zip(order, contiguous_strides(base.shape), strict=True))
    return Layout(base, shape, tuple(strides[i] for i in range(len(shape))), 0, kind.dtype)


def _order(kind: Layout) -> tuple[int, ...] | None:
    """The dimensions in the order of memory, if the layout is all of its buffer."""
    order = dense_order(kind.shape, kind.strides)
    flags = kind.conj or kind.neg or kind.offset or kind.base.dtype is not kind.dtype
    if order is None or flags or kind.base.shape != tuple(kind.shape[i] for i in order):
        return None
    return order


def own_memory(nodes: Sequence[fx.Node], args: Sequence[Any], written: Sequence[bool]) -> list[Any]:
    """The inputs, with copies of those that are views of a buffer whose size varies with them."""
    out = list(args)
    for i, (node, value, target) in enumerate(zip(nodes, args, written, strict=True)):
        if target or not isinstance(value, torch.Tensor) or value.device.type != "tpu":
            continue
        layout = layout_of(value)
        if not layout.canonical and _order(layout) is None and _symbolic(node.meta.get("val")):
            out[i] = _copy(value, layout)
    return out


def _copy(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    plain = not (layout.conj or layout.neg) and layout.base.dtype is layout.dtype
    if client.platform() != "cpu" or not plain:
        return value.clone(memory_format=torch.contiguous_format)
    storage: Any = value.untyped_storage()
    flat = transfer.to_host(materialize(storage)).reshape(-1)[layout.offset :]
    strides = [s * flat.itemsize for s in layout.strides]
    view = np.lib.stride_tricks.as_strided(flat, layout.shape, strides)
    return new_tensor(buffer_layout(layout.shape, layout.dtype), transfer.put(np.array(view, order="C")))


@dataclass
class Program:
    """The traced program of a bucket; ``closed`` takes two vectors of numbers behind its other numbers."""

    slots: Slots
    products: set[tuple[Size, tuple[Size, ...]]]
    closed: Any
    avals: list[Any]
    shapes: list[tuple[int, ...]]  # of the inputs
    entry: Any = None

    def numbers(self, trace: Trace) -> tuple[Any, Any] | None:
        """The vectors for a program of other sizes, or None if this is not the same program."""
        values = self.slots.values(trace)
        if values is None or not all(_holds(p, values) for p in self.products):
            return None
        ints = [v for (kind, *_), v in values.items() if kind is int]
        floats = [v for (kind, *_), v in values.items() if kind is float]
        if any(abs(v) >= 1 << 63 for v in ints):
            return None
        return transfer.put(np.array(ints, np.int64)), transfer.put(np.array(floats, np.float64))


def _holds(product: tuple[Size, tuple[Size, ...]], values: dict[Pair, Any]) -> bool:
    whole_size, parts = product

    def value(size: Size) -> Any:
        return size[1] if size[0] == size[1] else values.get((int, *size))

    found = [value(p) for p in parts]
    count = 1
    for n in found:
        if n is None:
            return False
        count *= n
    return bool(value(whole_size) == count)


def build(
    trace: Tracer,
    nodes: Sequence[fx.Node],
    key: Sequence[Any],
    symbols: Symbols,
    buckets: Buckets,
    plain: int,
) -> Program:
    """The program of the bucket into which a call falls; raises `Refused`.

    ``plain`` is how many inputs come before the random state: storages and numbers.
    """
    sizes, other = _sizes(nodes, symbols, buckets)
    large = _traced(trace, nodes, key, sizes)
    for candidate in other:
        small = _traced(trace, nodes, key, candidate)
        if large and small and small.frame == large.frame and len(small.numbers) == len(large.numbers):
            return _program(Slots(small, large), small.closed, large.closed, plain)
    raise Refused("the graph is another program at other sizes")


def _traced(trace: Tracer, nodes: Sequence[fx.Node], key: Sequence[Any], sizes: Symbols) -> Trace | None:
    """The program at sizes that torch did not promise to work; None if it does not."""
    try:
        return Trace(trace(at(nodes, key, sizes), sizes))
    except Refused:
        raise
    except Exception:
        return None


def sized(nodes: Sequence[fx.Node], symbols: Symbols, buckets: Buckets) -> tuple[tuple[Any, int], ...]:
    """The bucket's size for each symbol; none if no size has varied yet."""
    sizes, other = _sizes(nodes, symbols, buckets)
    return tuple(sizes.known.items()) if other else ()


def _sizes(nodes: Sequence[fx.Node], symbols: Symbols, buckets: Buckets) -> tuple[Symbols, list[Symbols]]:
    env = next(
        s.node
        for n in nodes
        for s in _symbolic(n.meta.get("val"))
    )  # fmt: skip
    limits = bounds(symbols.known, env)
    sizes = {s: buckets.bucket(s, v, *limits[s]) for s, v in symbols.known.items()}
    high = {s: h for s, (_, h) in limits.items()}
    fixed = {s: n for s, n in sizes.items() if not buckets.varies(s, high[s])}
    if len(fixed) == len(sizes):
        return Symbols.of(sizes), []
    other = distinct(sizes, high, fixed)
    return Symbols.of(sizes), [Symbols.of(o) for o in other]


def _symbolic(value: Any) -> list[torch.SymInt]:
    found = list(value.shape) if isinstance(value, torch.Tensor) else [value]
    return [s for s in found if isinstance(s, torch.SymInt)]


def symbolic(nodes: Sequence[fx.Node]) -> bool:
    """Whether any input has a size that varies."""
    return any(_symbolic(n.meta.get("val")) for n in nodes)


def _program(slots: Slots, small: Any, large: Any, plain: int) -> Program:
    notes: dict[str, Any] = {}
    variables = list(zip(small.jaxpr.invars, large.jaxpr.invars, strict=True))
    outputs = [sizes_of(a, b) for a, b in zip(small.jaxpr.outvars, large.jaxpr.outvars, strict=True)]

    def fn(*flat: Any) -> list[Any]:
        numbers = Numbers(slots.order, flat[plain], flat[plain + 1])
        given = [*flat[:plain], *flat[plain + 2 :]]
        args = [whole(array, sizes_of(*pair)) for array, pair in zip(given, variables, strict=True)]
        results = walk(numbers, small, large, args)
        notes["products"] = numbers.products
        return [all_joined(numbers, r, s).array for r, s in zip(results, outputs, strict=True)]

    counts = [sum(kind is k for kind, *_ in slots.places) for k in (int, float)]
    vectors = [jax.ShapeDtypeStruct((n,), t) for n, t in zip(counts, (np.int64, np.float64), strict=True)]
    avals = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for _, v in variables
    ]
    avals[plain:plain] = vectors
    closed = programs.trace(fn, avals)
    shapes = [tuple(v.aval.shape) for _, v in variables]
    return Program(slots, notes["products"], closed, avals, shapes)
