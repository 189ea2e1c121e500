"""Arrays that are larger than the values they hold, and the moves that keep the padding out of the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.compile.align import Pair

Size = tuple[int, int]  # of one dimension in the small and in the large program
Sizes = tuple[Size, ...]
Axis = tuple[
    Size, ...
]  # the parts that a dimension consists of; none where the values do not change along it


class Refused(Exception):
    """No rule proves that padding cannot reach the values of an operation; ``node`` names the graph's."""

    node: str = ""


@dataclass(frozen=True)
class Padded:
    """A value whose ``array`` has the large program's sizes.

    Each part of a dimension holds its values first and padding, which may be anything, after them. A
    dimension of a size that varies may be split (4·n, held as 4 by n), or be one element that stands for all.
    """

    array: Any
    axes: tuple[Axis, ...]

    def start(self, axis: int) -> int:
        """The array's dimension where ``axis`` begins."""
        return sum(max(1, len(a)) for a in self.axes[:axis])

    def places(self, axis: int) -> range:
        """The array's dimensions that make up ``axis``."""
        first = self.start(axis)
        return range(first, first + max(1, len(self.axes[axis])))


def varies(size: Size) -> bool:
    """Whether the sizes differ."""
    return size[0] != size[1]


def whole(array: Any, sizes: Sizes) -> Padded:
    """An array that is not split."""
    return Padded(array, tuple((s,) for s in sizes))


class Numbers:
    """The numbers of one call that vary, as traced scalars."""

    def __init__(self, order: dict[Pair, int], integers: jax.Array, floats: jax.Array) -> None:
        self._order, self._arrays = order, {int: integers, float: floats}
        # sizes and the parts that must make them up, also at sizes that are seen later
        self.products: set[tuple[Size, tuple[Size, ...]]] = set()

    def number(self, small: Any, large: Any) -> Any:
        """A number of the program: the one that both have, or the call's."""
        if small == large:
            return large
        place = self._order.get((type(large), small, large))
        if place is None:
            raise Refused(f"a number that is {small} and {large} is not one of the program's")
        return self._arrays[type(large)][place]

    def product(self, sizes: Sequence[Size]) -> Any:
        """How many elements these dimensions have."""
        return math.prod(self.number(*s) for s in sizes)


def array_shape(axes: Sequence[Axis]) -> tuple[int, ...]:
    """The shape of an array with these dimensions."""
    return tuple(n for axis in axes for n in ([p[1] for p in axis] or [1]))


def _with(value: Padded, axis: int, array: Any, parts: Axis) -> Padded:
    return Padded(array, (*value.axes[:axis], parts, *value.axes[axis + 1 :]))


def split(value: Padded, axis: int, parts: Axis) -> Padded:
    """``value`` with the constant dimension ``axis`` written out."""
    axes = (*value.axes[:axis], parts, *value.axes[axis + 1 :])
    lifted = list(value.array.shape)
    first = value.start(axis)
    lifted[first : first + 1] = [1] * len(parts)
    return Padded(jnp.broadcast_to(value.array.reshape(lifted), array_shape(axes)), axes)


def joined(numbers: Numbers, value: Padded, axis: int, size: Size) -> Padded:
    """``value`` with ``axis`` in one part, its values in front."""
    parts = value.axes[axis]
    if len(parts) == 1:
        return value
    if not parts:
        return split(value, axis, (size,))
    first = value.start(axis)
    shape = value.array.shape
    flat = value.array.reshape((*shape[:first], -1, *shape[first + len(parts) :]))
    rest, place, stride = jnp.arange(size[1]), jnp.zeros((), jnp.int64), 1
    for part in reversed(parts):
        count = jnp.maximum(numbers.number(*part), 1)
        place, rest, stride = place + rest % count * stride, rest // count, stride * part[1]
    return _with(value, axis, jnp.take(flat, place, axis=first, mode="clip"), (size,))


def all_joined(numbers: Numbers, value: Padded, sizes: Sizes) -> Padded:
    """``value`` with every dimension in one part."""
    for i, size in enumerate(sizes):
        value = joined(numbers, value, i, size)
    return value


