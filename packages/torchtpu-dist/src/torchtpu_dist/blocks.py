"""Between torch tensors and the blocks that programs over a group read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import Tensor

from torchtpu.tensors.layout import buffer_layout
from torchtpu.tensors.storage import layout_of, materialize, new_tensor


def block(tensor: Tensor) -> Any:
    """The values of a tpu tensor now, as an array of at least one dimension; later writes leave it alone."""
    tensor = tensor.detach()
    if not direct(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storage = tensor.untyped_storage()
    array = materialize(storage, "a collective reads it")
    storage.shared = True  # type: ignore[attr-defined]
    return array if array.ndim else _reshaped(array, (1,))


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    with jax.enable_x64(True):
        return array.reshape(shape)


def direct(tensor: Tensor) -> bool:
    """Whether the tensor's buffer is its block as it is: to be read, or replaced from any thread."""
    return layout_of(tensor).canonical


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape of the tensor's block."""
    return tuple(tensor.shape) or (1,)


def put(tensor: Tensor, array: Any) -> None:
    """Give a tensor new values, from a block of its shape."""
    if not tensor.dim():
        array = _reshaped(array, ())
    if direct(tensor):
        storage = tensor.untyped_storage()
        storage.buffer, storage.shared = array, False  # type: ignore[attr-defined]
        return
    with torch.no_grad():
        tensor.detach().copy_(new_tensor(buffer_layout(tuple(tensor.shape), tensor.dtype), array))


def named(tensor: Tensor) -> str:
    """Dtype and shape, as errors show them."""
    return f"{kind(tensor)}{list(tensor.shape)}"


def kind(tensor: Tensor) -> str:
    """The dtype's name."""
    return str(tensor.dtype).removeprefix("torch.")


def put_all(tensors: Sequence[Tensor], arrays: Sequence[Any]) -> None:
    """Write each array to its tensor."""
    for tensor, array in zip(tensors, arrays, strict=False):
        put(tensor, array)


def rows(wanted: list[tuple[int, tuple[int, ...]]]) -> Callable[[list[Any]], list[Any]]:
    """The values of padded rows, in the given shapes."""

    def ready(results: list[Any]) -> list[Any]:
        with jax.enable_x64(True):
            return [results[0][row, : math.prod(shape)].reshape(shape) for row, shape in wanted]

    return ready


def flat_part(count: int, shape: tuple[int, ...]) -> Callable[[list[Any]], list[Any]]:
    """The first ``count`` values of the result, in the given shape."""

    def ready(results: list[Any]) -> list[Any]:
        with jax.enable_x64(True):
            return [results[0].reshape(-1)[:count].reshape(shape)]

    return ready
