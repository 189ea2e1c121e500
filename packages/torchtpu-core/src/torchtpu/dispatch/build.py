"""Makes the cached entry of one call: result metadata, the program, and how results are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from torchtpu.dispatch import lower
from torchtpu.dispatch.schema import Family, op_name
from torchtpu.dispatch.template import ScalarHole, TensorHole, fill
from torchtpu.runtime import program as programs
from torchtpu.runtime.transfer import SCALAR_DTYPE
from torchtpu.tensors import views
from torchtpu.tensors.layout import Layout, buffer_layout, contiguous_strides
from torchtpu.tensors.random import key_and_next
from torchtpu.tensors.storage import dense_order


class HostOnly(Exception):
    """The call's result depends on data in a way that XLA cannot express."""


@dataclass
class Call:
    """What one key stands for.

    ``places`` maps tensor hole → index of its storage among the program's inputs; ``layouts`` is by
    hole; ``shared`` tells which storages must not be donated.
    """

    family: Family
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layouts: list[Layout]
    places: list[int]
    kinds: list[type]
    shared: tuple[bool, ...]
    bases: list[Layout] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bases = [None] * (max(self.places, default=-1) + 1)  # type: ignore[list-item]
        for layout, place in zip(self.layouts, self.places, strict=True):
            self.bases[place] = layout.base


@dataclass
class Result:
    """How one output becomes a tensor: its buffer's layout, and strides where not row-major."""

    layout: Layout
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass
class Entry:
    """A compiled call. ``results`` follow the writes in the program's outputs."""

    name: str
    program: programs.Program
    writes: tuple[int, ...]
    results: list[Result | None]
    shape: Any
    rng: bool
    direct: bool = False
    execute: Any = None
    handlers: Any = None
    call: Call | None = None


