"""A run of nodes as one program for each set of input layouts, run by the active mode's executor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, fx

from torchtpu import config
from torchtpu.compile import artifacts, dynamic
from torchtpu.compile import outputs as out
from torchtpu.compile.align import Trace
from torchtpu.compile.buckets import Buckets
from torchtpu.compile.higher import draws
from torchtpu.compile.padded import Refused
from torchtpu.compile.symbols import Symbols
from torchtpu.compile.walk import COPY, Env, Walk, located
from torchtpu.dispatch import executor
from torchtpu.dispatch.build import Entry
from torchtpu.errors import BucketingError
from torchtpu.runtime import program as programs
from torchtpu.runtime import transfer
from torchtpu.runtime.rewrite import safe_updates
from torchtpu.runtime.transfer import SCALAR_DTYPE
from torchtpu.tensors import random, views
from torchtpu.tensors.dtypes import to_numpy
from torchtpu.tensors.layout import Layout, tensor_layout
from torchtpu.tensors.pending import LATER, Pending, resolve
from torchtpu.tensors.storage import TpuStorage, new_strided, new_tensor

EXACT = 64  # programs, each for its own sizes, that a graph keeps
TRIES = 4  # refusals of padding after which a graph has exact programs only


@dataclass(frozen=True)
class Number:
    """A number among the inputs; ``dtype`` is set for a CPU tensor without dimensions."""

    kind: type
    dtype: torch.dtype | None = None


@dataclass(eq=False)
class Variant(Entry):
    """The entry for one key, how its results become the wanted values, and how often it draws."""

    plan: list[out.Output] = field(default_factory=list)
    static: list[Any] = field(default_factory=list)
    draws: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def program(self, donate: tuple[int, ...]) -> programs.Program:
        """`Entry.program` with the user's XLA options."""
        found = self.programs.get(donate)
        if found is None:
            found = programs.compile(self.name, self.closed, self.avals, donate, self.options)
            self.programs[donate] = found
            artifacts.compiled(self.label, found.text)
        return found


@dataclass(eq=False)
class Resized(Variant):
    """A bucket's program for one set of sizes: ``vectors`` are the numbers that tell it these."""

    made: Any = None
    vectors: tuple[Any, Any] = (None, None)

    @classmethod
    def of(cls, made: dynamic.Program, notes: dict[str, Any], vectors: tuple[Any, Any]) -> Resized:
        """What `Variant` says of results, for these sizes."""
        entry = made.entry
        return cls(
            entry.name, entry.closed, entry.avals, notes["writes"], notes["results"], None, entry.rng, False,
            numbers=entry.numbers, plan=notes["plan"], static=notes["static"], draws=notes["draws"],
            options=entry.options, made=made, vectors=vectors,
        )  # fmt: skip

    def run(self, stores: Sequence[TpuStorage], numbers: Sequence[Any], state: Any) -> list[Any]:
        """Launch with padded inputs; results whose padding is to be cut when they are read."""
        count = len(stores) + len(numbers)
        program = self.made.entry.program(tuple(p for p in self.writes if not stores[p].shared))
        inputs = []
        for k in program.kept:
            if k < len(stores):
                inputs.append(dynamic.grown(stores[k], self.made.shapes[k]))
            elif k < count:
                inputs.append(transfer.scalar(*numbers[k - len(stores)]))
            else:
                last = resolve(state, "a random operator outside the graph")
                inputs.append((*self.vectors, last)[k - count])
        buffers = program.run(inputs)
        for place, result in enumerate(self.results, len(self.writes)):
            if result is not None and buffers[place].shape != result.layout.shape:
                pending = Pending(LATER)
                pending.value = dynamic.Grown(buffers[place], result.layout.shape)
                buffers[place] = pending
        return buffers


class Inputs:
    """The storages and numbers behind one call's arguments, and the key that they make."""

    __slots__ = ("key", "moved", "numbers", "stores")

    def __init__(self, args: Sequence[Any], mutated: Sequence[bool]) -> None:
        self.key: list[Any] = []
        self.stores: list[TpuStorage] = []
        self.numbers: list[tuple[type, Any]] = []
        self.moved: list[tuple[Tensor, Tensor]] = []  # overwritten CPU tensors and their copies on the device
        where: dict[int, int] = {}
        for value, written in zip(args, mutated, strict=True):
            if not isinstance(value, Tensor):
                self._plain(value)
                continue
            storage: Any = value.untyped_storage()
            if storage.__class__ is not TpuStorage:
                if not value.dim() and not written and value.dtype is not torch.bfloat16:
                    number = value.item()
                    self._number(Number(type(number), value.dtype), number)
                    continue
                storage = self._move(value, written)
                value = self.moved[-1][1] if written else value
            place = where.setdefault(id(storage), len(self.stores))
            if place == len(self.stores):
                self.stores.append(storage)
            layout = storage.layout
            if storage.views and value.device.type != "cpu":
                layout = tensor_layout(value, layout)
            self.key += (layout, place)

    def _plain(self, value: Any) -> None:
        if value.__class__ is float:
            self._number(Number(float), value)
        else:
            self.key += (value.__class__, value)  # a size or nothing: part of the program

    def _number(self, kind: Number, value: Any) -> None:
        self.key += (kind, len(self.numbers))
        self.numbers.append((kind.kind, value))

    def _move(self, value: Tensor, written: bool) -> Any:
        copy = value.detach().contiguous().to("tpu")
        if written:
            self.moved.append((value, copy))
        return copy.untyped_storage()


