"""An operator pack for torch on TPU: one operator, one Pallas kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu.plugins import CallSpec, Pack

pack = Pack(api="1.0")


@pack.op("mypack::softcap(Tensor x, float cap) -> Tensor", sharding="b d -> b d")
def softcap(x: jax.Array, cap: jax.Array) -> jax.Array:
    """``cap * tanh(x / cap)``: defines the values, shapes and gradients, and serves where the kernel cannot."""
    return (cap * jnp.tanh(x / cap)).astype(x.dtype)


@pack.kernel("mypack::softcap", name="tiled", fn="mypack_tpu.pallas:softcap", platforms=("tpu",))
def tiled(call: CallSpec) -> str | None:
    """Why the kernel cannot serve this call, or None; sees shapes and dtypes, no data."""
    x = call.args["x"]
    if x.dtype not in ("bfloat16", "float32"):
        return f"dtype {x.dtype}, needs bfloat16 or float32"
    if len(x.shape) != 2 or 0 in x.shape or x.shape[0] % 16 or x.shape[1] % 128:
        return f"shape {x.shape} is not made of tiles of (16, 128)"
    return None