def _metas(call: Call) -> list[torch.Tensor]:
    return [torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta") for x in call.layouts]


def _run_meta(call: Call, metas: list[torch.Tensor]) -> Any:
    """torch's own shape, dtype and stride rules; raises what they raise."""

    def scalar(hole: ScalarHole) -> Any:
        # torch wraps a plain number given for a tensor, so a wrapped one goes back as a number
        plain = hole.dtype is None or hole.wrapped
        return hole.kind(1) if plain else torch.zeros((), dtype=hole.dtype)

    args = fill(call.args, lambda h: metas[h.index], scalar)
    kwargs = fill(call.kwargs, lambda h: metas[h.index], scalar)
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    return call.family.op(*args, **kwargs)


def _body(
    call: Call, metas: list[torch.Tensor], wanted: list[Any], notes: dict[str, Any]
) -> Callable[..., list[Any]]:
    """The function of (bases…, scalars…, rng state): new bases, then results, then the rng state."""
    family, count = call.family, len(call.bases)
    op, lowering = family.op, family.lowering
    assert lowering is not None
    meta_args = lower.bind(op, lower.with_numbers(call.args, metas), lower.with_numbers(call.kwargs, metas))

    def fn(*flat: Any) -> list[Any]:
        bases, rest = list(flat[:count]), list(flat[count:])
        state = rest.pop() if lowering.rng else None
        key, after = key_and_next(state) if state is not None else (None, None)
        tensors = [views.read(bases[p], x) for p, x in zip(call.places, call.layouts, strict=True)]
        values = lower.bind(
            op, lower.with_arrays(call.args, tensors, rest), lower.with_arrays(call.kwargs, tensors, rest)
        )
        for name in family.outs:
            values.pop(name, None)
        if family.base is not None:
            out = lower.foreach(op, family.base, lowering, meta_args, values, key)
        else:
            out = lower.apply(op, lowering, meta_args, values, key)
        leaves = lower.flatten(out)
        outputs = _write(call, bases, leaves, notes)
        outputs += _finish(leaves[notes["written"] :], wanted, notes)
        return outputs if after is None else [*outputs, after]

    return fn


def _holes(tree: Any) -> list[int]:
    if isinstance(tree, TensorHole):
        return [tree.index]
    if isinstance(tree, list | tuple):
        return [i for t in tree for i in _holes(t)]
    return []


def _written(call: Call) -> list[int]:
    """The tensor holes that the call writes, in schema order."""
    bound = lower.bind(call.family.op, call.args, call.kwargs)
    return [i for name in call.family.writes for i in _holes(bound.get(name))]


def _write(call: Call, bases: list[Any], leaves: list[Any], notes: dict[str, Any]) -> list[Any]:
    """Store the leading results through the mutated arguments' layouts; returns the new bases."""
    holes = _written(call)
    pairs = list(zip(holes, leaves, strict=False))
    if call.family.hidden:
        bound = lower.bind(call.family.op, call.args, call.kwargs)
        names = [i for n in call.family.hidden for i in _holes(bound.get(n))]
        hidden = leaves[len(leaves) - len(call.family.hidden) :]
        pairs = [(i, v) for i, v in zip(names, hidden, strict=False) if v is not None]
    touched: dict[int, Any] = {}
    for hole, value in pairs:
        layout, place = call.layouts[hole], call.places[hole]
        value = jnp.broadcast_to(jnp.asarray(value).astype(layout.np_dtype), layout.shape)
        touched[place] = views.write(touched.get(place, bases[place]), layout, value)
    notes["places"] = tuple(touched)
    notes["written"] = len(holes)
    return list(touched.values())


def _finish(leaves: list[Any], wanted: list[Any], notes: dict[str, Any]) -> list[Any]:
    """Cast results to torch's dtypes and lay them out in torch's stride order."""
    results: list[Result | None] = []
    outputs = []
    for i, meta in enumerate(wanted):
        leaf = leaves[i] if i < len(leaves) else None
        if leaf is None or meta is None:
            results.append(None)
            continue
        array = jnp.asarray(leaf)
        result = _describe(meta, array)
        if array.shape != result.shape and array.size == 0:
            # batch norm in evaluation: CPU saves empty statistics, torch's meta kernel says otherwise
            result = Result(buffer_layout(array.shape, result.layout.dtype), array.shape, None)
        if array.shape != result.shape:
            raise RuntimeError(f"lowering gave shape {array.shape}, torch wants {result.shape}")
        array = array.astype(result.layout.np_dtype)
        if result.strides is not None:
            order = dense_order(result.shape, result.strides)
            assert order is not None
            array = array.transpose(order)
        results.append(result)
        outputs.append(array)
    notes["results"] = results
    return outputs


def _describe(meta: Any, array: Any) -> Result:
    if not isinstance(meta, torch.Tensor):  # no meta kernel: the lowering's own shape and dtype
        from torchtpu.tensors.dtypes import to_torch

        return Result(buffer_layout(array.shape, to_torch(array.dtype)), array.shape, None)
    shape, strides = tuple(meta.shape), tuple(meta.stride())
    order = dense_order(shape, strides)
    dense_wanted = strides != contiguous_strides(shape) and not meta.is_contiguous() and 0 not in shape
    if order is None or not dense_wanted:
        return Result(buffer_layout(shape, meta.dtype), shape, None)
    return Result(buffer_layout(tuple(shape[i] for i in order), meta.dtype), shape, strides)


def _cpu_error(call: Call) -> Exception | None:
    """The error that CPU raises for the same shapes and dtypes; its words are what users know."""

    def host(hole: TensorHole) -> torch.Tensor:
        layout = call.layouts[hole.index]
        if layout.nbytes > 2**26:
            return torch.zeros((), dtype=layout.dtype).expand(layout.shape)
        return torch.zeros(layout.shape, dtype=layout.dtype)

    def scalar(hole: ScalarHole) -> Any:
        return torch.zeros((), dtype=hole.dtype) if hole.dtype and not hole.wrapped else hole.kind(1)

    kwargs = fill(call.kwargs, host, scalar)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    try:
        call.family.op(*fill(call.args, host, scalar), **kwargs)
    except Exception as error:
        return error
    return None


# some meta kernels read an attribute of an optional tensor that is None (the LSTM cell without a bias)
_NO_META = (NotImplementedError, AttributeError, DataDependentOutputException, DynamicOutputShapeException)


class _Unknown:
    """Stands for a result without a meta kernel."""


def _wanted(call: Call, metas: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """The result tree of torch's meta kernel and its fresh (not aliasing) leaves."""
    returns = call.family.op._schema.returns
    try:
        tree = _run_meta(call, metas)
    except _NO_META:
        tree = tuple(_Unknown() for r in returns if r.alias_info is None)
        tree = tree[0] if len(tree) == 1 else tree
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        same = _cpu_error(call)
        raise (same or error) from None
    fresh = [r.alias_info is None for r in returns]
    parts = tree if isinstance(tree, tuple) and len(returns) > 1 else (tree,)
    wanted = [leaf for part, new in zip(parts, fresh, strict=False) if new for leaf in lower.flatten(part)]
    return tree, wanted


def build(call: Call) -> Entry:
    """Compile ``call``; raises torch's own error for bad shapes or dtypes, `HostOnly` if it must run there."""
    family = call.family
    lowering = family.lowering
    assert lowering is not None
    if lowering.host:
        raise HostOnly
    metas = _metas(call)
    tree, wanted = _wanted(call, metas)
    notes: dict[str, Any] = {}
    fn = _body(call, _metas(call), wanted, notes)
    avals = [jax.ShapeDtypeStruct(b.shape, b.np_dtype) for b in call.bases]
    avals += [jax.ShapeDtypeStruct((), SCALAR_DTYPE[k], weak_type=True) for k in call.kinds]
    if lowering.rng:
        avals.append(jax.ShapeDtypeStruct((4,), np.uint32))
    donate = {p for p in (call.places[h] for h in _written(call)) if not call.shared[p]}
    name = op_name(family.op).replace("::", "_").replace(".", "_")
    try:
        program = programs.build(name, fn, avals, tuple(donate))
    except (jax.errors.NonConcreteBooleanIndexError, jax.errors.ConcretizationTypeError) as error:
        raise HostOnly from error
    entry = Entry(name, program, notes["places"], notes["results"], _shape(call, tree, wanted), lowering.rng)
    entry.call = call
    only = entry.results[0] if len(entry.results) == 1 else None
    complete = program.kept == tuple(range(len(avals)))
    entry.direct = (
        not entry.writes and not entry.rng and only is not None and only.strides is None and complete
    )
    entry.execute, entry.handlers = program.execute, program.handlers
    return entry


def _shape(call: Call, tree: Any, wanted: list[Any]) -> Any:
    """How the flat results are returned: ``single``, or a list of ("new" | argument name | list length)."""
    returns = call.family.op._schema.returns
    plan: list[Any] = []
    parts = tree if isinstance(tree, tuple) and len(returns) > 1 else (tree,)
    for spec, part in zip(returns, parts, strict=False):
        if spec.alias_info is not None:
            plan.append(_aliased(call, spec))
        else:
            plan.append(len(part) if isinstance(part, list | tuple) else None)
    return plan


def _aliased(call: Call, spec: Any) -> str:
    sets = spec.alias_info.before_set
    for arg in call.family.op._schema.arguments:
        if arg.alias_info is not None and arg.alias_info.before_set & sets:
            return str(arg.name)
    return call.family.writes[0]
