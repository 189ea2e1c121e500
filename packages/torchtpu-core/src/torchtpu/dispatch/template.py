"""A call without its data: the tree of arguments with numbered holes for tensors and scalars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorHole:
    """Input ``index``: a tpu tensor."""

    index: int


@dataclass(frozen=True)
class ScalarHole:
    """Scalar ``index`` of Python type ``kind``.

    ``dtype`` is set for a 0-d CPU tensor, which takes part in promotion as a tensor.
    ``wrapped`` is a number that torch has wrapped into a tensor.
    """

    index: int
    kind: type
    dtype: torch.dtype | None = None
    wrapped: bool = False


def fill(tree: Any, tensor: Callable[[TensorHole], Any], scalar: Callable[[ScalarHole], Any]) -> Any:
    """``tree`` with each hole replaced."""
    if isinstance(tree, TensorHole):
        return tensor(tree)
    if isinstance(tree, ScalarHole):
        return scalar(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(fill(t, tensor, scalar) for t in tree)
    if isinstance(tree, dict):
        return {k: fill(v, tensor, scalar) for k, v in tree.items()}
    return tree


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a 0-d CPU tensor is a Python number that torch wrapped."""
    if tensor.dtype not in (torch.float64, torch.int64, torch.complex128, torch.bool):
        return False
    if tensor.dtype is torch.bool:
        return False
    return torch.result_type(tensor, _PROBE[tensor.dtype]) is not tensor.dtype


_PROBE = {
    torch.int64: torch.zeros((), dtype=torch.int8),
    torch.float64: torch.zeros((), dtype=torch.float32),
    torch.complex128: torch.zeros((), dtype=torch.complex64),
}
