"""Strided views as slices, reshapes and transposes: how programs read and write them.

A buffer of shape B is split into factors so that each dimension of the view runs along one factor
axis with step 1. Then reading is reshape, slice, transpose, broadcast, and writing is the reverse with
one ``dynamic_update_slice``. Layouts that do not factor are read and written through an index array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.tensors.layout import Layout, contiguous_strides


@dataclass(frozen=True)
class Axis:
    """One group of buffer dimensions: ``size`` elements padded to ``padded``, split into ``factors``.

    ``starts`` and ``counts`` select along each factor; ``dims`` names the view dimension that runs
    along it, or -1.
    """

    size: int
    padded: int
    factors: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    dims: tuple[int, ...]


def factor(shape: tuple[int, ...], layout: Layout) -> list[Axis] | None:
    """Split a buffer of ``shape`` for ``layout`` (both in elements of one dtype), or None."""
    moving = sorted(
        (i for i, (n, s) in enumerate(zip(layout.shape, layout.strides, strict=True)) if n != 1 and s != 0),
        key=lambda i: -layout.strides[i],
    )
    groups = [n for n in shape if n != 1] or [1]
    while True:
        axes = _try(groups, layout, moving)
        if axes is not None or len(groups) == 1:
            return axes
        groups = [groups[0] * groups[1], *groups[2:]] if len(groups) == 2 else _merge(groups, layout, moving)


def _merge(groups: list[int], layout: Layout, moving: list[int]) -> list[int]:
    """Join the innermost group that fails with its outer neighbour."""
    for i in range(len(groups) - 1, 0, -1):
        if _axis_for(i, groups, layout, moving) is None:
            return [*groups[: i - 1], groups[i - 1] * groups[i], *groups[i + 1 :]]
    return [groups[0] * groups[1], *groups[2:]]


def _try(groups: list[int], layout: Layout, moving: list[int]) -> list[Axis] | None:
    axes = [_axis_for(i, groups, layout, moving) for i in range(len(groups))]
    return None if any(a is None for a in axes) else [a for a in axes if a is not None]


def _axis_for(index: int, groups: list[int], layout: Layout, moving: list[int]) -> Axis | None:
    """Factor one group for those view dimensions whose stride lies in it."""
    strides = contiguous_strides(tuple(groups))
    step, size = strides[index], groups[index]
    outer = step * size
    dims = [d for d in moving if step <= layout.strides[d] and (layout.strides[d] < outer or index == 0)]
    local = [layout.strides[d] // step for d in dims]
    if any(layout.strides[d] % step for d in dims):
        return None
    start = layout.offset // step if index == 0 else layout.offset % outer // step
    reach = start + sum((layout.shape[d] - 1) * s for d, s in zip(dims, local, strict=True))
    if reach >= size:
        return None
    return _split(size, start, dims, local, layout)


def _split(size: int, start: int, dims: list[int], local: list[int], layout: Layout) -> Axis | None:
    bounds = [*local, 1]
    if any(a % b for a, b in zip(bounds, bounds[1:], strict=False)):
        return None
    if len(set(local)) != len(local):
        return None
    top = bounds[0]
    padded = -(-size // top) * top
    factors, starts, counts, owners = [padded // top], [start // top], [1], [-1]
    if dims:
        counts, owners = [layout.shape[dims[0]]], [dims[0]]
    rest = start % top
    for i, (outer, inner) in enumerate(zip(bounds, bounds[1:], strict=False)):
        factors.append(outer // inner)
        starts.append(rest // inner)
        rest %= inner
        dim = dims[i + 1] if i + 1 < len(dims) else -1
        counts.append(layout.shape[dim] if dim >= 0 else 1)
        owners.append(dim)
    if any(s + c > f for s, c, f in zip(starts, counts, factors, strict=True)):
        return None
    return Axis(size, padded, tuple(factors), tuple(starts), tuple(counts), tuple(owners))


def _flat_indices(layout: Layout) -> np.ndarray:
    index = np.full((), layout.offset, np.int64)
    for n, s in zip(layout.shape, layout.strides, strict=True):
        index = index[..., None] + np.arange(n, dtype=np.int64) * s
    return index


def _expand(buffer: jax.Array, axes: list[Axis]) -> jax.Array:
    """The buffer padded and reshaped to all factors."""
    x = buffer.reshape(tuple(a.size for a in axes))
    if any(a.padded != a.size for a in axes):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, a.padded - a.size, 0) for a in axes])
    return x.reshape(tuple(f for a in axes for f in a.factors))


def _lazily(x: jax.Array, layout: Layout) -> jax.Array:
    """The lazy conjugate and negative of ``layout``; each undoes itself."""
    x = jnp.conj(x) if layout.conj else x
    return -x if layout.neg else x


def read(buffer: jax.Array, layout: Layout) -> jax.Array:
    """The elements that ``layout`` selects from its base buffer, in the view's shape."""
    return buffer if layout.canonical else _lazily(_read(buffer, layout), layout)


