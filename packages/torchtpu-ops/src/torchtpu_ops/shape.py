"""Lowerings that rearrange, copy, pad and embed values without computing on them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array


def cast(x: Array, dtype: Any) -> Array:
    """``x`` in another dtype; a complex value loses its imaginary part without a warning."""
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return (x != 0) if jnp.dtype(dtype) == jnp.bool_ else x.real.astype(dtype)
    return x.astype(dtype)


@pack.lowering("aten::cat")
def cat(tensors: list[Array], dim: int = 0) -> Array:
    """Concatenate; torch skips empty 1-D tensors whatever the rank of the others."""
    kept = [t for t in tensors if t.shape != (0,)]
    return jnp.concatenate(kept, dim) if kept else jnp.concatenate(tensors, 0)


@pack.lowering("aten::stack")
def stack(tensors: list[Array], dim: int = 0) -> Array:
    """Join along a new dimension."""
    return jnp.stack(tensors, dim)


@pack.lowering("aten::repeat")
def repeat(self: Array, repeats: list[int]) -> Array:
    """Tile, with leading dimensions added for extra repeats."""
    return jnp.tile(self, tuple(repeats))


@pack.lowering("aten::flip")
def flip(self: Array, dims: list[int]) -> Array:
    """Reverse along ``dims``."""
    return lax.rev(self, [d % self.ndim for d in dims]) if self.ndim and dims else self


@pack.lowering("aten::roll")
def roll(self: Array, shifts: list[int] | int, dims: list[int] | int = ()) -> Array:  # type: ignore[assignment]
    """Rotate along ``dims``, or the flattened tensor."""
    shift = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        return jnp.roll(self.ravel(), shift[0]).reshape(self.shape)
    return jnp.roll(self, shift, axes)


@pack.lowering("aten::tril")
def tril(self: Array, diagonal: int = 0) -> Array:
    """The lower triangle, zeros elsewhere."""
    return jnp.tril(self, diagonal)


@pack.lowering("aten::triu")
def triu(self: Array, diagonal: int = 0) -> Array:
    """The upper triangle, zeros elsewhere."""
    return jnp.triu(self, diagonal)


@pack.lowering("aten::clone", "aten::lift")
def clone(self: Array) -> Array:
    """The same values in a new buffer."""
    return self


@pack.lowering("aten::copy")
def copy(self: Array, src: Array) -> Array:
    """``src`` broadcast and cast to ``self``."""
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


@pack.lowering("aten::_to_copy")
def to_copy(self: Array, *, dtype: Any = None) -> Array:
    """``self`` in another dtype."""
    return self if dtype is None else cast(self, dtype)


@pack.lowering("aten::constant_pad_nd")
def constant_pad_nd(self: Array, pad: list[int], value: Any = 0) -> Array:
    """Pad (or, where negative, crop) starting from the last dimension."""
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, jnp.asarray(value).astype(self.dtype), config)


def _diagonal_mask(rows: int, cols: int, offset: int) -> Array:
    row = lax.broadcasted_iota(jnp.int32, (rows, cols), 0)
    col = lax.broadcasted_iota(jnp.int32, (rows, cols), 1)
    return col - row == offset


def _on_diagonal(x: Array, rows: int, cols: int, offset: int) -> Array:
    """``x``'s last axis spread so that ``[..., i, j]`` on the diagonal holds its element."""
    if offset >= 0:
        spare = [(0, 0, 0)] * (x.ndim - 1) + [(0, rows - x.shape[-1], 0)]
        return lax.pad(x, jnp.zeros((), x.dtype), spare)[..., :, None]
    spare = [(0, 0, 0)] * (x.ndim - 1) + [(0, cols - x.shape[-1], 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), spare)[..., None, :]


