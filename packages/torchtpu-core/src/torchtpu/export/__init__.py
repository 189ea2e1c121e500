"""Programs as files: a ``torch.export`` program becomes StableHLO that runs without the model's source."""

from __future__ import annotations

import importlib
from typing import Any

# resolved at first use, as the modules import jax
_PUBLIC = {
    "ExportError": "container",
    "Info": "container",
    "Loaded": "loaded",
    "compile": "ahead",
    "info": "container",
    "load": "loaded",
    "save": "write",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"torchtpu.export.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'torchtpu.export' has no attribute {name!r}")
