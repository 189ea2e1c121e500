"""SwiGLU for torch on TPU: one operator, one Pallas kernel."""

import jax

from torchtpu.plugins import CallSpec, Pack

pack = Pack(api="1.0")


@pack.op("acme::swiglu(Tensor gate, Tensor up) -> Tensor", sharding="b d, b d -> b d")
def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``silu(gate) * up``: defines the values, shapes and gradients, and serves where the kernel cannot."""
    return jax.nn.silu(gate) * up


@pack.kernel("acme::swiglu", name="tiled", fn="acme_tpu.pallas:swiglu", priority=10)
def tiled(call: CallSpec) -> str | None:
    """Why the kernel cannot serve this call, or None; sees shapes and dtypes, no data."""
    gate, up = call.args["gate"], call.args["up"]
    if gate.dtype not in ("bfloat16", "float32") or up.dtype != gate.dtype:
        return f"dtypes {gate.dtype} and {up.dtype}, needs bfloat16 or float32 twice"
    if len(gate.shape) != 2 or gate.shape != up.shape:
        return f"shapes {gate.shape} and {up.shape}, needs two equal matrices"
    if 0 in gate.shape or gate.shape[0] % 16 or gate.shape[1] % 128:
        return f"shape {gate.shape} is not made of tiles of (16, 128)"
    return None
