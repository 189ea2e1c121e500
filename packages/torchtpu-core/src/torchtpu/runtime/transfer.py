"""Moves arrays between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from torchtpu.runtime import client

readers: list[Callable[[Any], None]] = []  # told of every array before the host reads it


def put(array: np.ndarray) -> Any:
    """A device array with ``array``'s values; the caller gives up ``array``'s memory."""
    with jax.enable_x64(True):
        return jax.device_put(array, client.device())


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A device array of zeros; torch's OutOfMemoryError when it does not fit."""
    try:
        return put(np.zeros(shape, dtype))
    except MemoryError as error:
        raise out_of_memory(str(error)) from None


def out_of_memory(detail: str) -> Exception:
    """torch.OutOfMemoryError with the allocator's words."""
    import torch

    return torch.OutOfMemoryError(f"tpu out of memory. {detail}")


def to_host(array: Any) -> np.ndarray:
    """A NumPy array with ``array``'s values that may share its memory: copy before you keep it."""
    for tell in readers:
        tell(array)
    if client.platform() == "cpu" and array.dtype.kind != "V" and array.size:
        try:
            return np.from_dlpack(array)
        except (BufferError, TypeError, RuntimeError):
            pass
    return np.array(jax.device_get(array), copy=True)


def to_host_bytes(array: Any) -> np.ndarray:
    """The raw bytes of ``array``, one-dimensional uint8."""
    return np.ascontiguousarray(to_host(array)).reshape(-1).view(np.uint8)


def padded(raw: np.ndarray, size: int) -> np.ndarray:
    """``raw`` followed by zeros up to ``size`` bytes."""
    out = np.zeros(size, np.uint8)
    out[: raw.size] = raw
    return out


def duplicate(array: Any) -> Any:
    """A device array of its own memory with the same values."""
    return put(to_host(array).copy())


_scalars: dict[tuple[type, Any], Any] = {}


def scalar(kind: type, value: Any) -> Any:
    """A 0-d device array for a Python number, from a bounded cache."""
    key = (kind, value if value else str(value))  # tells 0.0 from -0.0
    found = _scalars.get(key)
    if found is None:
        if len(_scalars) > 8192:
            _scalars.clear()
        found = _scalars[key] = put(np.asarray(value, SCALAR_DTYPE[kind]))
    return found


SCALAR_DTYPE = {float: np.float64, int: np.int64, bool: np.bool_, complex: np.complex128}
