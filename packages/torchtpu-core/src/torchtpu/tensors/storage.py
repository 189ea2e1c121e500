"""`TpuStorage`: the storage object that holds a tensor's device buffer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from torchtpu.runtime import client, transfer
from torchtpu.tensors.layout import Layout, buffer_layout, tensor_layout
from torchtpu.tensors.pending import Pending, resolve

_create = torch._C._acc.create_empty_tensor
META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class HostStorage(UntypedStorage):
    """A storage of the CPU into which one of the device can be copied."""

    def copy_(self, source: UntypedStorage, non_blocking: bool = False) -> Any:
        """Overwrite with the bytes of a storage of the same size."""
        return super().copy_(source.cpu() if isinstance(source, TpuStorage) else source, non_blocking)


class TpuStorage(UntypedStorage):
    """A storage whose bytes live in a JAX array, in the row-major shape of ``layout``.

    ``buffer`` is None while nothing was written. ``views`` tells that a tensor with another layout
    may exist. ``shared`` tells that somebody outside holds the array, so it must not be donated.
    """

    buffer: Any
    layout: Layout
    views: bool = False
    shared: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """What ``type(storage)(size, device="cpu")`` of torch's asynchronous checkpoints means: one of the host.

        A storage of the device is made by `new_tensor` alone.
        """
        return HostStorage(*args, **kwargs)

    def nbytes(self) -> int:
        """Size in bytes."""
        return self.layout.nbytes

    def size(self) -> int:
        """Size in bytes."""
        return self.layout.nbytes

    def __len__(self) -> int:
        return self.layout.nbytes

    def resize_(self, size: int) -> TpuStorage:
        """Resize to ``size`` bytes, keeping the common prefix; 0 frees the memory."""
        if size != self.layout.nbytes:
            old, was = resolve(self.buffer, "a storage changes its size"), self.layout
            self.layout, self.buffer, self.views = buffer_layout((size,), torch.uint8), None, True
            common = min(size, was.nbytes)
            if old is not None and common:
                raw = transfer.to_host_bytes(old)
                self.buffer = transfer.put(transfer.padded(raw[:common], size))
        return self

    def cpu(self) -> UntypedStorage:
        """A CPU storage with the same bytes."""
        host = torch.empty(self.layout.nbytes, dtype=torch.uint8)
        if self.layout.nbytes:
            host.numpy()[:] = transfer.to_host_bytes(materialize(self))
        return host.untyped_storage()

    def clone(self) -> TpuStorage:
        """A new storage with the same bytes."""
        fresh = new_tensor(self.layout).untyped_storage()
        if self.buffer is not None:
            fresh.buffer = transfer.duplicate(materialize(self, "a storage is copied"))
        fresh.views = self.views
        return fresh

    def copy_(self, source: UntypedStorage, non_blocking: bool = False) -> TpuStorage:
        """Overwrite with the bytes of a storage of the same size."""
        if source.nbytes() != self.layout.nbytes:
            raise RuntimeError(f"storage sizes differ: {source.nbytes()} and {self.layout.nbytes} bytes")
        if isinstance(source, TpuStorage) and source.layout is self.layout:
            self.buffer = transfer.duplicate(materialize(source))
            return self
        host = source.cpu() if isinstance(source, TpuStorage) else source
        raw = torch.empty(0, dtype=torch.uint8).set_(host)
        self.layout, self.views = buffer_layout((raw.numel(),), torch.uint8), True
        self.buffer = transfer.put(raw.numpy().copy())
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TpuStorage:
        """One copy per storage and deepcopy call, so that aliases stay aliases."""
        done: dict[int, Any] = memo.setdefault("torch", {})  # type: ignore[call-overload]
        fresh = done.get(self._cdata)
        if fresh is None:
            fresh = done[self._cdata] = self.clone()
        # torch's deepcopy wants this very class, for every alias; `revive` undoes it
        fresh.__class__ = UntypedStorage
        fresh.known = memo, id(self)
        return fresh  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return _from_bytes, (bytes(self.cpu()),)

    def _write_file(self, file: Any, direct: bool, save_size: bool, item: int) -> None:
        """What pickle and the legacy torch.save call; torch's own would read the made-up address."""
        self.cpu()._write_file(file, direct, save_size, item)  # type: ignore[attr-defined]

    def _set_from_file(self, file: Any, offset: Any, direct: bool, item: int) -> TpuStorage:
        """What unpickling and torch.load of a legacy file call."""
        host = UntypedStorage(self.layout.nbytes)
        host._set_from_file(file, offset, direct, item)  # type: ignore[attr-defined]
        return self.copy_(host)

    def tolist(self) -> list[int]:
        """The bytes as Python integers."""
        return list(self.cpu())

    def __getitem__(self, index: Any) -> Any:
        return self.cpu()[index]


