"""The ``torch.backends`` entry point: names the c10d backend, imports no jax, never raises."""

from __future__ import annotations

import warnings
from typing import Any

NAMES = ("tpu", "tpu_dist")


def load() -> None:
    """Called by ``import torch``; a failure is told as a warning and leaves torch as it was."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            for name in NAMES:
                dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])
    except Exception as error:
        warnings.warn(f"torchtpu-dist could not register its backend: {error!r}", stacklevel=2)


def _create(options: Any, backend_options: Any) -> Any:
    from torchtpu_dist.group import create

    return create(options, backend_options)
