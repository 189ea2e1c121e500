"""The ATen kernels that have no lowering: allocation, views, copies, host reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
    client.check_index(device)
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


def _check_bounds(tensor: Tensor, size: Any, stride: Any, offset: int) -> None:
    """Raise what CPU raises for strides that reach beyond the storage; torch's meta kernel lets them pass."""
    reach = offset + 1
    for n, s in zip(size, stride, strict=True):
        if n == 0:
            return
        reach += (n - 1) * s
    item, held = tensor.itemsize, tensor.untyped_storage().layout.nbytes  # type: ignore[attr-defined]
    if reach * item > held:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{item} requiring a storage size of {reach * item} are out of bounds for storage of size {held}"
        )


def as_strided(tensor: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """``aten::as_strided``, which most other views are made of."""
    storage = tensor.untyped_storage()
    if storage.__class__ is not TpuStorage:
        storage = adopt(tensor)
    storage.views = True  # type: ignore[attr-defined]
    if _function_modes():  # they would see the call below
        result = _as_strided(META, tensor, size, stride, storage_offset)
    else:  # torch's argument parser and the same kernel, in two thirds of the time
        with _meta():
            result = _strided(tensor, size, stride, storage_offset)
    reach = 1 + (tensor.storage_offset() if storage_offset is None else storage_offset)
    for n, s in zip(size, stride):  # noqa: B905, torch has compared the lengths
        reach += (n - 1) * s
    if reach * tensor.itemsize > storage.layout.nbytes:  # type: ignore[attr-defined]
        _check_bounds(tensor, size, stride, result.storage_offset())
    return result


def as_strided_(tensor: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """``aten::as_strided_``: another layout on the same storage."""
    adopt(tensor).views = True
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    _check_bounds(tensor, size, stride, offset)
    return _set_strided(tensor, size, stride, offset)


def _set_strided(tensor: Tensor, shape: Any, strides: Any, offset: int) -> Tensor:
    storage = tensor.untyped_storage()
    return _set_meta(META if storage.resizable() else CPU, tensor, storage, offset, shape, strides)


_as_strided = _aten.as_strided.default._handle.redispatch_boxed
_strided = torch._C.TensorBase.as_strided
_function_modes = torch._C._len_torch_function_stack
_meta = partial(torch._C._IncludeDispatchKeyGuard, torch._C.DispatchKey.Meta)
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
    host = transfer.to_host(materialize(tensor.untyped_storage(), "the host reads it"))
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


def to_copy(source: Tensor, **target: Any) -> Tensor:
    """``aten::_to_copy``: torch's allocation and copy; a host copy that need not block gets plain memory.

    torch asks page-locked memory for it, which PJRT has not; the values are there on return.
    """
    if target.get("non_blocking") and target.get("device", source.device).type == "cpu":
        target["non_blocking"] = False
    return _allocate_and_copy(CPU, source, **target)  # type: ignore[no-any-return]


_allocate_and_copy = _aten._to_copy.default._handle.redispatch_boxed


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
        return (
            transfer.to_host(materialize(tensor.untyped_storage(), "the host reads it")).reshape(-1)[0].item()
        )
    return to_host(tensor).reshape(-1)[0].item()


def assert_nonzero(
    tensor: Tensor, message: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    """``aten::_assert_async``: waits, as the host raises."""
    if not bool(tensor):
        raise RuntimeError(message)


def equal(a: Tensor, b: Tensor) -> bool:
    """``aten::equal``."""
    return a.shape == b.shape and bool(torch.equal(to_host(a), b.cpu() if b.device.type != "cpu" else b))


def is_set_to(tensor: Tensor, other: Tensor) -> bool:
    """``aten::is_set_to``: the same elements of the same storage."""
    if tensor.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    return all(
        getattr(tensor, name)() == getattr(other, name)() for name in ("size", "stride", "storage_offset")
    )


def may_replace(tensor: Tensor, other: Tensor) -> bool:
    """``aten::_has_compatible_shallow_copy_type``: whether ``tensor.data = other`` may change the device.

    As between CPU and CUDA, so `Module.to` keeps its parameters, the tied ones and an optimizer's.
    """
    return all(t.layout is torch.strided and t.device.type in ("cpu", "tpu") for t in (tensor, other))


def left_aligned(tensor: Tensor, mask: Tensor) -> bool:
    """``aten::_nested_tensor_from_mask_left_aligned``: never, so TransformerEncoder keeps its padded batch."""
    return False


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Device memory is never pinned host memory."""
    return False


VIEWS = (
    "view", "view.dtype", "_reshape_alias", "view_as_real", "view_as_complex", "unfold",
    "_unsafe_view", "_conj", "_neg_view",
)  # fmt: skip
SPECIAL: dict[str, Callable[..., Any]] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "as_strided": as_strided,
    "as_strided_": as_strided_,
    "resize_": resize,
    "set_.source_Storage_storage_offset": set_storage_offset,
    "set_.source_Storage": set_storage,
    "set_.source_Tensor": set_tensor,
    "set_": set_empty,
    "copy_": copy_,
    "_to_copy": to_copy,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_local_scalar_dense": item,
    "_assert_async": assert_nonzero,
    "_assert_async.msg": assert_nonzero,
    "equal": equal,
    "is_pinned": is_pinned,
    "is_set_to": is_set_to,
    "_nested_tensor_from_mask_left_aligned": left_aligned,
    "_has_compatible_shallow_copy_type": may_replace,
    "clone": builtin.clone,
}


def table() -> dict[str, Callable[..., Any]]:
    """All kernels of this module by ATen name."""
    from torchtpu.dispatch.schema import overload

    return {**SPECIAL, **{name: _view(overload(f"aten::{name}")) for name in VIEWS}}
