"""TorchTPU: ``device="tpu"`` for PyTorch. The public names, resolved at first use."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "set_mode": "torchtpu.config",
    "get_mode": "torchtpu.config",
    "mode": "torchtpu.config",
    "bucketing": "torchtpu.compile.bucketing",
    "fallbacks": "torchtpu.dispatch.fallback",
    "reset_fallbacks": "torchtpu.dispatch.fallback",
    "explain": "torchtpu.diagnostics.explain",
    "parity": "torchtpu.diagnostics.parity",
    "preflight": "torchtpu.diagnostics.preflight",
    "to_jax": "torchtpu.interop",
    "from_jax": "torchtpu.interop",
    "call_jax": "torchtpu.interop",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name == "export":
        return importlib.import_module("torchtpu.export")
    raise AttributeError(f"module 'torchtpu' has no attribute {name!r}")
