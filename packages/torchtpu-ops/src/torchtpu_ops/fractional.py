"""Max pooling over windows whose places depend on random samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops.pool import larger, lowest, places, spread_to_places

Array = jax.Array
Ints = Sequence[int]


def _starts(sample: Array, size: int, kernel: int, count: int) -> Array:
    """Where ``count`` windows begin along an axis, of shape (*sample.shape, count).

    The places are those of https://arxiv.org/abs/1412.6071, and the last window ends the axis.
    """
    step = jnp.asarray(size - kernel, sample.dtype) / max(count - 1, 1)
    at = jnp.arange(count - 1, dtype=sample.dtype) + sample[..., None]
    inner = (at * step).astype(jnp.int32) - (sample[..., None] * step).astype(jnp.int32)
    return jnp.concatenate([inner, jnp.full((*sample.shape, 1), size - kernel, jnp.int32)], axis=-1)


def _pool(rank: int) -> Callable[..., tuple[Array, Array]]:
    def pool(self: Array, kernel_size: Ints, output_size: Ints, random_samples: Array) -> tuple[Array, Array]:
        """The largest element of each window and its flat place in the plane."""
        x = self if self.ndim == rank + 2 else self[None]
        # torch draws for the last axis first in two dimensions, but last in three
        order = reversed(range(2)) if rank == 2 else range(rank)
        samples = dict(zip(order, jnp.moveaxis(random_samples, -1, 0), strict=True))
        start = jnp.asarray(lowest(self.dtype), self.dtype), places(x, rank)[1]
        parts = x, places(x, rank)[0]
        for d in range(rank):
            starts = _starts(samples[d], x.shape[2 + d], kernel_size[d], output_size[d])
            window = (starts[..., None] + jnp.arange(kernel_size[d], dtype=jnp.int32)).reshape(
                *starts.shape[:2], -1
            )
            axis = 2 + d
            index = window.reshape(*window.shape[:2], *[-1 if i == d else 1 for i in range(rank)])
            taken = [jnp.take_along_axis(p, index, axis=axis) for p in parts]
            split = [
                t.reshape(*t.shape[:axis], output_size[d], kernel_size[d], *t.shape[axis + 1 :])
                for t in taken
            ]
            parts = lax.reduce(tuple(split), start, larger, (axis + 1,))
        values, chosen = (p if self.ndim == rank + 2 else p[0] for p in parts)
        return values, chosen.astype(jnp.int64)

    return pool


def _backward(rank: int) -> Callable[..., Array]:
    def backward(
        grad_output: Array, self: Array, kernel_size: Ints, output_size: Ints, indices: Array
    ) -> Array:
        """The gradient goes to the chosen places."""
        return spread_to_places(grad_output, self.shape, indices, rank)

    return backward


for _rank in (2, 3):
    pack.lowering(f"aten::fractional_max_pool{_rank}d")(_pool(_rank))
    pack.lowering(f"aten::fractional_max_pool{_rank}d_backward")(_backward(_rank))
