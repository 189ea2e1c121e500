"""What the program of each collective does with a rank's blocks: pure functions over JAX arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torchtpu_dist.programs import Body
from torchtpu_dist.reductions import AXIS, all_reduced, broadcasted, reduce_scattered

Shape = tuple[int, ...]


def all_reduce(name: str, factor: Any, size: int) -> Body:
    """Every block reduced over the ranks."""
    return lambda *blocks: [all_reduced(b, name, factor, size) for b in blocks]


def broadcast(root: int) -> Body:
    """Every block as the root has it."""
    return lambda *blocks: [broadcasted(b, root) for b in blocks]


def all_gather(shapes: Sequence[Shape]) -> Body:
    """Each block of every rank in rank order, in the given output shapes."""

    def body(*blocks: Any) -> list[Any]:
        return [
            lax.all_gather(b.reshape(-1), AXIS, tiled=True).reshape(shape)
            for b, shape in zip(blocks, shapes, strict=True)
        ]

    return body


def gather_apart(shapes: Sequence[Shape]) -> Body:
    """One block per rank, rank r's of ``shapes[r]``; the blocks may differ in size."""
    sizes = [math.prod(s) for s in shapes]

    def body(block: Any) -> list[Any]:
        rows = lax.all_gather(_padded(block, max(sizes)), AXIS)
        return [rows[r, :n].reshape(s) for r, (n, s) in enumerate(zip(sizes, shapes, strict=True))]

    return body


def _padded(block: Any, size: int) -> Any:
    flat = block.reshape(-1)
    return jnp.pad(flat, (0, size - flat.size)) if size != flat.size else flat


def reduce_scatter(name: str, factor: Any, size: int, shapes: Sequence[Shape]) -> Body:
    """The r-th part of each block reduced over the ranks, on rank r."""

    def body(*blocks: Any) -> list[Any]:
        return [
            reduce_scattered(b.reshape(size, -1), name, factor, size).reshape(shape)
            for b, shape in zip(blocks, shapes, strict=True)
        ]

    return body


def reduce_scatter_apart(name: str, factor: Any, size: int) -> Body:
    """Block r reduced over the ranks, on rank r, in a row padded to the largest of the blocks."""

    def body(*blocks: Any) -> list[Any]:
        longest = max(b.size for b in blocks)
        rows = jnp.stack([_padded(b, longest) for b in blocks])
        return [reduce_scattered(rows, name, factor, size)]

    return body


def all_to_all(size: int, shape: Shape) -> Body:
    """Equal parts: part r of a block goes to rank r."""

    def body(block: Any) -> list[Any]:
        parts = lax.all_to_all(block.reshape(size, -1), AXIS, 0, 0)
        return [parts.reshape(shape)]

    return body


def exchange(longest: int) -> Body:
    """Block r goes to rank r; all arrive as the rows of one array, padded to ``longest``."""

    def body(*blocks: Any) -> list[Any]:
        rows = jnp.stack([_padded(b, longest) for b in blocks])
        return [lax.all_to_all(rows, AXIS, 0, 0)]

    return body
