"""What the CPU's kernels do with layouts where torch's meta kernels, or schemas, do not say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

from torchtpu.dispatch.template import TensorHole

Order = tuple[int, ...] | None


def _columns(result: int) -> Callable[[Any, int, int], Order]:
    """LAPACK leaves the matrices of this result column by column."""

    def order(call: Any, index: int, rank: int) -> Order:
        matrix = rank >= 2 and rank == len(call.layouts[0].shape)
        return (*range(rank - 2), rank - 1, rank - 2) if index == result and matrix else None

    return order


def _transform(call: Any, index: int, rank: int) -> Order:
    """MKL's transforms: the batch as the input has it, the transformed dimensions likewise, the halved last."""
    hole, dims = call.args[0], [d % rank for d in call.args[1]] if rank else []
    if not isinstance(hole, TensorHole) or not dims:
        return None
    strides = call.layouts[hole.index].strides

    def sort(some: Any) -> list[int]:
        return sorted(some, key=lambda d: -strides[d])

    return *sort(d for d in range(rank) if d not in dims), *sort(dims[:-1]), dims[-1]


# operator → the order of the result with this index and rank; None where the meta kernel is right
_ORDERS: dict[str, Callable[[Any, int, int], Order]] = {
    "aten::_linalg_svd": _columns(2),
    "aten::geqrf": _columns(0),
    "aten::linalg_lstsq": _columns(0),
    "aten::_fft_r2c": _transform,
    "aten::_fft_c2r": _transform,
}


def host_order(name: str, call: Any, index: int, shape: tuple[int, ...]) -> Order:
    """The dimensions from the largest stride to the smallest, or None to follow the meta kernel."""
    rule = _ORDERS.get(name)
    return rule(call, index, len(shape)) if rule is not None and 0 not in shape else None


# they factor the transpose of a real row-major matrix, and torch's backward formulas count on it
_TRANSPOSING = frozenset({"aten::_linalg_det", "aten::_linalg_slogdet"})


def as_read(name: str, values: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the lowering ``name`` as the CPU's kernel takes them; ``like`` has their strides."""
    matrix = like.get("A")
    if name not in _TRANSPOSING or not isinstance(matrix, torch.Tensor) or matrix.is_complex():
        return values
    return {**values, "A": jnp.swapaxes(values["A"], -1, -2)} if matrix.is_contiguous() else values
