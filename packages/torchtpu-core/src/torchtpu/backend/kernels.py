"""The ATen kernels that have no lowering: allocation, views, copies, host reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtpu.dispatch import builtin
from torchtpu.runtime import client, transfer
from torchtpu.tensors.dtypes import to_numpy
from torchtpu.tensors.layout import buffer_layout, contiguous_strides
from torchtpu.tensors.storage import (
    CPU,
    META,
    TpuStorage,
    adopt,
    layout_of,
    materialize,
    new_strided,
    new_tensor,
    revive,
)

_aten = torch.ops.aten


def _check(
    dtype: torch.dtype | None, device: torch.device | None, layout: torch.layout | None
) -> torch.dtype:
    client.check_fork()
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(f"torchtpu: invalid device {device}; this process has one device, tpu:0")
    if layout is not None and layout is not torch.strided:
        raise NotImplementedError(f"torchtpu: layout {layout} is not supported on device 'tpu'")
    dtype = dtype or torch.get_default_dtype()
    to_numpy(dtype)
    return dtype


def _size(size: Any) -> tuple[int, ...]:
    shape = tuple(int(s) for s in size)
    if any(s < 0 for s in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape


def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """``aten::empty.memory_format``: no memory is taken before the first write or read."""
    shape, dtype = _size(size), _check(dtype, device, layout)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return new_tensor(buffer_layout(shape, dtype))
    like = torch.empty(shape, device="meta", memory_format=memory_format)
    return new_strided(shape, like.stride(), dtype)


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    """``aten::empty_strided``."""
    shape, dtype = _size(size), _check(dtype, device, layout)
    strides = tuple(int(s) for s in stride)
    if strides == contiguous_strides(shape):
        return new_tensor(buffer_layout(shape, dtype))
    return new_strided(shape, strides, dtype)


def _view(op: Any) -> Callable[..., Tensor]:
    """A view kernel: torch's metadata-only kernel on the same storage."""
    redispatch = op._handle.redispatch_boxed

    def view(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tensor.untyped_storage().views = True  # type: ignore[attr-defined]
        return redispatch(META, tensor, *args, **kwargs)

    return view


def resize(tensor: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    """``aten::resize_``: keeps the elements in storage order; grows the storage if needed."""
    shape = _size(size)
    storage = adopt(tensor)
    strides = contiguous_strides(shape)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    need = (tensor.storage_offset() + math.prod(shape)) * tensor.element_size()
    if storage.buffer is None and not storage.views and tensor.storage_offset() == 0:
        storage.layout = buffer_layout(shape, tensor.dtype)
        storage.views = strides != contiguous_strides(shape)
    else:
        if need > storage.nbytes():
            storage.resize_(need)
        storage.views = True
    return _set_strided(tensor, shape, strides, tensor.storage_offset())


def as_strided_(tensor: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """``aten::as_strided_``: another layout on the same storage."""
    adopt(tensor).views = True
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    return _set_strided(tensor, size, stride, offset)


def _set_strided(tensor: Tensor, shape: Any, strides: Any, offset: int) -> Tensor:
    storage = tensor.untyped_storage()
    return _set_meta(META if storage.resizable() else CPU, tensor, storage, offset, shape, strides)


_set_meta = _aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


def set_storage_offset(tensor: Tensor, source: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
    """``aten::set_.source_Storage_storage_offset``."""
    if not isinstance(revive(source), TpuStorage):
        raise RuntimeError(f"torchtpu: set_ of a tpu tensor needs a tpu storage, got one on {source.device}")
    shape = tuple(size)
    strides = tuple(stride) or contiguous_strides(shape)
    source.views = True
    # torch's meta kernel grows the storage's size and refuses one that has a fixed size
    return _set_meta(META if source.resizable() else CPU, tensor, source, offset, shape, strides)


def set_storage(tensor: Tensor, source: Any) -> Tensor:
    """``aten::set_.source_Storage``."""
    count = revive(source).nbytes() // tensor.element_size()
    return set_storage_offset(tensor, source, 0, (count,), (1,))


def set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    """``aten::set_.source_Tensor``."""
    storage = source.untyped_storage()
    return set_storage_offset(tensor, storage, source.storage_offset(), source.shape, source.stride())


def set_empty(tensor: Tensor) -> Tensor:
    """``aten::set_``: an empty tensor."""
    return set_tensor(tensor, new_tensor(buffer_layout((0,), tensor.dtype)))


def to_host(tensor: Tensor) -> Tensor:
    """A CPU tensor with the values of a tpu tensor; waits for them."""
    layout = layout_of(tensor)
    if not layout.canonical:
        tensor = builtin.clone(tensor, memory_format=torch.contiguous_format)
        layout = layout_of(tensor)
    host = transfer.to_host(materialize(tensor.untyped_storage()))
    out = torch.empty(layout.shape, dtype=layout.dtype)
    if host.size:
        _bytes(out)[:] = host.reshape(-1).view("u1")
    return out


def _bytes(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def from_host(source: Tensor) -> Tensor:
    """A contiguous tpu tensor with a CPU tensor's values."""
    source = source.detach().resolve_conj().resolve_neg().contiguous()
    shape, dtype = tuple(source.shape), to_numpy(source.dtype)
    raw = _bytes(source).copy() if source.numel() else torch.empty(0, dtype=torch.uint8).numpy()
    return new_tensor(buffer_layout(shape, source.dtype), transfer.put(raw.view(dtype).reshape(shape)))


def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``aten::copy_`` between any two devices, dtypes and layouts."""
    if target.device.type != "tpu":
        return target.copy_(to_host(source.detach()))
    if source.device.type != "tpu":
        if source.device.type != "cpu":
            source = source.cpu()
        if source.dtype != target.dtype and source.numel():
            source = source.to(target.dtype)
        layout, storage = layout_of(target), target.untyped_storage()
        if source.shape != target.shape:
            source = source.expand(target.shape)
        moved = from_host(source)
        if layout.canonical:
            storage.buffer, storage.shared = moved.untyped_storage().buffer, False  # type: ignore[attr-defined]
            return target
        source = moved
    return builtin.copy_(target, source)


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """``aten::_copy_from``."""
    return copy_(target, source, non_blocking)


def copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    """``aten::_copy_from_and_resize``."""
    if target.shape != source.shape:
        target.resize_(source.shape)
    return copy_(target, source)


def item(tensor: Tensor) -> Any:
    """``aten::_local_scalar_dense``: waits and reads one number."""
    layout = layout_of(tensor)
    if layout.canonical and layout.dtype is not torch.bfloat16:
        return transfer.to_host(materialize(tensor.untyped_storage())).reshape(-1)[0].item()
    return to_host(tensor).reshape(-1)[0].item()


def equal(a: Tensor, b: Tensor) -> bool:
    """``aten::equal``."""
    return a.shape == b.shape and bool(torch.equal(to_host(a), b.cpu() if b.device.type != "cpu" else b))


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Device memory is never pinned host memory."""
    return False


VIEWS = (
    "as_strided", "view", "view.dtype", "_reshape_alias", "view_as_real", "view_as_complex", "unfold",
    "_unsafe_view",
)  # fmt: skip
SPECIAL: dict[str, Callable[..., Any]] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "as_strided_": as_strided_,
    "resize_": resize,
    "set_.source_Storage_storage_offset": set_storage_offset,
    "set_.source_Storage": set_storage,
    "set_.source_Tensor": set_tensor,
    "set_": set_empty,
    "copy_": copy_,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_local_scalar_dense": item,
    "equal": equal,
    "is_pinned": is_pinned,
    "clone": builtin.clone,
}


def table() -> dict[str, Callable[..., Any]]:
    """All kernels of this module by ATen name."""
    from torchtpu.dispatch.schema import overload

    return {**SPECIAL, **{name: _view(overload(f"aten::{name}")) for name in VIEWS}}
