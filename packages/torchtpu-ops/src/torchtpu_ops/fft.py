"""Fourier transforms under torch's internal signatures."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array


def _scaled(x: Array, normalization: int, count: int) -> Array:
    """Divide by nothing, by the root of the count, or by the count."""
    factor = (1.0, 1.0 / math.sqrt(count), 1.0 / count)[normalization] if count else 1.0
    return x if normalization == 0 else x * factor


def _count(shape: tuple[int, ...], dims: list[int]) -> int:
    return math.prod(shape[d] for d in dims)


def _c2c(x: Array, dims: list[int], forward: bool) -> Array:
    """An unscaled transform, one dimension at a time since XLA takes at most three at once."""
    for d in dims:
        x = jnp.fft.fft(x, axis=d) if forward else jnp.fft.ifft(x, axis=d, norm="forward")
    return x


@pack.lowering("aten::_fft_c2c")
def fft_c2c(self: Array, dim: list[int], normalization: int, forward: bool) -> Array:
    """Complex to complex."""
    return _scaled(_c2c(self, dim, forward), normalization, _count(self.shape, dim))


@pack.lowering("aten::_fft_r2c")
def fft_r2c(self: Array, dim: list[int], normalization: int, onesided: bool) -> Array:
    """Real to complex; the last of ``dim`` is halved when one-sided."""
    last = dim[-1]
    x = jnp.fft.rfft(self, axis=last) if onesided else jnp.fft.fft(self, axis=last)
    return _scaled(_c2c(x, dim[:-1], True), normalization, _count(self.shape, dim))


@pack.lowering("aten::_fft_c2r")
def fft_c2r(self: Array, dim: list[int], normalization: int, last_dim_size: int) -> Array:
    """Complex to real, the last of ``dim`` having ``last_dim_size`` real values."""
    x = _c2c(self, dim[:-1], False)
    x = jnp.fft.irfft(x, n=last_dim_size, axis=dim[-1], norm="forward")
    return _scaled(x, normalization, _count(self.shape, dim[:-1]) * last_dim_size)
