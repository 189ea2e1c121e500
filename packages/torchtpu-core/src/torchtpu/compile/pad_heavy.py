"""Padded operands of products, convolutions, windows, sorts, gathers and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from torchtpu.compile import pad_rules as basic
from torchtpu.compile.pad_walk import Rule, Step, sizes_of, walk
from torchtpu.compile.padded import (
    Padded,
    Refused,
    Size,
    all_joined,
    joined,
    masked,
    split,
    varies,
    whole,
)


def dot_general(step: Step) -> list[Padded]:
    """Padding of contracted dimensions is 0 on both sides, as 0 times NaN is NaN."""
    contract, batch = step.params["dimension_numbers"]
    left, right = step.ins
    left, right = _paired(step, left, right, (*contract[0], *batch[0]), (*contract[1], *batch[1]))
    sides = [masked(step.numbers, v, axes, 0) for v, axes in zip((left, right), contract, strict=True)]
    places = [
        tuple(tuple(p for axis in axes for p in v.places(axis)) for v, axes in zip(sides, pair, strict=True))
        for pair in (contract, batch)
    ]
    (array,) = step.bind([v.array for v in sides], dimension_numbers=tuple(places), out_sharding=None)
    axes = [left.axes[axis] for axis in batch[0]]
    for value, bound in ((left, (*contract[0], *batch[0])), (right, (*contract[1], *batch[1]))):
        axes += [a for i, a in enumerate(value.axes) if i not in bound]
    return [Padded(array, tuple(axes))]


def _paired(
    step: Step, left: Padded, right: Padded, first: Sequence[int], second: Sequence[int]
) -> tuple[Padded, Padded]:
    """Both operands with the paired dimensions held alike."""
    for i, j in zip(first, second, strict=True):
        a, b = left.axes[i], right.axes[j]
        if not a and not b:
            left, right = (
                split(v, k, (s[k],)) for v, k, s in zip((left, right), (i, j), step.sizes, strict=True)
            )
        elif not a:
            left = split(left, i, b)
        elif not b:
            right = split(right, j, a)
        elif a != b:
            left = joined(step.numbers, left, i, step.sizes[0][i])
            right = joined(step.numbers, right, j, step.sizes[1][j])
    return left, right


def _fronts(step: Step, name: str) -> None:
    if any(a[0] != b[0] for a, b in step.pairs(name)):
        raise Refused("padding that varies in front")


def _same(step: Step, *names: str) -> None:
    for name in names:
        if step.small.params[name] != step.params[name]:
            raise Refused(f"{name} varies")


def convolution(step: Step) -> list[Padded]:
    """Behind the values of a convolution are zeros, as its own padding is."""
    _fronts(step, "padding")
    _same(step, "window_strides", "lhs_dilation", "rhs_dilation", "feature_group_count", "batch_group_count")
    spec = step.params["dimension_numbers"]
    left, right = step.plain()
    if step.params["batch_group_count"] > 1 and varies(step.sizes[0][spec.lhs_spec[0]]):
        raise Refused("groups of a varying batch")
    if step.params["feature_group_count"] > 1 and varies(step.sizes[0][spec.lhs_spec[1]]):
        raise Refused("groups of varying features")
    left = masked(step.numbers, left, spec.lhs_spec[1:], 0)
    right = masked(step.numbers, right, spec.rhs_spec[1:], 0)
    (array,) = step.bind([left.array, right.array])
    return [whole(array, step.outs[0])]


def window(kind: str) -> Rule:
    """Windows see the neutral element behind the values."""

    def rule(step: Step) -> list[Padded]:
        _fronts(step, "padding")
        _same(step, "window_dimensions", "window_strides", "base_dilation", "window_dilation")
        value = step.plain()[0]
        rest = [i.array for i in step.ins[1:]]  # a general one gets its neutral element
        if len(rest) > 1:
            raise Refused("windows over several operands")
        fill = rest[0] if rest else basic.FILLS[kind](value.array.dtype)
        value = masked(step.numbers, value, range(len(value.axes)), fill)
        return [whole(step.bind([value.array, *rest])[0], step.outs[0])]

    return rule


def scatter_of_maxima(step: Step) -> list[Padded]:
    """Gradients of padding are 0."""
    _fronts(step, "padding")
    _same(step, "window_dimensions", "window_strides")
    source, operand = step.plain()
    every = range(len(source.axes))
    least = basic.lowest if "ge" in str(step.params["select_prim"]) else basic.highest
    source = masked(step.numbers, source, every, 0)
    operand = masked(step.numbers, operand, every, least(operand.array.dtype))
    return [whole(step.bind([source.array, operand.array])[0], step.outs[0])]


def sort(step: Step) -> list[Padded]:
    """A first key puts the padding last."""
    axis, values = step.params["dimension"], step.plain()
    size, arrays = step.sizes[0][axis], [v.array for v in values]
    if varies(size):
        behind = lax.broadcasted_iota(np.int64, arrays[0].shape, axis) >= step.numbers.number(*size)
        keys = [behind.astype(np.int8), *arrays]
        stable, count = step.params["is_stable"], step.params["num_keys"]
        results = list(lax.sort(keys, dimension=axis, is_stable=stable, num_keys=count + 1)[1:])
    else:
        results = step.bind(arrays)
    return [whole(r, s) for r, s in zip(results, step.outs, strict=True)]


def top_k(step: Step) -> list[Padded]:
    """Of equal elements the first counts, and padding comes last."""
    if step.small.params["k"] != step.params["k"]:
        raise Refused("k varies")
    axis = step.params.get("axis", len(step.sizes[0]) - 1) % len(step.sizes[0])
    (value,) = step.plain()
    value = masked(step.numbers, value, [axis], basic.lowest(value.array.dtype))
    return [whole(r, s) for r, s in zip(step.bind([value.array]), step.outs, strict=True)]


def _limits(step: Step, axes: Sequence[int], slices: Any) -> Any:
    """The last start of a slice along each indexed dimension."""
    sizes = step.sizes[0]
    last = [step.numbers.number(*sizes[a]) - slices[a] for a in axes]
    return jnp.stack([jnp.asarray(n) for n in last]).astype(np.int64)


def gather(step: Step) -> list[Padded]:
    """Indices are held to the values, not to the padding behind them."""
    spec, mode = step.params["dimension_numbers"], step.params["mode"]
    value, index = step.plain()
    slices = step.pairs("slice_sizes")
    indexed = spec.start_index_map
    if any(varies(slices[a]) for a in indexed):
        raise Refused("a gather of slices whose size varies")
    array = index.array
    if any(varies(step.sizes[0][a]) for a in indexed):
        last = _limits(step, indexed, [s[1] for s in slices])
        wide = array.astype(np.int64)
        if mode == lax.GatherScatterMode.FILL_OR_DROP:
            wide = jnp.where((wide >= 0) & (wide <= last), wide, -1)
        else:
            wide = jnp.clip(wide, 0, last)
        array = wide.astype(array.dtype if jnp.issubdtype(array.dtype, jnp.signedinteger) else np.int64)
    changed = {} if mode == lax.GatherScatterMode.FILL_OR_DROP else {"mode": lax.GatherScatterMode.CLIP}
    return [whole(step.bind([value.array, array], **changed)[0], step.outs[0])]


def scatter(step: Step) -> list[Padded]:
    """What padding would write is dropped."""
    spec, mode = step.params["dimension_numbers"], step.params["mode"]
    value, index, update = step.plain()
    windows = [a for a in range(len(step.sizes[2])) if a in spec.update_window_dims]
    if any(varies(step.sizes[2][a]) for a in windows):
        raise Refused("a scatter of slices whose size varies")
    axes = spec.scatter_dims_to_operand_dims
    inserted = {*spec.inserted_window_dims, *spec.operand_batching_dims}
    kept = [a for a in range(len(step.sizes[0])) if a not in inserted]
    extent = [1] * len(step.sizes[0])
    for place, axis in zip(windows, kept, strict=True):
        extent[axis] = step.sizes[2][place][1]
    wide = index.array.astype(np.int64)
    last = _limits(step, axes, extent)
    if mode == lax.GatherScatterMode.CLIP:
        wide = jnp.clip(wide, 0, last)
    wide = jnp.where((wide >= 0) & (wide <= last), wide, -1)
    rows = Padded(wide, (*[(s,) for s in step.sizes[1][:-1]], ((wide.shape[-1],) * 2,)))
    rows = masked(step.numbers, rows, range(len(step.sizes[1]) - 1), -1)
    (array,) = step.bind(
        [value.array, rows.array, update.array],
        mode=lax.GatherScatterMode.FILL_OR_DROP, indices_are_sorted=False,
        unique_indices=False,
    )  # fmt: skip
    return [whole(array, step.outs[0])]


def _starts(step: Step, given: Sequence[Padded], parts: Sequence[Size], why: str) -> list[Any]:
    """Where a part begins in each dimension of the first operand, held to its values."""
    starts = []
    for start, size, part in zip(given, step.sizes[0], parts, strict=True):
        if varies(part) and part != size:
            raise Refused(why)
        last = step.numbers.number(*size) - step.numbers.number(*part)
        starts.append(jnp.clip(start.array.astype(np.int64), 0, last))
    return starts


def dynamic_slice(step: Step) -> list[Padded]:
    """Starts are held to the values."""
    value = step.plain()[0]
    starts = _starts(step, step.ins[1:], step.outs[0], "a slice at a varying place of varying size")
    return [whole(lax.dynamic_slice(value.array, starts, [s[1] for s in step.outs[0]]), step.outs[0])]


def dynamic_update_slice(step: Step) -> list[Padded]:
    """Values alone are written, at places held to the values."""
    value, update = step.plain()[:2]
    starts = _starts(step, step.ins[2:], step.sizes[1], "an update of varying size")
    return [whole(lax.dynamic_update_slice(value.array, update.array, starts), step.outs[0])]


def matrices(step: Step) -> list[Padded]:
    """Linear algebra of fixed matrices in batches that vary."""
    for sizes in (*step.sizes, *step.outs):
        if any(map(varies, sizes[-2:])):
            raise Refused(f"{step.large.primitive.name} of matrices whose size varies")
    results = step.bind([v.array for v in step.plain()])
    return [whole(r, s) for r, s in zip(results, step.outs, strict=True)]


def fft(step: Step) -> list[Padded]:
    """Transforms of fixed length in batches that vary."""
    _same(step, "fft_lengths")
    count = len(step.params["fft_lengths"])
    if any(map(varies, step.sizes[0][-count:])):
        raise Refused("a transform whose length varies")
    return [whole(step.bind([v.array for v in step.plain()])[0], step.outs[0])]


def bitcast(step: Step) -> list[Padded]:
    """Another type of the same width, or of a last dimension that is fixed."""
    (value,) = step.plain()
    if len(step.sizes[0]) != len(step.outs[0]) and varies((*step.sizes[0], *step.outs[0])[-1]):
        raise Refused("bytes of a varying dimension")
    return [whole(step.bind([value.array])[0], step.outs[0])]


def scan(step: Step) -> list[Padded]:
    """A loop goes on without effect behind its last turn."""
    small, large = step.small.params, step.params
    consts, carried = large["num_consts"], large["num_carry"]
    length = small["length"], large["length"]
    values = step.plain()
    fixed, state, items = values[:consts], values[consts : consts + carried], values[consts + carried :]
    inner = list(map(sizes_of, small["jaxpr"].jaxpr.outvars, large["jaxpr"].jaxpr.outvars))

    def body(carry: Any, xs: Any) -> Any:
        turn, arrays = xs
        held = [Padded(a, s.axes) for a, s in zip(carry, state, strict=True)]
        given = [Padded(a, i.axes[1:]) for a, i in zip(arrays, items, strict=True)]
        out = walk(step.numbers, small["jaxpr"], large["jaxpr"], [*fixed, *held, *given])
        plain = [all_joined(step.numbers, v, s).array for v, s in zip(out, inner, strict=True)]
        if varies(length):
            on = turn < step.numbers.number(*length)
            plain[:carried] = [jnp.where(on, n, o) for n, o in zip(plain[:carried], carry, strict=True)]
        return plain[:carried], plain[carried:]

    turns = jnp.arange(length[1])
    last, stacked = lax.scan(
        body, [v.array for v in state], (turns, [v.array for v in items]), reverse=large["reverse"]
    )
    return [whole(v, s) for v, s in zip([*last, *stacked], step.outs, strict=True)]


def loop(step: Step) -> list[Padded]:
    """A loop over values whose sizes vary; its condition is a number."""
    small, large, values = step.small.params, step.params, step.plain()
    first, second = large["cond_nconsts"], large["body_nconsts"]
    tests, fixed, state = values[:first], values[first : first + second], values[first + second :]

    def held(carry: Any) -> list[Padded]:
        return [Padded(a, s.axes) for a, s in zip(carry, state, strict=True)]

    def check(carry: Any) -> Any:
        return walk(step.numbers, small["cond_jaxpr"], large["cond_jaxpr"], [*tests, *held(carry)])[0].array

    def body(carry: Any) -> Any:
        out = walk(step.numbers, small["body_jaxpr"], large["body_jaxpr"], [*fixed, *held(carry)])
        return [all_joined(step.numbers, v, s).array for v, s in zip(out, step.outs, strict=True)]

    results = lax.while_loop(check, body, [v.array for v in state])
    return [whole(v, s) for v, s in zip(results, step.outs, strict=True)]


def branch(step: Step) -> list[Padded]:
    """Each branch with padded operands."""
    pairs = zip(step.small.params["branches"], step.params["branches"], strict=True)
    index, *operands = step.plain()

    def run(small: core.ClosedJaxpr, large: core.ClosedJaxpr) -> Any:
        def call(*arrays: Any) -> list[Any]:
            given = [Padded(a, o.axes) for a, o in zip(arrays, operands, strict=True)]
            out = walk(step.numbers, small, large, given)
            return [all_joined(step.numbers, v, s).array for v, s in zip(out, step.outs, strict=True)]

        return call

    results = lax.switch(index.array, [run(a, b) for a, b in pairs], *[o.array for o in operands])
    return [whole(v, s) for v, s in zip(results, step.outs, strict=True)]


def stack(step: Step) -> list[Padded]:
    """A new dimension of fixed size."""
    return [whole(step.bind([v.array for v in step.plain()])[0], step.outs[0])]


MATRICES = """cholesky cholesky_update eig eigh hessenberg householder_product lu lu_pivots_to_permutation qr
    geqrf geqp3 schur svd triangular_solve tridiagonal tridiagonal_solve"""
SCATTERS = ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter_min", "scatter_max",
            "scatter-min", "scatter-max")  # fmt: skip
RULES: dict[str, Rule] = {
    "dot_general": dot_general, "conv_general_dilated": convolution, "sort": sort, "top_k": top_k,
    "gather": gather, "dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice,
    "reduce_window_sum": window("sum"), "reduce_window_max": window("max"), "reduce_window_min": window("min"),
    "reduce_window": window(""), "stack": stack,
    "select_and_scatter_add": scatter_of_maxima, "fft": fft, "bitcast_convert_type": bitcast, "scan": scan,
    "while": loop, "cond": branch, **dict.fromkeys(MATRICES.split(), matrices),
    **dict.fromkeys(SCATTERS, scatter),
}  # fmt: skip