def new_tensor(layout: Layout, buffer: Any = None) -> Tensor:
    """A contiguous tensor on a fresh storage of the canonical ``layout``."""
    tensor = _create(layout.shape, layout.dtype)
    storage = tensor.untyped_storage()
    storage.__class__ = TpuStorage
    storage.buffer = buffer
    storage.layout = layout
    if not layout.nbytes:  # torch's maker multiplies sizes of 0 into the strides
        return strided(tensor, layout.shape, layout.strides)
    return tensor


_as_strided = torch.ops.aten.as_strided.default._handle.redispatch_boxed


def strided(tensor: Tensor, shape: Any, strides: Any, offset: int = 0) -> Tensor:
    """A view of ``tensor``'s storage."""
    tensor.untyped_storage().views = True
    return _as_strided(META, tensor, shape, strides, offset)


def new_strided(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, buffer: Any = None
) -> Tensor:
    """A tensor with dense strides on a fresh buffer that is row-major in stride order."""
    order = dense_order(shape, strides)
    if order is None:
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        flat = new_tensor(buffer_layout((0 if 0 in shape else extent,), dtype), buffer)
        return strided(flat, shape, strides)
    base = new_tensor(buffer_layout(tuple(shape[i] for i in order), dtype), buffer)
    return strided(base, shape, strides)


def dense_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimension order in which ``strides`` are row-major, or None if they leave holes."""
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], shape[i] == 1, i))
    expected = 1
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != expected:
            return None
        expected *= max(shape[i], 1)
    return tuple(order)


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a tpu tensor on its storage's buffer."""
    storage = tensor.untyped_storage()
    return tensor_layout(tensor, storage.layout) if storage.views else storage.layout


def materialize(storage: TpuStorage, reason: str = "a program outside the graph reads it") -> Any:
    """The storage's array; runs what is pending and allocates zeros if nothing was written yet."""
    buffer = storage.buffer
    if buffer is None:
        client.check_fork()
        buffer = storage.buffer = transfer.zeros(storage.layout.shape, storage.layout.np_dtype)
    elif buffer.__class__ is Pending:
        buffer = storage.buffer = buffer.get(reason)
    return buffer


_addresses = itertools.count(1 << 46, 1 << 12)  # never dereferenced


def raw_storage(nbytes: int) -> TpuStorage:
    """A storage of bytes without a tensor, at a made-up address that torch can tell from others."""
    address = next(_addresses)
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("tpu", 0), nbytes)
    storage.__class__ = TpuStorage
    storage.layout, storage.buffer = buffer_layout((nbytes,), torch.uint8), None
    storage.views = True
    return storage  # type: ignore[no-any-return]


def _from_bytes(raw: bytes) -> TpuStorage:
    """A device storage with these bytes."""
    storage = raw_storage(len(raw))
    storage.buffer = transfer.put(np.frombuffer(raw, np.uint8).copy())
    return storage


def revive(storage: Any) -> Any:
    """Give a storage that went through torch's deepcopy its class back."""
    if type(storage) is UntypedStorage and "layout" in storage.__dict__:
        storage.__class__ = TpuStorage
        memo, key = storage.__dict__.pop("known")
        memo.pop(key, None)  # the next alias has to pass `TpuStorage.__deepcopy__` again
    return storage


def adopt(tensor: Tensor) -> TpuStorage:
    """Turn a raw storage of the device (made inside torch) into a `TpuStorage`."""
    storage = tensor.untyped_storage()
    if not isinstance(storage, TpuStorage):
        size = storage.nbytes()
        storage.__class__ = TpuStorage
        storage.layout = buffer_layout((size,), torch.uint8)
        storage.buffer, storage.views = None, True
    return storage
