"""What each operation of JAX does with padded operands: the table, element-wise work, and moves of data."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.compile.align import alike
from torchtpu.compile.pad_walk import Rule, Step
from torchtpu.compile.padded import (
    Axis,
    Padded,
    Refused,
    Size,
    Sizes,
    array_shape,
    common,
    joined,
    masked,
    reshaped,
    split,
    varies,
    whole,
)

ELEMENTWISE = """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
    clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1
    floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min
    mul ne neg nextafter not or polygamma population_count pow random_gamma_grad real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta"""
Fill = Any


def elementwise(step: Step) -> list[Padded]:
    """Padding stays padding."""
    if not alike(step.small.params, step.large.params):
        raise Refused(f"{step.large.primitive.name} has parameters that vary")
    values, sizes = common(step.numbers, step.ins, step.sizes), step.sizes
    shape = jnp.broadcast_shapes(*[v.array.shape for v in values])
    axes: list[Axis] = []
    for axis, size in enumerate(step.outs[0]):
        full = [
            v.axes[axis]
            for v, s, given in zip(values, sizes, step.ins, strict=True)
            if s and s[axis] != (1, 1) and given.axes[axis]
        ]
        axes.append(full[0] if full else () if varies(size) else ((1, 1),))
    results = step.bind([jnp.broadcast_to(v.array, shape) for v in values])
    return [Padded(r, tuple(axes)) for r in results]


def broadcast_in_dim(step: Step) -> list[Padded]:
    """New dimensions are constant."""
    value, places = step.ins[0], step.params["broadcast_dimensions"]
    axes: list[Axis] = []
    for axis, size in enumerate(step.outs[0]):
        if axis in places and step.sizes[0][places.index(axis)] == size:
            axes.append(value.axes[places.index(axis)])
        else:
            axes.append(() if varies(size) else (size,))
    lifted = [1] * sum(max(1, len(a)) for a in axes)
    for source, axis in enumerate(places):
        target = sum(max(1, len(a)) for a in axes[:axis])
        for offset, place in enumerate(value.places(source)):
            lifted[target + offset] = value.array.shape[place]
    array = value.array.reshape(lifted)
    shape = [n if n != 1 else w for n, w in zip(lifted, array_shape(axes), strict=True)]
    return [Padded(jnp.broadcast_to(array, shape), tuple(axes))]


def reshape(step: Step) -> list[Padded]:
    """Dimensions are cut and joined where that keeps padding apart, else elements are gathered."""
    if step.params.get("dimensions") is not None:
        raise Refused("a reshape with an order of its own")
    return [reshaped(step.numbers, step.ins[0], step.sizes[0], step.outs[0])]


def transpose(step: Step) -> list[Padded]:
    """Parts move with their dimension."""
    value, order = step.ins[0], step.params["permutation"]
    array = value.array.transpose([p for axis in order for p in value.places(axis)])
    return [Padded(array, tuple(value.axes[axis] for axis in order))]


def squeeze(step: Step) -> list[Padded]:
    """Dimensions of one element go."""
    gone = {d % len(step.sizes[0]) for d in step.params["dimensions"]}
    value = step.ins[0]
    array = value.array.reshape(
        [n for axis in range(len(value.axes)) if axis not in gone for n in _shape(value, axis)]
    )
    return [Padded(array, tuple(a for i, a in enumerate(value.axes) if i not in gone))]


def _shape(value: Padded, axis: int) -> list[int]:
    return [value.array.shape[p] for p in value.places(axis)]


def iota(step: Step) -> list[Padded]:
    """Counts along one dimension are the same in front."""
    sizes, along = step.outs[0], step.params["dimension"]
    shape = [n if i == along or not varies((m, n)) else 1 for i, (m, n) in enumerate(sizes)]
    array = lax.broadcasted_iota(step.params["dtype"], shape, along)
    return [Padded(array, tuple((s,) if i == along or not varies(s) else () for i, s in enumerate(sizes)))]


def cut(
    step: Step, value: Padded, sizes: Sizes, axis: int, start: Size, out: Size, stride: int = 1
) -> Padded:
    """Elements ``start``, ``start + stride``, … of one dimension."""
    if sizes[axis] == out and start == (0, 0) and stride == 1:
        return value
    value = joined(step.numbers, value, axis, sizes[axis])
    place = value.start(axis)
    if varies(start):
        index = step.numbers.number(*start) + jnp.arange(out[1]) * stride
        array = jnp.take(value.array, index, axis=place, mode="clip")
    else:
        last = min(start[1] + out[1] * stride, sizes[axis][1])
        array = lax.slice_in_dim(value.array, start[1], last, stride, place)
        missing = out[1] - array.shape[place]
        if missing:
            pads = [(0, missing if i == place else 0) for i in range(array.ndim)]
            array = jnp.pad(array, pads)
    return Padded(array, (*value.axes[:axis], (out,), *value.axes[axis + 1 :]))


def slice_(step: Step) -> list[Padded]:
    """A slice that starts at a varying place is gathered."""
    starts = step.pairs("start_indices")
    strides = step.pairs("strides") if step.params["strides"] is not None else [(1, 1)] * len(starts)
    value, sizes = step.ins[0], step.sizes[0]
    for axis, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        if varies(stride):
            raise Refused("a slice with a varying step")
        if start[1] >= sizes[axis][1] and step.outs[0][axis][1]:
            raise Refused("a slice that begins behind the values")
        value = cut(step, value, sizes, axis, start, step.outs[0][axis], stride[1])
    return [value]


def split_(step: Step) -> list[Padded]:
    """Slices side by side."""
    axis, out = step.params["axis"], []
    begin: Size = (0, 0)
    for size in step.pairs("sizes"):
        out.append(cut(step, step.ins[0], step.sizes[0], axis, begin, size))
        begin = (begin[0] + size[0], begin[1] + size[1])
    return out


def pad(step: Step) -> list[Padded]:
    """The padding that a program asks for goes right behind the values."""
    value, fill = step.ins[0], step.ins[1].array
    small, large = step.small.params["padding_config"], step.params["padding_config"]
    array_config = []
    for axis, (a, b) in enumerate(zip(small, large, strict=True)):
        if a[0] != b[0] or a[2] != b[2]:
            raise Refused("padding that varies in front")
        if varies(step.sizes[0][axis]) or varies(step.outs[0][axis]):
            if min(a[1], b[1]) < 0 and a[1] != b[1]:
                raise Refused("a cut that varies")
            value = joined(step.numbers, value, axis, step.sizes[0][axis])
            value = masked(step.numbers, value, [axis], fill)
        value = joined(step.numbers, value, axis, step.sizes[0][axis])
        array_config.append(tuple(b))
    return [whole(lax.pad(value.array, fill, array_config), step.outs[0])]


def concatenate(step: Step) -> list[Padded]:
    """Each operand is written over the padding of the one before."""
    axis = step.params["dimension"]
    values = step.plain()
    sizes = [s[axis] for s in step.sizes]
    if not any(map(varies, sizes[:-1])):
        array = lax.concatenate([v.array for v in values], axis)
        return [whole(array, step.outs[0])]
    array = jnp.zeros([s[1] for s in step.outs[0]], values[0].array.dtype)
    for k, value in enumerate(values):
        offset = sum((step.numbers.number(*s) for s in sizes[:k]), jnp.zeros((), jnp.int64))
        array = lax.dynamic_update_slice_in_dim(array, value.array, offset, axis)
    return [whole(array, step.outs[0])]


def rev(step: Step) -> list[Padded]:
    """The last value comes first."""
    value = step.ins[0]
    for axis in step.params["dimensions"]:
        size = step.sizes[0][axis]
        if not value.axes[axis]:
            continue
        value = joined(step.numbers, value, axis, size)
        index = step.numbers.number(*size) - 1 - jnp.arange(size[1])
        array = jnp.take(value.array, index, axis=value.start(axis), mode="clip")
        value = Padded(array, value.axes)
    return [value]


def lowest(dtype: Any) -> Fill:
    """The value below all."""
    if dtype == np.bool_:
        return False
    return -math.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Fill:
    """The value above all."""
    if dtype == np.bool_:
        return True
    return math.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


FILLS: dict[str, Any] = {
    "sum": lambda t: 0, "prod": lambda t: 1, "max": lowest, "min": highest, "or": lambda t: 0,
    "xor": lambda t: 0, "and": lambda t: True if t == np.bool_ else -1,
}  # fmt: skip


def _written(step: Step, axes: Any) -> Padded:
    value = step.ins[0]
    for axis in axes:
        if not value.axes[axis]:
            value = split(value, axis, (step.sizes[0][axis],))
    return value


def reduce(kind: str) -> Rule:
    """A reduction sees its neutral element in the padding."""

    def rule(step: Step) -> list[Padded]:
        axes = step.params["axes"]
        value = _written(step, axes)
        value = masked(step.numbers, value, axes, FILLS[kind](value.array.dtype))
        places = tuple(p for axis in axes for p in value.places(axis))
        (array,) = step.bind([value.array], axes=places)
        return [Padded(array, tuple(a for i, a in enumerate(value.axes) if i not in axes))]

    return rule


def arg(kind: str) -> Rule:
    """The first of the best is never in the padding, which comes last."""

    def rule(step: Step) -> list[Padded]:
        (axis,) = step.params["axes"]
        value = joined(step.numbers, step.ins[0], axis, step.sizes[0][axis])
        value = masked(step.numbers, value, [axis], FILLS[kind](value.array.dtype))
        (array,) = step.bind([value.array], axes=(value.start(axis),))
        return [Padded(array, tuple(a for i, a in enumerate(value.axes) if i != axis))]

    return rule


def cumulative(kind: str) -> Rule:
    """A scan from the front never sees the padding, one from the back sees the neutral element."""

    def rule(step: Step) -> list[Padded]:
        axis = step.params["axis"]
        value = joined(step.numbers, step.ins[0], axis, step.sizes[0][axis])
        value = masked(step.numbers, value, [axis], FILLS[kind](value.array.dtype))
        (array,) = step.bind([value.array], axis=value.start(axis))
        return [Padded(array, value.axes)]

    return rule


def _table() -> dict[str, Rule]:
    from torchtpu.compile import pad_heavy

    rules: dict[str, Rule] = dict.fromkeys(ELEMENTWISE.split(), elementwise)
    rules |= {
        "broadcast_in_dim": broadcast_in_dim, "reshape": reshape, "transpose": transpose, "squeeze": squeeze,
        "iota": iota, "slice": slice_, "split": split_, "pad": pad, "concatenate": concatenate, "rev": rev,
        "argmax": arg("max"), "argmin": arg("min"), "cumsum": cumulative("sum"), "cumprod": cumulative("prod"),
        "cummax": cumulative("max"), "cummin": cumulative("min"), "cumlogsumexp": cumulative("max"),
    }  # fmt: skip
    rules |= {f"reduce_{kind}": reduce(kind) for kind in FILLS}
    return rules | pad_heavy.RULES


RULES = _table()
