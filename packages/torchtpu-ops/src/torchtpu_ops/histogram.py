"""Lowerings that count into bins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_ops._pack import pack

Array = jax.Array
NumpyArray = np.ndarray[Any, Any]


@pack.lowering("aten::histc")
def histc(self: Array, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    """Counts in equal bins; equal bounds stand for the range of the data."""
    wide = jnp.float64 if self.dtype == jnp.float64 else jnp.float32
    x = self.ravel().astype(wide)
    low, high = jnp.asarray(min).astype(wide), jnp.asarray(max).astype(wide)
    if x.size:
        whole = low == high
        low, high = jnp.where(whole, x.min(), low), jnp.where(whole, x.max(), high)
    flat = low == high
    low, high = jnp.where(flat, low - 1, low), jnp.where(flat, high + 1, high)
    inside = (x >= low) & (x <= high)
    at = jnp.minimum(((x - low) / (high - low) * bins).astype(jnp.int32), bins - 1)
    return jnp.zeros(bins, wide).at[jnp.where(inside, at, bins)].add(1, mode="drop")


@pack.lowering("aten::bincount", host=True)
def bincount(self: NumpyArray, weights: NumpyArray | None = None, minlength: int = 0) -> NumpyArray:
    """Counts, or sums of weights, of each whole number."""
    out = np.bincount(self, weights, minlength)
    if weights is None:
        return out.astype(np.int64)
    return out.astype(np.float32 if weights.dtype == np.float32 else np.float64)


def _outer(points: Array, limits: list[Any] | None, axis: int) -> tuple[Array, Array]:
    """The lowest and highest edge; equal ones are moved apart."""
    if limits is not None:
        low, high = (jnp.asarray(v).astype(points.dtype) for v in limits[2 * axis : 2 * axis + 2])
    elif points.size == 0:
        low, high = jnp.zeros((), points.dtype), jnp.ones((), points.dtype)
    else:
        low, high = jnp.min(points[:, axis]), jnp.max(points[:, axis])
    flat = low == high
    return jnp.where(flat, low - 0.5, low), jnp.where(flat, high + 0.5, high)


def _counts(points: Array, edges: list[Array], weight: Array | None, density: bool) -> Array:
    """Weights of ``points`` (one a row) summed into the cells between ``edges``; the last ones are closed."""
    cells = tuple(e.size - 1 for e in edges)
    flat, inside = jnp.zeros(points.shape[0], jnp.int64), jnp.ones(points.shape[0], bool)
    for axis, edge in enumerate(edges):
        x = points[:, axis]
        at = jnp.searchsorted(edge, x, side="right") - 1
        flat = flat * cells[axis] + jnp.where(x == edge[-1], cells[axis] - 1, at)
        inside &= (x >= edge[0]) & (x <= edge[-1])
    amount = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1)
    total = int(np.prod(cells))
    counts = jnp.zeros(total, points.dtype).at[jnp.where(inside, flat, total)].add(amount, mode="drop")
    counts = counts.reshape(cells)
    if not density:
        return counts
    counts = counts / jnp.sum(counts)
    for axis, edge in enumerate(edges):
        counts = counts / jnp.diff(edge).reshape([-1 if i == axis else 1 for i in range(len(edges))])
    return counts


@pack.lowering("aten::_histogramdd_bin_edges")
def histogramdd_bin_edges(
    self: Array,
    bins: list[int],
    *,
    range: list[Any] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    """Edges of equal bins along each coordinate."""
    points = self.reshape(-1, self.shape[-1])
    return [
        jnp.linspace(*_outer(points, range, axis), count + 1, dtype=self.dtype)
        for axis, count in enumerate(bins)
    ]


@pack.lowering("aten::_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(
    self: Array, bins: list[Array], *, weight: Array | None = None, density: bool = False
) -> Array:
    """Counts of points in the cells of a grid."""
    return _counts(self.reshape(-1, self.shape[-1]), bins, weight, density)


@pack.lowering("aten::_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(
    self: Array,
    bins: list[int],
    *,
    range: list[Any] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    """Counts of points in the cells of an even grid."""
    return histogramdd_from_bin_tensors(
        self, histogramdd_bin_edges(self, bins, range=range), weight=weight, density=density
    )


@pack.lowering("aten::histogram.bins_tensor")
def histogram(
    self: Array, bins: Array, *, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    """Counts between given edges."""
    return _counts(self.reshape(-1, 1), [bins], weight, density), bins


@pack.lowering("aten::histogram.bin_ct")
def histogram_even(
    self: Array,
    bins: int = 100,
    *,
    range: list[Any] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Counts in even bins."""
    (edges,) = histogramdd_bin_edges(self.reshape(-1, 1), [bins], range=range)
    return histogram(self, edges, weight=weight, density=density)
