"""Fake quantisation: values rounded to a grid of integers and back, as training for low precision needs it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array


def _grid(x: Array, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Array, Array]:
    """Values on the grid, and where they were within its range."""
    wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    inverse = (1 / jnp.asarray(scale, jnp.float32)).astype(wide.dtype)
    whole = jnp.issubdtype(jnp.result_type(zero_point), jnp.integer)
    at = zero_point + jnp.round(wide * inverse) if whole else jnp.round(zero_point + wide * inverse)
    values = (jnp.clip(at, low, high) - zero_point) * scale
    return values.astype(x.dtype), (at >= low) & (at <= high)


@pack.lowering("aten::fake_quantize_per_tensor_affine_cachemask")
def per_tensor(
    self: Array, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """One scale and zero point."""
    return _grid(self, scale, zero_point, quant_min, quant_max)


@pack.lowering("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_switched(
    self: Array, scale: Array, zero_point: Array, fake_quant_enabled: Array, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """One scale and zero point in tensors of one element, with a switch."""
    on = fake_quant_enabled.reshape(()) != 0
    values, inside = _grid(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    return jnp.where(on, values, self), inside | ~on


@pack.lowering("aten::fake_quantize_per_channel_affine_cachemask")
def per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """A scale and zero point for each index along ``axis``."""
    shape = [-1 if i == axis % self.ndim else 1 for i in range(self.ndim)]
    return _grid(self, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)