def _read(buffer: jax.Array, layout: Layout) -> jax.Array:
    x = reinterpret(buffer, layout.np_dtype)
    if math.prod(layout.shape) == 0:
        return jnp.zeros(layout.shape, layout.np_dtype)
    axes = factor(x.shape, layout)
    if axes is None:
        return jnp.take(x.reshape(-1), _flat_indices(layout).reshape(-1)).reshape(layout.shape)
    starts = [s for a in axes for s in a.starts]
    counts = [c for a in axes for c in a.counts]
    owners = [d for a in axes for d in a.dims]
    x = lax.slice(_expand(x, axes), starts, [s + c for s, c in zip(starts, counts, strict=True)])
    kept = [d for d in owners if d >= 0]
    x = x.reshape([layout.shape[d] for d in kept])
    x = x.transpose(sorted(range(len(kept)), key=kept.__getitem__))
    return lax.broadcast_in_dim(x, layout.shape, sorted(kept))


def write(buffer: jax.Array, layout: Layout, value: jax.Array) -> jax.Array:
    """The base buffer after ``value`` (in the view's shape and dtype) was stored through ``layout``."""
    if layout.canonical:
        return value
    if math.prod(layout.shape) == 0:
        return buffer
    value = _lazily(value, layout)
    x = reinterpret(buffer, layout.np_dtype)
    axes = factor(x.shape, layout)
    if axes is None or any(n > 1 and s == 0 for n, s in zip(layout.shape, layout.strides, strict=True)):
        flat = x.reshape(-1).at[_flat_indices(layout).reshape(-1)].set(value.reshape(-1))
        return reinterpret(flat.reshape(x.shape), buffer.dtype).reshape(buffer.shape)
    owners = [d for a in axes for d in a.dims]
    counts = [c for a in axes for c in a.counts]
    kept = [d for d in owners if d >= 0]
    moved = value.reshape([layout.shape[d] for d in sorted(kept)])
    moved = moved.transpose([sorted(kept).index(d) for d in kept]).reshape(counts)
    full = _expand(x, axes)
    if all(c == f for c, f in zip(counts, full.shape, strict=True)):
        out = moved
    else:
        out = lax.dynamic_update_slice(full, moved, [s for a in axes for s in a.starts])
    out = out.reshape(tuple(a.padded for a in axes))
    if any(a.padded != a.size for a in axes):
        out = lax.slice(out, [0] * len(axes), [a.size for a in axes])
    return reinterpret(out.reshape(x.shape), buffer.dtype).reshape(buffer.shape)


def reinterpret(x: jax.Array, dtype: Any) -> jax.Array:
    """The same bytes as another dtype; a change of item size gives a one-dimensional array."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if x.dtype.itemsize == dtype.itemsize and x.dtype.kind != "c" and dtype.kind != "c":
        return _from_plain(_to_plain(x), dtype)
    plain = _to_plain(x)
    unit = min(plain.dtype.itemsize, _plain_dtype(dtype).itemsize)
    bits = lax.bitcast_convert_type(plain, f"uint{8 * unit}").reshape(-1)
    return _group(bits, dtype)


def _plain_dtype(dtype: np.dtype) -> np.dtype:
    """The non-complex, non-bool dtype that carries ``dtype``'s bits."""
    if dtype.kind == "c":
        return np.dtype(f"float{4 * dtype.itemsize}")
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def _to_plain(x: jax.Array) -> jax.Array:
    if x.dtype.kind == "c":
        pairs = jnp.stack([x.real, x.imag], -1)
        return pairs.reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else pairs
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def _from_plain(x: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype.kind == "b":
        return x != 0
    if dtype.kind == "c":
        pairs = x.reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    return lax.bitcast_convert_type(x, dtype)


def _group(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    """One-dimensional ``dtype`` values out of one-dimensional unsigned ``bits``."""
    plain = _plain_dtype(dtype)
    ratio = plain.itemsize // bits.dtype.itemsize
    if ratio > 1:
        bits = bits.reshape(-1, ratio)
    return _from_plain(lax.bitcast_convert_type(bits, plain).reshape(-1), dtype)
