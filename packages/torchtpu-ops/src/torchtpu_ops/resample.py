"""Upsampling as products with small interpolation matrices, and sampling on a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
Taps = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


def _ratio(size: int, out: int, scale: float | None, align: bool) -> float:
    """Source steps per output step."""
    if align:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def _nearest(size: int, out: int, scale: float | None, align: bool, offset: float = 0.0) -> Taps:
    """One source per output; torch finds it in single precision."""
    step = np.float32(_ratio(size, out, scale, False))
    at = np.floor((np.arange(out, dtype=np.float32) + np.float32(offset)) * step).astype(np.int64)
    return np.clip(at, 0, size - 1)[:, None], np.ones((out, 1))


def _exact(size: int, out: int, scale: float | None, align: bool) -> Taps:
    return _nearest(size, out, scale, align, 0.5)


def _source(size: int, out: int, scale: float | None, align: bool) -> np.ndarray[Any, Any]:
    step = _ratio(size, out, scale, align)
    at = np.arange(out)
    return at * step if align else (at + 0.5) * step - 0.5


def _linear(size: int, out: int, scale: float | None, align: bool) -> Taps:
    """Two neighbours, weighted by distance."""
    at = np.maximum(_source(size, out, scale, align), 0)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    part = np.clip(at - low, 0, 1)
    return np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - part, part], 1)


def _cubic_weight(distance: Any, a: float = -0.75) -> Any:
    """The cubic convolution kernel at a distance of 0 to 2, for NumPy and JAX alike."""
    d = abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return near * (d <= 1) + far * ((d > 1) & (d < 2))


def _cubic(size: int, out: int, scale: float | None, align: bool) -> Taps:
    """Four neighbours; those beyond the edge repeat it."""
    at = _source(size, out, scale, align)
    low = np.floor(at).astype(np.int64)
    near = low[:, None] + np.arange(-1, 3)
    return np.clip(near, 0, size - 1), _cubic_weight(at[:, None] - near)


def _smooth(
    size: int, out: int, scale: float | None, align: bool, kernel: Callable[..., Any], width: int
) -> Taps:
    """Antialiased: the kernel stretched over all sources that an output covers."""
    step = _ratio(size, out, scale, align)
    stretch = max(step, 1.0)
    centre = (np.arange(out) + 0.5) * step
    reach = width * stretch
    low = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + reach + 0.5).astype(np.int64), size)
    near = low[:, None] + np.arange(int((high - low).max()))
    weights = kernel((near - centre[:, None] + 0.5) / stretch) * (near < high[:, None])
    return np.minimum(near, size - 1), weights / weights.sum(1, keepdims=True)


def _linear_aa(size: int, out: int, scale: float | None, align: bool) -> Taps:
    return _smooth(size, out, scale, align, lambda d: np.maximum(1 - abs(d), 0), 1)


def _cubic_aa(size: int, out: int, scale: float | None, align: bool) -> Taps:
    return _smooth(size, out, scale, align, lambda d: _cubic_weight(d, -0.5), 2)


def _lanczos_aa(size: int, out: int, scale: float | None, align: bool) -> Taps:
    return _smooth(size, out, scale, align, lambda d: np.sinc(d) * np.sinc(d / 3) * (abs(d) < 3), 3)


def _resize(x: Array, axis: int, taps: Taps) -> Array:
    """Weighted sum of a few sources per output, or a plain copy of one."""
    at, weights = taps
    out, size = at.shape[0], x.shape[axis]
    if at.shape[1] == 1:
        times = out // size if size else 0
        if times * size == out and (at[:, 0] == np.arange(out) // times).all():
            return jnp.repeat(x, times, axis) if times > 1 else x
        return jnp.take(x, at[:, 0], axis)
    shape = (out,) + (1,) * (x.ndim - 1 - axis)
    total = jnp.zeros((), x.dtype)
    for k in range(at.shape[1]):
        total = total + jnp.take(x, at[:, k], axis) * weights[:, k].astype(x.dtype).reshape(shape)
    return total


def _unresize(grad: Array, axis: int, taps: Taps, size: int) -> Array:
    """The transpose of ``_resize`` as a product with its matrix."""
    at, weights = taps
    matrix = np.zeros((at.shape[0], size))
    np.add.at(matrix, (np.arange(at.shape[0])[:, None], at), weights)
    product = jnp.tensordot(grad, matrix.astype(grad.dtype), ([axis], [0]), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(product, -1, axis)


def _wide(x: Array) -> Array:
    """Interpolation computes in a float at least."""
    return x if x.dtype in (jnp.float32, jnp.float64) else x.astype(jnp.float32)


def _register(name: str, rank: int, taps: Callable[..., Taps], has_align: bool) -> None:
    """Forward and gradient of one mode in ``rank`` dimensions."""

    def split(rest: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, list[float | None]]:
        align, given = (bool(rest[0]), rest[1:]) if has_align else (False, rest)
        scales = [*given, *(None,) * (rank - len(given))]
        return align, scales

    def forward(self: Array, output_size: list[int], *rest: Any, **named: Any) -> Array:
        align, scales = split(rest, named)
        x = self if not has_align else _wide(self)
        for i, (out, scale) in enumerate(zip(output_size, scales, strict=True)):
            if has_align and out == x.shape[2 + i] and (align or scale is None):
                continue
            x = _resize(x, 2 + i, taps(x.shape[2 + i], out, scale, align))
        if self.dtype == jnp.uint8 and has_align:
            return jnp.clip(jnp.round(x), 0, 255).astype(jnp.uint8)
        return x.astype(self.dtype)

    def backward(
        grad_output: Array, output_size: list[int], input_size: list[int], *rest: Any, **named: Any
    ) -> Array:
        align, scales = split(rest, named)
        grad = _wide(grad_output)
        for i, (out, scale) in enumerate(zip(output_size, scales, strict=True)):
            size = input_size[2 + i]
            grad = _unresize(grad, 2 + i, taps(size, out, scale, align), size)
        return grad.astype(grad_output.dtype)

    pack.lowering(f"aten::{name}", static=_SCALES)(forward)
    pack.lowering(f"aten::{name}_backward", static=_SCALES)(backward)


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, _nearest, False)
    _register(f"_upsample_nearest_exact{_rank}d", _rank, _exact, False)
for _name, _rank, _taps in (
    ("upsample_linear1d", 1, _linear),
    ("upsample_bilinear2d", 2, _linear),
    ("upsample_trilinear3d", 3, _linear),
    ("upsample_bicubic2d", 2, _cubic),
    ("_upsample_bilinear2d_aa", 2, _linear_aa),
    ("_upsample_bicubic2d_aa", 2, _cubic_aa),
    ("_upsample_lanczos2d_aa", 2, _lanczos_aa),
):
    _register(_name, _rank, _taps, True)


def _unnormalized(coordinate: Array, size: int, align: bool) -> Array:
    return (coordinate + 1) / 2 * (size - 1) if align else ((coordinate + 1) * size - 1) / 2


def _confined(at: Array, size: int, padding: int, align: bool) -> Array:
    """Coordinates beyond the edge brought back: kept for zeros, clipped for border, mirrored."""
    if padding == 2:
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return jnp.zeros_like(at)
        away = jnp.abs(at - low)
        turns, rest = jnp.floor(away / span), jnp.mod(away, span)
        at = jnp.where(jnp.mod(turns, 2) == 0, rest, span - rest) + low
    return at if padding == 0 else jnp.clip(at, 0, size - 1)


def _pixels(image: Array, at: list[Array], valid: Array) -> Array:
    """Values of one image ``(c, ...)`` at whole coordinates, zero where not valid."""
    inside = [jnp.clip(a, 0, n - 1).astype(jnp.int32) for a, n in zip(at, image.shape[1:], strict=True)]
    for a, n in zip(at, image.shape[1:], strict=True):
        valid = valid & (a >= 0) & (a <= n - 1)
    return jnp.where(valid, image[(slice(None), *inside)], 0)


def _corners(
    places: list[Array], taps: range, weight: Callable[[Array], Array]
) -> list[tuple[list[Array], Array]]:
    """Neighbours of fractional places with the product of their weights."""
    found: list[tuple[list[Array], Array]] = [([], jnp.ones(()))]
    for place in places:
        near = [jnp.floor(place) + t for t in taps]
        found = [(at + [n], w * weight(place - n)) for at, w in found for n in near]
    return found


def _sample(image: Array, grid: Array, mode: int, padding: int, align: bool) -> Array:
    """One image ``(c, ...)`` at one grid ``(..., rank)`` whose last entry is the first dimension."""
    sizes = image.shape[1:]
    raw = [_unnormalized(grid[..., -1 - i], n, align) for i, n in enumerate(sizes)]
    if mode == 2:

        def place(at: Array, n: int) -> Array:
            return _confined(at, n, padding, align) if padding else at

        total = jnp.zeros((), image.dtype)
        for at, weight in _corners(raw, range(-1, 3), _cubic_weight):
            moved = [jnp.round(place(a, n)) if padding else a for a, n in zip(at, sizes, strict=True)]
            total = total + _pixels(image, moved, jnp.asarray(True)) * weight
        return total
    places = [_confined(a, n, padding, align) for a, n in zip(raw, sizes, strict=True)]
    if mode == 1:
        return _pixels(image, [jnp.round(p) for p in places], jnp.asarray(True))
    total = jnp.zeros((), image.dtype)
    for at, weight in _corners(places, range(2), lambda d: 1 - jnp.abs(d)):
        total = total + _pixels(image, at, jnp.asarray(True)) * weight
    return total


@pack.lowering("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(
    input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    """Images sampled at normalized coordinates."""

    def one(image: Array, place: Array) -> Array:
        return _sample(image, place, interpolation_mode, padding_mode, align_corners)

    return jax.vmap(one)(_wide(input), _wide(grid)).astype(input.dtype)


@pack.lowering("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
) -> tuple[Array | None, Array | None]:
    """The gradients of the images and of the coordinates."""

    def forward(image: Array, place: Array) -> Array:
        return grid_sampler(image, place, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(forward, input, grid)
    grad_input, grad_grid = pull(grad_output)
    return (grad_input if output_mask[0] else None), (grad_grid if output_mask[1] else None)