class Segment:
    """``nodes`` of a graph, the values that they need and those that others need of them."""

    def __init__(
        self, module: fx.GraphModule, nodes: list[fx.Node], inputs: list[fx.Node], wanted: list[fx.Node],
        name: str, options: dict[str, Any], buckets: Buckets,
    ) -> None:  # fmt: skip
        self.module, self.nodes, self.inputs, self.wanted = module, nodes, inputs, wanted
        self.name, self.options = name, options
        targets = {n.args[0] for n in nodes if n.target is COPY}
        self.mutated = [n in targets for n in inputs]
        self.rng = draws(nodes, module)
        self.variants: dict[Any, Variant] = {}
        self.buckets, self.dynamic = buckets, dynamic.symbolic(inputs)
        self.programs: dict[Any, dynamic.Program] = {}
        self.refusals: list[str] = []
        _segments.add(self)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run with the values of ``inputs``; the values of ``wanted``."""
        owned = dynamic.own_memory(self.inputs, args, self.mutated) if self.dynamic else args
        given = Inputs(owned, self.mutated)
        key = tuple(given.key)
        variant = self.variants.get(key)
        if variant is None:
            variant = self._keep(key, self._build(args, given))
        buffers = _launch(variant, given) if variant.outputs else []
        for host, copy in given.moved:
            host.copy_(copy)
        fresh = [
            new_tensor(r.layout, b)
            if r.strides is None
            else new_strided(r.shape, r.strides, r.layout.dtype, b)
            for r, b in zip(variant.results, buffers, strict=True)
            if r is not None
        ]
        sources = {"input": args, "fresh": fresh, "static": variant.static}
        return [output.take(sources) for output in variant.plan]

    def _keep(self, key: Any, variant: Variant) -> Variant:
        if len(self.variants) >= EXACT:  # sizes for which no bucket serves come and go
            del self.variants[next(iter(self.variants))]
        self.variants[key] = variant
        return variant

    def _build(self, args: Sequence[Any], given: Inputs) -> Variant:
        symbols = Symbols(self.inputs, args)
        closed, notes = self._trace(given.key, given, symbols)
        where = dynamic.sized(self.inputs, symbols, self.buckets) if self.dynamic else ()
        if where:
            try:
                return self._padded(closed, notes, given, symbols, where)
            except Refused as reason:
                if self.buckets.required:
                    raise BucketingError(self._told(reason)) from None
                self.refusals.append(str(reason))
                self.dynamic = len(self.refusals) < TRIES
        return self._variant(safe_updates(closed), self._avals(given.key, given), notes)

    def _told(self, reason: Refused) -> str:
        node = next((n for n in self.nodes if n.name == reason.node), None)
        where = "" if node is None else located(node)
        return f"torchtpu: padding of a varying size cannot be proved exact: {reason}{where}"

    def _variant(self, closed: Any, avals: list[Any], notes: dict[str, Any]) -> Variant:
        count = sum(isinstance(k, Number) for k in notes["key"][::2])
        rest = {k: v for k, v in notes.items() if k != "key"}
        variant = Variant(
            self.name, closed, avals, shape=None, rng=self.rng, simple=False, numbers=count,
            options=self.options, **rest,
        )  # fmt: skip
        variant.label = artifacts.keep(artifacts.Artifact(self.name, self.module, variant))
        return variant

    def _padded(
        self, closed: Any, notes: dict[str, Any], given: Inputs, symbols: Symbols, where: Any
    ) -> Variant:
        """The program of the call's bucket, for the sizes of this call."""
        key = tuple(given.key)
        shape = (where, tuple(k if isinstance(k, Number) else None for k in key[::2]))
        made = self.programs.get(shape)
        plain = len(given.stores) + len(given.numbers)
        if made is None:

            def trace(other: list[Any], sizes: Symbols) -> Any:
                return self._trace(other, given, sizes)[0]

            made = dynamic.build(trace, self.inputs, key, symbols, self.buckets, plain)
        if any(made.shapes[p] != b.shape for p, b in enumerate(_bases(key, given)) if p in notes["writes"]):
            raise Refused("an input of varying size is overwritten")
        vectors = made.numbers(Trace(closed))
        if vectors is None:
            raise Refused("the graph is another program at these sizes")
        if made.entry is None:
            made.entry = self._variant(safe_updates(made.closed), made.avals, notes)
            self.programs[shape] = made
        return Resized.of(made, notes, vectors)

    def _avals(self, key: Sequence[Any], given: Inputs) -> list[Any]:
        avals = [jax.ShapeDtypeStruct(b.shape, b.np_dtype) for b in _bases(key, given)]
        avals += [jax.ShapeDtypeStruct((), SCALAR_DTYPE[k], weak_type=True) for k, _ in given.numbers]
        if self.rng:
            avals.append(jax.ShapeDtypeStruct((4,), np.uint32))
        return avals

    def _trace(self, key: Sequence[Any], given: Inputs, symbols: Symbols) -> tuple[Any, dict[str, Any]]:
        """The nodes as a jaxpr for inputs as ``key`` says, and what becomes of its results."""
        notes: dict[str, Any] = {"key": key}
        count = len(given.stores)

        def fn(*flat: Any) -> list[Any]:
            walk = Walk(self.module, flat[-1] if self.rng else None)
            env = _inputs(self.inputs, key, flat, count)
            walk.run(self.nodes, env)
            new = _writes(walk, env, self.inputs, key, flat[:count], notes)
            notes["plan"], fresh, notes["static"] = out.plan(self.inputs, env, self.wanted, symbols)
            laid = [out.lay_out(node, env[node], symbols) for node in fresh]
            notes["results"], notes["draws"] = [result for _, result in laid], walk.draws
            return [*new, *[array for array, _ in laid], *([walk.state] if self.rng else [])]

        return programs.trace(fn, self._avals(key, given)), notes


