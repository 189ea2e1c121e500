"""`EagerMode`: the modes under the names that torch.tpu scripts use."""

from __future__ import annotations

import enum

from torchtpu import config


class EagerMode(enum.Enum):
    """When eager work runs."""

    DEFER_NEVER = "strict"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"
    DEFER_AND_FUSE = "fused"


class _Switch:
    """Sets a mode at once; as a context it restores the mode before."""

    def __init__(self, mode: EagerMode) -> None:
        self._before = config.get_mode()
        config.set_mode(mode.value)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        config.set_mode(self._before)


def set_eager_mode(mode: EagerMode) -> _Switch:
    """Select the calling thread's mode; usable as a call and as a context."""
    return _Switch(mode)


def eager_mode() -> EagerMode:
    """The calling thread's mode."""
    return EagerMode(config.get_mode())
