"""How exactly float32 matrix products and convolutions are computed.

A TPU multiplies bfloat16; float32 operands take several passes, or lose bits. torch's process-wide
setting decides, unless the calling thread chose its own with ``torch.tpu.precision``.
"""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.runtime.legalize import equations

_has, _get, _stash = torch._C._is_key_in_tls, torch._C._get_obj_in_tls, torch._C._stash_obj_in_tls
_KEY = "torchtpu.precision"
_torch = torch._C._get_float32_matmul_precision
# torch's words and JAX's: full float32, three passes of bfloat16, one
NAMES = {"highest": "highest", "high": "high", "medium": "default"}
_overridden = [False]  # whether any thread ever chose its own


def chosen() -> str | None:
    """The calling thread's own choice in JAX's words; backward threads take it over from the caller."""
    return _get(_KEY) if _overridden[0] and _has(_KEY) else None


def choose(value: str | None) -> None:
    """Set the calling thread's precision, or follow torch's setting again."""
    _overridden[0] = True
    _stash(_KEY, value)


def current() -> str:
    """The precision in force: ``"highest"``, ``"high"`` or ``"default"``."""
    return chosen() or NAMES[_torch()]


def _float32(var: Any) -> bool:
    return var.aval.dtype.name in ("float32", "complex64")


def matters(jaxpr: Any) -> bool:
    """Whether the program multiplies matrices of float32, so that another precision is another program."""
    products = (e for e in equations(jaxpr) if e.primitive.name in ("dot_general", "conv_general_dilated"))
    return any(all(_float32(v) for v in eqn.invars) for eqn in products)


def guarded(execute: Any, precision: str) -> Any:
    """``execute``, for the per-op path: a KeyError, as of an unknown key, when the precision changed."""
    word = next(w for w, name in NAMES.items() if name == precision)

    def run(buffers: Any) -> Any:
        if _overridden[0]:
            if current() != precision:
                raise KeyError(precision)
        elif _torch() != word:
            raise KeyError(precision)
        return execute(buffers)

    return run
