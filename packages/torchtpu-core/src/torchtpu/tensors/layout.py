"""Interned descriptions of buffers and of strided views on them; compared by identity in keys."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtpu.tensors.dtypes import to_numpy


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides as torch gives them (a size of 0 counts as 1)."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Layout:
    """A view of a buffer: sizes, strides and offset in elements of ``dtype``.

    ``base`` is the buffer's own layout (itself for a canonical one). ``conj`` and ``neg`` are torch's
    lazy conjugate and negative: what is read or written is the conjugate, the negative of the bytes.
    """

    __slots__ = (
        "base", "canonical", "conj", "dtype", "nbytes", "neg", "np_dtype", "offset", "shape", "strides",
    )  # fmt: skip

    def __init__(
        self,
        base: Layout | None,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        flags: int = 0,
    ) -> None:
        self.conj, self.neg = bool(flags & 1), bool(flags & 2)
        self.base: Layout = base or self
        self.canonical = base is None
        self.shape, self.strides, self.offset, self.dtype = shape, strides, offset, dtype
        self.np_dtype = to_numpy(dtype)
        self.nbytes = math.prod(shape) * dtype.itemsize

    def __repr__(self) -> str:
        return f"{str(self.dtype)[6:]}{list(self.shape)}"


_buffers: dict[tuple[tuple[int, ...], torch.dtype], Layout] = {}
_views: dict[tuple[Any, ...], Layout] = {}


def buffer_layout(shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
    """The canonical layout of a row-major buffer."""
    found = _buffers.get((shape, dtype))
    if found is None:
        layout = Layout(None, tuple(shape), contiguous_strides(shape), 0, dtype)
        found = _buffers.setdefault((layout.shape, dtype), layout)
    return found


def tensor_layout(tensor: torch.Tensor, base: Layout) -> Layout:
    """The layout of ``tensor`` on a buffer of layout ``base``."""
    shape, dtype = tensor.shape, tensor.dtype
    flags = tensor.is_conj() + 2 * tensor.is_neg()
    if (
        dtype is base.dtype
        and shape == base.shape
        and not flags
        and tensor.is_contiguous()
        and not tensor.storage_offset()
    ):
        return base
    key = (base, shape, tensor.stride(), tensor.storage_offset(), dtype, flags)
    found = _views.get(key)
    if found is None:
        found = _views.setdefault(key, Layout(base, tuple(shape), key[2], key[3], dtype, flags))
    return found
