"""Makes the cached entry of one call: result metadata, the program, and how results are wrapped."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from torchtpu.dispatch import lower
from torchtpu.dispatch.corrections import CORRECTIONS, ONE_DEVICE
from torchtpu.dispatch.host_layout import as_read, host_order
from torchtpu.dispatch.schema import Family, op_name
from torchtpu.dispatch.template import ScalarHole, TensorHole, fill
from torchtpu.runtime import client, precision
from torchtpu.runtime import program as programs
from torchtpu.runtime.program import Program
from torchtpu.runtime.rewrite import safe_updates
from torchtpu.runtime.transfer import SCALAR_DTYPE
from torchtpu.tensors import views
from torchtpu.tensors.dtypes import to_torch
from torchtpu.tensors.layout import Layout, buffer_layout, contiguous_strides
from torchtpu.tensors.random import key_and_next
from torchtpu.tensors.storage import dense_order


class HostOnly(Exception):
    """The call's result depends on data in a way that XLA cannot express."""


@dataclass
class Call:
    """What one key stands for.

    ``places`` maps tensor hole → index of its storage among the program's inputs; ``layouts`` is by hole.
    """

    family: Family
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layouts: list[Layout]
    places: list[int]
    kinds: list[type]
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


@dataclass(eq=False)
class Entry:
    """A traced call: its jaxpr over (storages' buffers…, numbers…, random state).

    The outputs are the new buffers of the storages that ``writes`` lists, then the results, then the
    next random state. ``simple`` says that there is one output, row-major; ``precision`` is that of
    its matrix products where it matters.
    """

    name: str
    closed: Any
    avals: list[Any]
    writes: tuple[int, ...]
    results: list[Result | None]
    shape: Any
    rng: bool
    simple: bool
    programs: dict[tuple[int, ...], Program] = field(default_factory=dict)
    function: Any = None
    numbers: int = 0
    call: Call | None = None

    def __post_init__(self) -> None:
        self.outputs = len(self.closed.jaxpr.outvars)
        self.precision = precision.current() if precision.matters(self.closed.jaxpr) else None
        # what the call does, alike in every process
        self.mark = zlib.crc32(f"{self.name} {self.closed.in_avals} {self.closed.out_avals}".encode())

    def __str__(self) -> str:
        """The operator with its layouts, kinds of numbers and static arguments."""
        if self.call is None:
            return self.name
        call = self.call

        def show(tree: Any) -> str:
            if isinstance(tree, list | tuple):
                return f"[{', '.join(map(show, tree))}]"
            if isinstance(tree, TensorHole):
                return str(call.layouts[tree.index])
            return tree.kind.__name__ if isinstance(tree, ScalarHole) else repr(tree)

        named = [f"{k}={show(v)}" for k, v in call.kwargs.items()]
        return f"{op_name(call.family.op)}({', '.join([show(a) for a in call.args] + named)})"

    def program(self, donate: tuple[int, ...]) -> Program:
        """The compiled call, taking over the memory of the storages in ``donate``."""
        found = self.programs.get(donate)
        if found is None:
            found = self.programs[donate] = programs.compile(self.name, self.closed, self.avals, donate)
        return found