def _bases(key: Sequence[Any], given: Inputs) -> list[Layout]:
    """The layout of each storage's buffer."""
    bases: dict[int, Layout] = {}
    for kind, place in zip(key[::2], key[1::2], strict=True):
        if isinstance(kind, Layout) and bases.setdefault(place, kind.base) is not kind.base:
            raise Refused("two views of a storage of varying size")
    return [bases[place] for place in range(len(given.stores))]


_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def _forget() -> None:
    """Drop the programs; those still in use compile again, or come from the disk."""
    for segment in _segments:
        for variant in segment.variants.values():
            variant.programs.clear()
        for made in segment.programs.values():
            made.entry.programs.clear()


programs.forget.append(_forget)


def _inputs(nodes: list[fx.Node], key: Sequence[Any], flat: Sequence[Any], count: int) -> Env:
    """The inputs' values: views are read here, inside the program."""
    env: Env = {}
    for node, kind, place in zip(nodes, key[::2], key[1::2], strict=True):
        if isinstance(kind, Layout):
            env[node] = views.read(flat[place], kind)
        elif isinstance(kind, Number):
            value = flat[count + place]
            env[node] = value if kind.dtype is None else value.astype(to_numpy(kind.dtype))
        else:
            env[node] = place
    return env


def _writes(
    walk: Walk,
    env: Env,
    nodes: list[fx.Node],
    key: Sequence[Any],
    bases: Sequence[Any],
    notes: dict[str, Any],
) -> list[Any]:
    """The new buffers of the storages whose tensors the graph has overwritten."""
    touched: dict[int, Any] = {}
    for node in walk.written:
        index = nodes.index(node)
        layout, place = key[2 * index : 2 * index + 2]
        value = jnp.asarray(env[node]).astype(layout.np_dtype)
        touched[place] = views.write(touched.get(place, bases[place]), layout, value)
    # in the inputs' order: JAX gives the memory of the n-th donated array to the n-th result of its shape
    notes["writes"] = tuple(sorted(touched))
    return [touched[place] for place in notes["writes"]]


def _launch(variant: Variant, given: Inputs) -> list[Any]:
    """Hand the program to the mode; the results' buffers."""
    mode = "strict" if variant.options and config.special[0] else executor.active()
    run: Any = variant.run if isinstance(variant, Resized) else partial(executor.runs[mode], variant)
    return launch(run, given, variant.writes, variant.draws if variant.rng else None)


def launch(
    run: Callable[..., list[Any]], given: Inputs, writes: Sequence[int], draws: int | None
) -> list[Any]:
    """Run with the random state, if the program draws, and store what it overwrites; the results' buffers."""
    if draws is not None:
        stream = random.default_stream
        with stream.lock:
            state = stream.take()
            stream.offset += draws - 1
            buffers = run(given.stores, given.numbers, state)
            stream.state = buffers.pop()
    else:
        buffers = run(given.stores, given.numbers, None)
    for place, buffer in zip(writes, buffers, strict=False):
        given.stores[place].buffer, given.stores[place].shared = buffer, False
    return buffers[len(writes) :]
