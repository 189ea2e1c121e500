"""The toy pack's kernel, apart from it so that Pallas is imported when a kernel is chosen and not before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _body(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    out_ref[...] = (x / (1 + scale_ref[0, 0] * jnp.abs(x))).astype(out_ref.dtype)


def softsign(x: Any, scale: Any = 1.0) -> Any:
    """`toy.softsign`, sixteen rows at a time."""
    rows, columns = x.shape
    block = pl.BlockSpec((16, columns), lambda i: (i, 0))
    whole = pl.BlockSpec((1, 1), lambda i: (0, 0))
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = pl.pallas_call(_body, grid=(rows // 16,), in_specs=[block, whole], out_specs=block, out_shape=out)
    return call(x, jnp.full((1, 1), scale, jnp.float32))
