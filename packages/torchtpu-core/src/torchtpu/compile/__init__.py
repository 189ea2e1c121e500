"""The Dynamo backend: whole graphs, forward and backward, as one XLA program each."""

from __future__ import annotations

import importlib
from typing import Any

# resolved at first use, as the modules import jax
_PUBLIC = {"last": "artifacts", "recent": "artifacts"}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"torchtpu.compile.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'torchtpu.compile' has no attribute {name!r}")
