"""The kernel, apart from the pack so that Pallas is imported only when it is chosen."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _body(gate_ref: Any, up_ref: Any, out_ref: Any) -> None:
    gate = gate_ref[...].astype(jnp.float32)
    out_ref[...] = (jax.nn.silu(gate) * up_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """The whole unit in one pass over memory, one tile of (16, 128) at a time."""
    rows, columns = gate.shape
    tile = pl.BlockSpec((16, 128), lambda i, j: (i, j))
    out = jax.ShapeDtypeStruct(gate.shape, gate.dtype)
    grid = (rows // 16, columns // 128)
    return pl.pallas_call(_body, grid=grid, in_specs=[tile, tile], out_specs=tile, out_shape=out)(gate, up)
