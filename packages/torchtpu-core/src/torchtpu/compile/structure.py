"""Views and other operators that only move or name values: inside a functional graph a view is a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.dispatch.schema import overload
from torchtpu.tensors import views
from torchtpu.tensors.dtypes import to_numpy
from torchtpu.tensors.layout import Layout, buffer_layout
from torchtpu.tensors.storage import dense_order

Array = jax.Array
Sizes = Sequence[int]


class NotDense(Exception):
    """``as_strided`` of a value whose memory has no known order."""


def _same(x: Array, *_: Any, **__: Any) -> Array:
    return x


def _reshape(x: Array, size: Sizes, *_: Any) -> Array:
    return x.reshape(tuple(size))


def _view_dtype(x: Array, dtype: torch.dtype) -> Array:
    kind = to_numpy(dtype)
    if x.dtype.itemsize == kind.itemsize or x.ndim == 0:
        return views.reinterpret(x, kind).reshape(x.shape)
    last = x.shape[-1] * x.dtype.itemsize // kind.itemsize
    return views.reinterpret(x, kind).reshape((*x.shape[:-1], last))


def _expand(x: Array, size: Sizes, **_: Any) -> Array:
    lead = len(size) - x.ndim
    wanted = [x.shape[i - lead] if n == -1 else n for i, n in enumerate(size)]
    return jnp.broadcast_to(x, wanted)


def _swap(x: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


def _t(x: Array) -> Array:
    return x.T


def _permute(x: Array, dims: Sizes) -> Array:
    return jnp.transpose(x, tuple(dims))


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return lax.slice_in_dim(x, first, max(first, last), step, dim % x.ndim)


def _select(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index, dim % x.ndim, keepdims=False)


def _unsqueeze(x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


def _squeeze(x: Array, dim: int | Sizes | None = None) -> Array:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    unit = {d % x.ndim for d in dims if x.ndim and x.shape[d] == 1}
    return x.reshape([n for i, n in enumerate(x.shape) if i not in unit])


def _split_sizes(x: Array, sizes: Sizes, dim: int = 0) -> list[Array]:
    parts, start = [], 0
    for size in sizes:
        parts.append(lax.slice_in_dim(x, start, start + size, axis=dim % x.ndim))
        start += size
    return parts


def _split(x: Array, size: int, dim: int = 0) -> list[Array]:
    count = x.shape[dim]
    starts = range(0, count, size) if count else [0]
    return _split_sizes(x, [min(size, count - s) for s in starts], dim)


def _unbind(x: Array, dim: int = 0) -> list[Array]:
    return [_select(x, dim, i) for i in range(x.shape[dim])]


def _diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    if x.ndim == 0:
        return x.reshape(1)[:size]
    axis = dim % x.ndim
    starts = range(0, x.shape[axis] - size + 1, step)
    index = jnp.array([[s + i for i in range(size)] for s in starts], jnp.int32).reshape(len(starts), size)
    return jnp.moveaxis(jnp.take(x, index, axis=axis), axis + 1, -1)


def _as_real(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


def _as_complex(x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


# names with overloads, under which torch also has a `_copy` twin unless it is an alias of no effect
VIEWS: dict[str, Callable[..., Any]] = {
    "view": _reshape, "_unsafe_view": _reshape, "_reshape_alias": _reshape, "view.dtype": _view_dtype,
    "expand": _expand, "transpose.int": _swap, "t": _t, "permute": _permute, "slice.Tensor": _slice,
    "select.int": _select, "unsqueeze": _unsqueeze, "squeeze": _squeeze, "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze, "split.Tensor": _split, "split_with_sizes": _split_sizes, "unbind.int": _unbind,
    "diagonal": _diagonal, "unfold": _unfold, "view_as_real": _as_real, "view_as_complex": _as_complex,
    "_conj": jnp.conj, "_neg_view": jnp.negative, "alias": _same, "detach": _same, "lift_fresh": _same,
}  # fmt: skip
SAME = ("clone", "lift", "lift_fresh_copy", "resolve_conj", "resolve_neg", "contiguous")
ALSO: dict[str, Callable[..., Any]] = {
    "unsafe_split.Tensor": _split,
    "unsafe_split_with_sizes": _split_sizes,
    "reshape": _reshape,
}


def _as_strided(like: torch.Tensor, x: Array, size: Sizes, stride: Sizes, offset: int | None = None) -> Array:
    """Read the memory of ``x``, which lies as torch says of ``like``."""
    order = dense_order(tuple(x.shape), tuple(int(s) for s in like.stride()))
    if order is None or like.storage_offset() != 0:
        raise NotDense
    base = buffer_layout((math.prod(x.shape),), like.dtype)
    flat = x.transpose(order).reshape(-1)
    return views.read(flat, Layout(base, tuple(size), tuple(stride), offset or 0, like.dtype))


def _to_copy(x: Array, dtype: torch.dtype | None = None, **_: Any) -> Array:
    if dtype is None:
        return x
    kind = to_numpy(dtype)
    if jnp.iscomplexobj(x) and kind.kind != "c":
        x = x.real
    return x.astype(kind)


def _zeros(like: torch.Tensor, shape: Sizes) -> Array:
    return jnp.zeros(tuple(shape), to_numpy(like.dtype))


def _empty(like: torch.Tensor, size: Sizes, *_: Any, **__: Any) -> Array:
    return _zeros(like, size)


def _empty_like(like: torch.Tensor, x: Array, **_: Any) -> Array:
    return _zeros(like, x.shape)


def _new_empty(like: torch.Tensor, x: Array, size: Sizes, *_: Any, **__: Any) -> Array:
    return _zeros(like, size)


# these get torch's description of their result (or of their input, for as_strided) first
DESCRIBED: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty, "empty_strided": _empty, "empty_permuted": _empty,
    "empty_like": _empty_like, "new_empty": _new_empty, "new_empty_strided": _new_empty,
}  # fmt: skip


def _size(x: Array, dim: int | None = None) -> Any:
    return list(x.shape) if dim is None else x.shape[dim]


def _nothing(*_: Any, **__: Any) -> None:
    return None


OTHER: dict[str, Callable[..., Any]] = {
    "_to_copy": _to_copy, "sym_size.int": _size, "sym_size": _size, "sym_numel": lambda x: math.prod(x.shape),
    "_assert_scalar": _nothing, "sym_constrain_range": _nothing, "sym_constrain_range_for_size": _nothing,
    "_assert_tensor_metadata": _nothing,
}  # fmt: skip


def _resolve(table: dict[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    found = {overload(f"aten::{name}"): fn for name, fn in table.items()}
    return {op: fn for op, fn in found.items() if op is not None}


def _copies() -> dict[str, Callable[..., Any]]:
    named = {}
    for name, fn in VIEWS.items():
        base, dot, variant = name.partition(".")
        named[f"{base}_copy{dot}{variant}"] = fn
    return named


UNCHANGED: dict[str, Callable[..., Any]] = dict.fromkeys(SAME, _same)
VIEW_OPS = _resolve(VIEWS)
VALUE_OPS = VIEW_OPS | _resolve(_copies()) | _resolve(UNCHANGED) | _resolve(ALSO | OTHER)
DESCRIBED_OPS = _resolve(DESCRIBED)
STRIDED_OPS = _resolve({"as_strided": _as_strided, "as_strided_copy": _as_strided})
VALUE_OPS.update(
    {
        torch.ops.prims.convert_element_type.default: _to_copy,
        torch.ops.prims.device_put.default: _same,
        torch.ops.prims.view_of.default: _same,
    }
)
# what an output of a graph may share with an input or with another output
ALIASING = frozenset([*VIEW_OPS, torch.ops.aten.as_strided.default])


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of the last two dimensions, (…, m, k) by (…, k, n); in a program ``bmm``'s lowering for any batch."""
    return torch.matmul(a, b)