def _metas(call: Call) -> list[torch.Tensor]:
    return [torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta") for x in call.layouts]


def _run_meta(call: Call, metas: list[torch.Tensor]) -> Any:
    """torch's own shape, dtype and stride rules; raises what they raise."""

    def scalar(hole: ScalarHole) -> Any:
        # torch wraps a plain number given for a tensor, so a wrapped one goes back as a number
        plain = hole.dtype is None or hole.wrapped
        return hole.kind(1) if plain else torch.zeros((), dtype=hole.dtype, device=where)

    where = "meta" if call.family.op in ONE_DEVICE else "cpu"
    args = fill(call.args, lambda h: metas[h.index], scalar)
    kwargs = fill(call.kwargs, lambda h: metas[h.index], scalar)
    if isinstance(kwargs.get("device"), torch.device):
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
        values = as_read(lowering.op, values, meta_args)
        for name in family.outs:
            values.pop(name, None)
        if family.base is not None:
            out = lower.foreach(op, family.base, lowering, meta_args, values, key)
        else:
            out = lower.apply(op, lowering, meta_args, values, key)
        leaves = lower.flatten(out)
        outputs = _write(call, bases, leaves, notes)
        outputs += _finish(call, leaves[notes["written"] :], wanted, notes)
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


def _check_written(call: Call, metas: list[torch.Tensor]) -> None:
    """Raise what CPU raises for a result that its target cannot take; meta kernels know neither."""
    family = call.family
    if family.lowering is None or family.base is not None:
        return
    args, kwargs = lower.with_numbers(call.args, metas), lower.with_numbers(call.kwargs, metas)
    bound = lower.bind(family.op, args, kwargs)
    for hole in _written(call):
        lower.check_result(family.op, family.lowering, bound, call.layouts[hole].dtype)
        checks = family.lowering.promote is not None or family.lowering.rng
        if checks or op_name(family.op).startswith(_CHECKING):
            _check_overlap(call, hole)


# besides element-wise and random operators; those that fill do not mind
_CHECKING = ("aten::copy_", "aten::scatter", "aten::cum", "aten::masked_", "aten::put_", "aten::take")
_ONE = " to a single memory location. Please clone() the tensor before performing the operation."


def _check_overlap(call: Call, hole: int) -> None:
    target = call.layouts[hole]
    if 0 in target.shape:
        return
    if any(n > 1 and s == 0 for n, s in zip(target.shape, target.strides, strict=True)):
        raise RuntimeError(
            f"unsupported operation: more than one element of the written-to tensor refers{_ONE}"
        )
    for layout, place in zip(call.layouts, call.places, strict=True):
        if place == call.places[hole] and layout is not target and _partly(target, layout):
            both = "some elements of the input tensor and the written-to tensor refer"
            raise RuntimeError(f"unsupported operation: {both}{_ONE}")


def _partly(a: Layout, b: Layout) -> bool:
    """Whether two dense layouts of one buffer share elements without being the same."""
    if dense_order(a.shape, a.strides) is None or dense_order(b.shape, b.strides) is None:
        return False  # torch finds that too hard, and so lets it pass
    first, second = ((x.offset * x.dtype.itemsize, x.offset * x.dtype.itemsize + x.nbytes) for x in (a, b))
    if first == second:
        return a.strides != b.strides
    return first[0] < second[1] and second[0] < first[1]


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
        if jnp.size(value) == 0 and 0 not in layout.shape:
            continue  # statistics that batch norm does not keep in evaluation
        value = jnp.broadcast_to(jnp.asarray(value).astype(layout.np_dtype), layout.shape)
        touched[place] = views.write(touched.get(place, bases[place]), layout, value)
    notes["places"] = tuple(touched)
    notes["written"] = len(holes)
    return list(touched.values())


def _finish(call: Call, leaves: list[Any], wanted: list[Any], notes: dict[str, Any]) -> list[Any]:
    """Cast results to torch's dtypes and lay them out in torch's stride order."""
    results: list[Result | None] = []
    outputs = []
    if len(wanted) == 1 and isinstance(wanted[0], _Unknown) and wanted[0].listed:
        wanted = wanted * len(leaves)
    for i, meta in enumerate(wanted):
        leaf = leaves[i] if i < len(leaves) else None
        if leaf is None or meta is None:
            results.append(None)
            continue
        array = jnp.asarray(leaf)
        result = _describe(meta, array, host_order(op_name(call.family.op), call, i, array.shape))
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


def _describe(meta: Any, array: Any, order: tuple[int, ...] | None) -> Result:
    known = isinstance(meta, torch.Tensor)
    # without a meta kernel it is the lowering's own shape and dtype
    shape = tuple(meta.shape) if known else array.shape
    dtype = meta.dtype if known else to_torch(array.dtype)
    if order is not None:
        return _ordered(shape, dtype, order)
    if not known:
        return Result(buffer_layout(shape, dtype), shape, None)
    strides = tuple(meta.stride())
    order = dense_order(shape, strides)
    dense_wanted = strides != contiguous_strides(shape) and not meta.is_contiguous() and 0 not in shape
    if order is None or not dense_wanted:
        return Result(buffer_layout(shape, meta.dtype), shape, None)
    return Result(buffer_layout(tuple(shape[i] for i in order), meta.dtype), shape, strides)


def _ordered(shape: tuple[int, ...], dtype: torch.dtype, order: tuple[int, ...]) -> Result:
    sizes = tuple(shape[i] for i in order)
    strides = tuple(contiguous_strides(sizes)[order.index(i)] for i in range(len(shape)))
    plain = strides == contiguous_strides(shape)
    return Result(buffer_layout(sizes, dtype), shape, None if plain else strides)


def _cpu_error(call: Call) -> Exception | None:
    """The error that CPU raises for the same shapes and dtypes; its words are what users know."""
    if call.family.lowering is not None and call.family.lowering.schema is not None:
        return None  # a new operator's shapes come from the function that raised

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


@dataclass(frozen=True)
class _Unknown:
    """Stands for a result, or a list of them, without a meta kernel."""

    listed: bool


def _wanted(call: Call, metas: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """The result tree of torch's meta kernel and its fresh (not aliasing) leaves."""
    returns = call.family.op._schema.returns
    if isinstance(call.kwargs.get("device"), torch.device):
        client.check_index(call.kwargs["device"])
    try:
        tree = _run_meta(call, metas)
        correct = CORRECTIONS.get(call.family.op)
        if correct is not None:
            tree = correct(tree, metas, call.args, call.kwargs)
    except _NO_META:
        tree = tuple(_Unknown("List" in str(r.type)) for r in returns if r.alias_info is None)
        tree = tree[0] if len(tree) == 1 else tree
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if call.family.lowering is not None and call.family.lowering.schema is not None:
            raise  # a new operator's shapes come from the function that raised
        same = _cpu_error(call)
        if same is None:
            raise HostOnly(str(error)) from error  # the meta kernel refuses what the CPU takes
        raise same from None
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
    _check_written(call, metas)
    notes: dict[str, Any] = {}
    fn = _body(call, _metas(call), wanted, notes)
    avals = [jax.ShapeDtypeStruct(b.shape, b.np_dtype) for b in call.bases]
    avals += [jax.ShapeDtypeStruct((), SCALAR_DTYPE[k], weak_type=True) for k in call.kinds]
    if lowering.rng:
        avals.append(jax.ShapeDtypeStruct((4,), np.uint32))
    try:
        closed = programs.trace(fn, avals)
    except (jax.errors.NonConcreteBooleanIndexError, jax.errors.ConcretizationTypeError) as error:
        raise HostOnly from error
    except (TypeError, ValueError, IndexError) as error:  # jax's words for what torch's meta kernel lets pass
        raise (_cpu_error(call) or error) from None
    why = programs.host_only(closed)
    if why is not None:
        raise HostOnly(why)
    results, writes = notes["results"], notes["places"]
    if any(len({x for p, x in zip(call.places, call.layouts, strict=True) if p == w}) > 1 for w in writes):
        closed = safe_updates(closed)  # what is written may be read elsewhere in the same storage
    first = results[0] if len(results) == 1 else None
    plan = _shape(call, tree, len(results))
    bare = plan == [None]  # not a list of one tensor
    single = bare and first is not None and first.strides is None and first.layout.nbytes > 0
    name = op_name(family.op).replace("::", "_").replace(".", "_")
    return Entry(
        name, closed, avals, writes, results, plan, lowering.rng,
        simple=not lowering.rng and ((not writes and single) or (writes == (0,) and not results)),
        numbers=len(call.kinds), call=call,
    )  # fmt: skip


def _shape(call: Call, tree: Any, count: int) -> Any:
    """How the flat results are returned: ``single``, or a list of ("new" | argument name | list length)."""
    returns = call.family.op._schema.returns
    plan: list[Any] = []
    parts = tree if isinstance(tree, tuple) and len(returns) > 1 else (tree,)
    for spec, part in zip(returns, parts, strict=False):
        if spec.alias_info is not None:
            plan.append(_aliased(call, spec))
        elif isinstance(part, _Unknown) and part.listed:
            plan.append(count)
        else:
            plan.append(len(part) if isinstance(part, list | tuple) else None)
    return plan


def _aliased(call: Call, spec: Any) -> str:
    sets = spec.alias_info.before_set
    for arg in call.family.op._schema.arguments:
        if arg.alias_info is not None and arg.alias_info.before_set & sets:
            return str(arg.name)
    return call.family.writes[0]