def masked(numbers: Numbers, value: Padded, axes: Sequence[int], fill: Any) -> Padded:
    """``value`` with ``fill`` in the padding of ``axes``, none of which is constant."""
    array, inside = value.array, None
    for axis in axes:
        for place, part in zip(value.places(axis), value.axes[axis], strict=False):
            if varies(part):
                here = lax.broadcasted_iota(np.int64, array.shape, place) < numbers.number(*part)
                inside = here if inside is None else inside & here
    if inside is None:
        return value
    return Padded(jnp.where(inside, array, jnp.asarray(fill, array.dtype)), value.axes)


def common(numbers: Numbers, values: Sequence[Padded], sizes: Sequence[Sizes]) -> list[Padded]:
    """Operands of one element-wise operation with dimensions alike, or of size 1."""
    rank = max((len(s) for s in sizes), default=0)
    out = list(values)
    for axis in range(rank):
        full = [k for k, s in enumerate(sizes) if s and s[axis] != (1, 1) and out[k].axes[axis]]
        if len({out[k].axes[axis] for k in full}) > 1:
            for k in full:
                out[k] = joined(numbers, out[k], axis, sizes[k][axis])
        parts = out[full[0]].axes[axis] if full else ()
        for k, given in enumerate(sizes):
            if given and k not in full:
                out[k] = _thin(out[k], axis, max(1, len(parts)))
    return out


def _thin(value: Padded, axis: int, count: int) -> Padded:
    """A dimension of one element as ``count`` of them."""
    shape, first = list(value.array.shape), value.start(axis)
    shape[first : first + max(1, len(value.axes[axis]))] = [1] * count
    return _with(value, axis, value.array.reshape(shape), ((1, 1),) * count)


def regroup(numbers: Numbers, parts: Sequence[Size], sizes: Sizes) -> list[list[Size]] | None:
    """Cut and join ``parts`` into dimensions of ``sizes``, in order; None where a cut would mix in padding."""
    made: set[tuple[Size, tuple[Size, ...]]] = set()
    rest = [p for p in parts if p != (1, 1)][::-1]
    out: list[list[Size]] = []
    for size in sizes:
        need, got = size, []
        while need != (1, 1):
            if not rest:
                return None
            part = rest.pop()
            if all(p and n % p == 0 for n, p in zip(need, part, strict=True)):
                got.append(part)
                need = (need[0] // part[0], need[1] // part[1])
                continue
            if any(not n or p % n for n, p in zip(need, part, strict=True)):
                return None
            left = (part[0] // need[0], part[1] // need[1])
            if varies(left):
                return None
            made.add((part, (need, left)))
            got.append(need)
            rest.append(left)
            need = (1, 1)
        made.add((size, tuple(got)))
        out.append(_merged(got))
    if rest:
        return None
    numbers.products |= made
    return out


def _merged(parts: list[Size]) -> list[Size]:
    """Parts of a dimension, each with the fixed ones behind it."""
    out: list[Size] = []
    for part in parts:
        if out and not varies(part):
            out[-1] = (out[-1][0] * part[0], out[-1][1] * part[1])
        else:
            out.append(part)
    return out or [(1, 1)]


def reshaped(numbers: Numbers, value: Padded, before: Sizes, after: Sizes) -> Padded:
    """The same elements in order as dimensions of sizes ``after``."""
    for axis, parts in enumerate(value.axes):
        if not parts:  # a constant dimension is one element; written out unless it stays one
            value = split(value, axis, (before[axis],))
    parts = tuple(p for axis in value.axes for p in axis)
    groups = regroup(numbers, parts, after) if 0 not in value.array.shape else None
    if groups is not None:
        axes = tuple(map(tuple, groups))
        return Padded(value.array.reshape(array_shape(axes)), axes)
    return _gathered(numbers, all_joined(numbers, value, before), before, after)


def _gathered(numbers: Numbers, value: Padded, before: Sizes, after: Sizes) -> Padded:
    """A reshape element by element."""
    shape = tuple(s[1] for s in after)
    flat: Any = jnp.zeros(shape, np.int64)
    for axis in range(len(after)):
        flat = flat + lax.broadcasted_iota(np.int64, shape, axis) * numbers.product(after[axis + 1 :])
    place: Any = 0
    for axis, size in enumerate(before):
        index = flat // jnp.maximum(numbers.product(before[axis + 1 :]), 1)
        index = index % jnp.maximum(numbers.number(*size), 1)
        place = place * size[1] + index
    return whole(jnp.take(value.array.reshape(-1), place, mode="clip").reshape(shape), after)
