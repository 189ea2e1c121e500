"""JAX arrays and tpu tensors, both ways, without a copy."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.tensors.dtypes import to_torch
from torchtpu.tensors.layout import buffer_layout
from torchtpu.tensors.storage import layout_of, materialize, new_tensor


def to_jax(tensor: torch.Tensor) -> Any:
    """The JAX array of a tpu tensor; shares memory when it is contiguous, and never changes later."""
    if tensor.device.type != "tpu":
        raise ValueError(f"to_jax needs a tpu tensor, got one on {tensor.device}")
    tensor = tensor.detach()
    if not layout_of(tensor).canonical:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storage = tensor.untyped_storage()
    array = materialize(storage)
    storage.shared = True  # type: ignore[attr-defined]
    return array


def from_jax(array: Any) -> torch.Tensor:
    """A tpu tensor over a JAX array; writing to the tensor leaves the array as it is."""
    tensor = new_tensor(buffer_layout(tuple(array.shape), to_torch(array.dtype)), array)
    tensor.untyped_storage().shared = True  # type: ignore[attr-defined]
    return tensor
