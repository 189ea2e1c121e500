"""The entry point: what this distribution offers to torchtpu."""

from __future__ import annotations

from torchtpu.plugins import CallSpec, Pack

pack = Pack(api="1.0")
pack.namespace("pallas", "torchtpu_kernels.pallas")

BLOCK = 128  # rows of the smallest tile, and lanes of a register
SHORTEST = 256  # keys; with fewer XLA moves fewer bytes, as counted by its compiler for v5e


@pack.kernel("torchtpu::sdpa", name="flash", fn="torchtpu_kernels.flash:forward", priority=100)
@pack.kernel(
    "torchtpu::sdpa_backward", name="flash_backward", fn="torchtpu_kernels.flash:backward", priority=100
)
def no_flash(call: CallSpec) -> str | None:
    """Enough whole tiles of bfloat16 or float32, without mask and dropout; causal over as many keys as queries."""
    query, key, value = (call.args[name] for name in ("query", "key", "value"))
    if call.args.get("mask") is not None:
        return "it has a mask"
    if call.args.get("dropout_p"):
        return "it drops weights"
    if query.dtype not in ("bfloat16", "float32"):
        return f"{query.dtype} is neither bfloat16 nor float32"
    lengths, width = (query.shape[-2], key.shape[-2]), query.shape[-1]
    if any(n % BLOCK or not n for n in lengths):
        return f"lengths {lengths[0]} and {lengths[1]} are not both multiples of {BLOCK}"
    if lengths[1] < SHORTEST:
        return f"{lengths[1]} keys are fewer than {SHORTEST}"
    if value.shape[-1] != width:
        return f"keys are {width} wide, values {value.shape[-1]}"
    if not width or (width > BLOCK and width % BLOCK) or width % 8:
        return f"width {width} is not a multiple of 8 below {BLOCK}, or one of {BLOCK}"
    if call.args.get("is_causal") and lengths[0] != lengths[1]:
        return "causal, and the numbers of queries and keys differ"
    return None if query.shape[:-2] and all(query.shape) else "it is empty"
