"""Sub-modules of ``torch.tpu`` that packs contribute, imported at first use."""

from __future__ import annotations

import importlib
from typing import Any


def find(name: str) -> Any:
    """The pack's module for ``torch.tpu.<name>``; AttributeError if no pack has it."""
    from torchtpu.plugins.registry import registry

    spaces = registry().namespaces
    found = spaces.get(name) if hasattr(spaces, "get") else None
    if found is None:
        raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")
    return importlib.import_module(found.module)
