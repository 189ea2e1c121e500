"""The ``torch.backends`` entry point: registers the device, imports no jax, never raises."""

from __future__ import annotations

import warnings


def load() -> None:
    """Called by ``import torch``; a failure is told as a warning and leaves torch as it was."""
    try:
        import torch  # noqa: F401  # called before torch, this comes back here once torch is complete

        from torchtpu.backend import registration

        registration.register()
    except Exception as error:
        warnings.warn(f"torchtpu could not register the tpu device: {error!r}", stacklevel=2)
