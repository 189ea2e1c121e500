"""Checks of index values, with the words of torch's CPU kernels; debug mode runs them."""

from __future__ import annotations

from typing import Any

import numpy as np

NumpyArray = np.ndarray[Any, Any]


def _first_outside(index: NumpyArray, low: int, high: int) -> int | None:
    bad = index[(index < low) | (index >= high)]
    return int(bad.ravel()[0]) if bad.size else None


def _size(self: NumpyArray, dim: int) -> tuple[int, int]:
    """The dimension counted from 0 and its size; a scalar counts as one element."""
    return (dim % self.ndim, self.shape[dim]) if self.ndim else (0, 1)


def along_dim(self: NumpyArray, dim: int, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``gather``, ``scatter`` and their kin take no negative index."""
    at, size = _size(self, dim)
    bad = _first_outside(index, 0, size)
    if bad is not None:
        raise RuntimeError(f"index {bad} is out of bounds for dimension {at} with size {size}")


def index_select(self: NumpyArray, dim: int, index: NumpyArray) -> None:
    """``index_select`` words it by the dimension that it selects from."""
    at, size = _size(self, dim)
    bad = _first_outside(index, 0, size)
    if bad is None:
        return
    if at == 0:
        raise IndexError("index out of range in self")
    raise RuntimeError(f"INDICES element is out of DATA bounds, id={bad} axis_dim={size}")


def index_add(self: NumpyArray, dim: int, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``index_add`` has words of its own for vectors."""
    if self.ndim > 1:
        along_dim(self, dim, index)
    else:
        index_reduce(self, dim, index)


def index_reduce(self: NumpyArray, dim: int, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``index_reduce`` names neither index nor dimension."""
    if _first_outside(index, 0, _size(self, dim)[1]) is not None:
        raise IndexError("index out of range in self")


def index_copy(self: NumpyArray, dim: int, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``index_copy`` names itself."""
    at, size = _size(self, dim)
    bad = _first_outside(index, 0, size)
    if bad is not None:
        raise IndexError(f"index_copy_(): index {bad} is out of bounds for dimension {at} with size {size}")


def _signed(index: NumpyArray, at: int, size: int) -> None:
    bad = _first_outside(index, -size, size)
    if bad is not None:
        raise IndexError(f"index {bad} is out of bounds for dimension {at} with size {size}")


def index_fill(self: NumpyArray, dim: int, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``index_fill`` takes negative indices."""
    _signed(index, *_size(self, dim))


def index(self: NumpyArray, indices: list[NumpyArray | None], *rest: Any, **named: Any) -> None:
    """Advanced indices: positions in range, masks of the shape that they select from."""
    at = named_dim = 0  # the CPU counts only indexed dimensions, since it moves them to the front
    for entry in indices:
        if entry is None:
            at += 1
        elif entry.dtype in (np.bool_, np.uint8):
            for i, n in enumerate(entry.shape):
                if at + i >= self.ndim or self.shape[at + i] != n:
                    raise IndexError(
                        f"The shape of the mask {list(entry.shape)} at index {i} does not match "
                        f"the shape of the indexed tensor {list(self.shape)} at index {at + i}"
                    )
            at, named_dim = at + entry.ndim, named_dim + entry.ndim
        else:
            _signed(entry, named_dim, self.shape[at])
            at, named_dim = at + 1, named_dim + 1


def index_put(
    self: NumpyArray, indices: list[NumpyArray | None], values: NumpyArray, *rest: Any, **named: Any
) -> None:
    """Besides the indices, as many values as a single mask selects places."""
    index(self, indices)
    given = [(at, i) for at, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype not in (np.bool_, np.uint8):
        return
    at, mask = given[0]
    selected = [*self.shape[:at], int(np.count_nonzero(mask)), *self.shape[at + mask.ndim :]]
    if any(n not in (1, m) for n, m in zip(values.shape[::-1], selected[::-1], strict=False)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {selected}"
        )


def take(self: NumpyArray, index: NumpyArray, *rest: Any, **named: Any) -> None:
    """``take`` and ``put`` index the flattened tensor."""
    bad = _first_outside(index, -self.size, self.size)
    if bad is not None:
        raise IndexError(f"out of range: tried to access index {bad} on a tensor of {self.size} elements.")


def masked_scatter(self: NumpyArray, mask: NumpyArray, source: NumpyArray) -> None:
    """The source must have a value for each true element."""
    if source.size < np.count_nonzero(np.broadcast_to(mask, np.broadcast_shapes(self.shape, mask.shape))):
        raise RuntimeError("Number of elements of source < number of ones in mask")
