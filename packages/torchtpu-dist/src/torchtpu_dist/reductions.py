"""c10d's reduce operations on JAX blocks, inside a program over a group's devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch.distributed as dist
from jax import lax

AXIS = "ranks"
_OPS = dist.ReduceOp.RedOpType
FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda a, b: a * b,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "band": jnp.bitwise_and,
    "bor": jnp.bitwise_or,
    "bxor": jnp.bitwise_xor,
}
_NAMES = {
    _OPS.SUM: "sum",
    _OPS.AVG: "avg",
    _OPS.PRODUCT: "product",
    _OPS.MIN: "min",
    _OPS.MAX: "max",
    _OPS.BAND: "band",
    _OPS.BOR: "bor",
    _OPS.BXOR: "bxor",
    _OPS.PREMUL_SUM: "premul_sum",
}
_BOOL = {"sum": "max", "avg": "max", "product": "min", "band": "min", "bor": "max"}


def reduction(op: Any, dtype: Any) -> tuple[str, Any]:
    """The name of a `ReduceOp` and its factor (None but for PREMUL_SUM).

    TypeError where the operation is not defined for torch's ``dtype``, as in c10d's gloo backend.
    """
    kind = op if isinstance(op, _OPS) else op.op if hasattr(op, "op") else op
    name = next((n for k, n in _NAMES.items() if kind == k), None)
    if name is None:
        raise ValueError(f"torchtpu: unknown reduce operation {op}")
    if name in ("band", "bor", "bxor") and (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"torchtpu: {name} of {dtype}: bitwise operations need whole numbers")
    if name in ("max", "min") and dtype.is_complex:
        raise TypeError(f"torchtpu: {name} of {dtype}: complex numbers have no order")
    factor: Any = op.factor if name == "premul_sum" else None
    return name, factor.item() if hasattr(factor, "item") else factor


def _average(total: Any, count: int) -> Any:
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return total / count
    return lax.div(total, jnp.asarray(count, total.dtype))


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor is None else (x * factor).astype(x.dtype)


def _fold(parts: Any, name: str, count: int) -> Any:
    """Reduce the leading dimension, of size ``count``, in the order of ranks."""
    result = parts[0]
    for i in range(1, count):
        result = FOLDS[name](result, parts[i])
    return result


def all_reduced(x: Any, name: str, factor: Any, count: int) -> Any:
    """The reduction of every rank's ``x``, on all of them."""
    if x.dtype == jnp.bool_:
        if name == "bxor":
            return lax.psum(x.astype(jnp.int32), AXIS) % 2 == 1
        small = x.astype(jnp.uint8)
        return (lax.pmin if _BOOL.get(name, name) == "min" else lax.pmax)(small, AXIS) > 0
    if name in ("sum", "premul_sum"):
        return lax.psum(_scaled(x, factor), AXIS)
    if name == "avg":
        return _average(lax.psum(x, AXIS), count).astype(x.dtype)
    if name in ("max", "min"):
        return (lax.pmax if name == "max" else lax.pmin)(x, AXIS)
    return _fold(lax.all_gather(x, AXIS), name, count)


def reduce_scattered(chunks: Any, name: str, factor: Any, count: int) -> Any:
    """The reduction of ``chunks[r]`` of every rank, on rank r; ``chunks`` is (ranks, n)."""
    if chunks.dtype == jnp.bool_:
        return reduce_scattered(chunks.astype(jnp.uint8), _BOOL.get(name, name), None, count) > 0
    if name in ("sum", "premul_sum", "avg"):
        total = lax.psum_scatter(_scaled(chunks, factor), AXIS, scatter_dimension=0, tiled=False)
        return _average(total, count).astype(chunks.dtype) if name == "avg" else total
    return _fold(lax.all_to_all(chunks, AXIS, 0, 0), name, count)


def broadcasted(x: Any, root: int) -> Any:
    """The root's ``x``, bit for bit: a sum of words of which all but the root's are 0."""
    mine = lax.axis_index(AXIS) == root
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(broadcasted(x.real, root), broadcasted(x.imag, root))
    if x.dtype == jnp.bool_:
        return broadcasted(x.astype(jnp.uint8), root) > 0
    word = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, word)
    total = lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), AXIS)
    return lax.bitcast_convert_type(total, x.dtype)