@pack.lowering("aten::diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Matrices with ``self``'s last dimension on a diagonal."""
    n = self.shape[-1] + abs(offset)
    out = jnp.where(_diagonal_mask(n, n, offset), _on_diagonal(self, n, n, offset), jnp.zeros((), self.dtype))
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@pack.lowering("aten::diagonal_scatter")
def diagonal_scatter(self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """``self`` with ``src`` on a diagonal."""
    moved = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, cols = moved.shape[-2:]
    spread = _on_diagonal(src.astype(self.dtype), rows, cols, offset)
    out = jnp.where(_diagonal_mask(rows, cols, offset), spread, moved)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@pack.lowering("aten::diagonal_backward")
def diagonal_backward(grad_output: Array, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Array:
    """The gradient of ``diagonal``."""
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return diagonal_scatter(zeros, grad_output, offset, dim1, dim2)


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    low, high, _ = slice(start, end).indices(size)
    return low, max(low, high)


def _spread(src: Array, dim: int, low: int, step: int, size: int) -> Array:
    """Zeros with ``src`` at ``low``, ``low + step``, ... of a dimension of ``size``."""
    config = [(0, 0, 0)] * src.ndim
    config[dim] = (low, size - low - (src.shape[dim] - 1) * step - 1, step - 1)
    return lax.pad(src, jnp.zeros((), src.dtype), config)


@pack.lowering("aten::slice_scatter")
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """``self`` with ``src`` in the slice."""
    dim %= self.ndim
    size = self.shape[dim]
    low, high = _bounds(size, start, end)
    length = -(-(high - low) // step)
    shape = self.shape[:dim] + (length,) + self.shape[dim + 1 :]
    src = jnp.broadcast_to(src, shape).astype(self.dtype)
    if step == 1 or length == 0:
        return lax.dynamic_update_slice_in_dim(self, src, low, dim) if length else self
    spread = _spread(src, dim, low, step, size)
    at = lax.broadcasted_iota(jnp.int32, self.shape, dim) - low
    return jnp.where((at >= 0) & (at < high - low) & (at % step == 0), spread, self)


@pack.lowering("aten::narrow_copy")
def narrow_copy(self: Array, dim: int, start: int, length: int) -> Array:
    """A part of one dimension, in a buffer of its own."""
    first = start if start >= 0 else start + self.shape[dim]
    return lax.slice_in_dim(self, first, first + length, axis=dim)


@pack.lowering("aten::slice_backward")
def slice_backward(
    grad_output: Array, input_sizes: list[int], dim: int, start: int, end: int, step: int
) -> Array:
    """The gradient of ``slice``."""
    dim %= len(input_sizes)
    if not grad_output.shape[dim]:
        return jnp.zeros(tuple(input_sizes), grad_output.dtype)
    low, _ = _bounds(input_sizes[dim], start, end)
    return _spread(grad_output, dim, low, step, input_sizes[dim])


@pack.lowering("aten::select_scatter")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    """``self`` with ``src`` at one position."""
    dim %= self.ndim
    src = jnp.broadcast_to(jnp.expand_dims(src, dim), self.shape[:dim] + (1,) + self.shape[dim + 1 :])
    return lax.dynamic_update_slice_in_dim(self, src.astype(self.dtype), index % self.shape[dim], dim)


@pack.lowering("aten::select_backward")
def select_backward(grad_output: Array, input_sizes: list[int], dim: int, index: int) -> Array:
    """The gradient of ``select``."""
    return select_scatter(jnp.zeros(tuple(input_sizes), grad_output.dtype), grad_output, dim, index)


@pack.lowering("aten::as_strided_scatter")
def as_strided_scatter(
    self: Array, src: Array, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Array:
    """Contiguous ``self`` with ``src`` at the strided positions."""
    at = jnp.full((), storage_offset or 0, jnp.int64)
    for n, step in zip(size, stride, strict=True):
        at = at[..., None] + jnp.arange(n) * step
    flat = self.ravel().at[at.ravel()].set(src.ravel().astype(self.dtype))
    return flat.reshape(self.shape)


@pack.lowering("aten::unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: list[int], dim: int, size: int, step: int) -> Array:
    """The gradient of ``unfold``: windows cut into blocks of ``step``, then added shifted."""
    rank = len(input_sizes)
    if rank == 0:
        return grad_in.reshape(())
    dim %= rank
    grad = jnp.moveaxis(grad_in, dim, -2)
    count = grad.shape[-2]
    blocks = -(-size // step)
    keep = [(0, 0)] * (grad.ndim - 1)
    grad = jnp.pad(grad, [*keep, (0, blocks * step - size)])
    grad = grad.reshape(*grad.shape[:-1], blocks, step)
    parts = [jnp.pad(grad[..., b, :], [*keep[:-1], (b, blocks - 1 - b), (0, 0)]) for b in range(blocks)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    flat = total.reshape(*total.shape[:-2], (count + blocks - 1) * step)
    missing = input_sizes[dim] - flat.shape[-1]
    flat = jnp.pad(flat, [*keep[:-1], (0, missing)]) if missing > 0 else flat[..., : input_sizes[dim]]
    return jnp.moveaxis(flat, -1, dim)


@pack.lowering("aten::channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    """Interleave the channels of ``groups`` groups."""
    n, c, *rest = self.shape
    return self.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(self.shape)


@pack.lowering("aten::pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """Move blocks of channels into space."""
    *lead, c, h, w = self.shape
    r = upscale_factor
    x = self.reshape(math.prod(lead), c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(*lead, c // (r * r), h * r, w * r)


@pack.lowering("aten::pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """Move blocks of space into channels."""
    *lead, c, h, w = self.shape
    r = downscale_factor
    x = self.reshape(math.prod(lead), c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(*lead, c * r * r, h // r, w // r)


@pack.lowering("aten::im2col")
def im2col(
    self: Array, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> Array:
    """Sliding blocks as columns: one strided slice per kernel position."""
    x = self if self.ndim == 4 else self[None]
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = kernel_size, dilation, padding, stride
    x = jnp.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    n, c, h, w = x.shape
    oh, ow = (h - dh * (kh - 1) - 1) // sh + 1, (w - dw * (kw - 1) - 1) // sw + 1
    parts = [
        lax.slice(
            x,
            (0, 0, i * dh, j * dw),
            (n, c, i * dh + sh * (oh - 1) + 1, j * dw + sw * (ow - 1) + 1),
            (1, 1, sh, sw),
        )
        for i in range(kh)
        for j in range(kw)
    ]
    out = jnp.stack(parts, 2).reshape(n, c * kh * kw, oh * ow)
    return out if self.ndim == 4 else out[0]


@pack.lowering("aten::col2im")
def col2im(
    self: Array,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Array:
    """Columns summed back to their places: the transpose of ``im2col``."""
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    like = jax.ShapeDtypeStruct((*self.shape[:-2], channels, *output_size), self.dtype)
    (out,) = jax.linear_transpose(lambda x: im2col(x, kernel_size, dilation, padding, stride), like)(self)
    return out


@pack.lowering("aten::trace")
def trace(self: Array) -> Array:
    """The sum of the main diagonal."""
    wide = jnp.int64 if jnp.issubdtype(self.dtype, jnp.integer) or self.dtype == jnp.bool_ else None
    return jnp.trace(self, dtype=wide)


@pack.lowering("aten::rot90")
def rot90(self: Array, k: int = 1, dims: list[int] = (0, 1)) -> Array:  # type: ignore[assignment]
    """Turn by quarter circles in the plane of ``dims``."""
    return jnp.rot90(self, k, (dims[0], dims[1]))


@pack.lowering("aten::split_with_sizes_copy")
def split_with_sizes_copy(self: Array, split_sizes: list[int], dim: int = 0) -> list[Array]:
    """Pieces of the given sizes, each in a buffer of its own."""
    starts = [sum(split_sizes[:i]) for i in range(len(split_sizes))]
    return [lax.slice_in_dim(self, s, s + n, axis=dim) for s, n in zip(starts, split_sizes, strict=True)]
