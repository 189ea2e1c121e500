"""Environment and thread-local settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MODES = ("strict", "debug", "fused")


def env(name: str, default: str = "") -> str:
    """The value of ``TORCHTPU_<name>``, stripped."""
    return os.environ.get(f"TORCHTPU_{name}", default).strip()


def _initial_mode() -> str:
    value = env("MODE", "strict").lower()
    return _checked(value)


def _checked(value: str) -> str:
    if value == "fused":
        raise NotImplementedError("torchtpu: fused mode is not available yet; use 'strict' or 'debug'")
    if value not in MODES:
        raise ValueError(f"torchtpu: unknown mode {value!r}; choose one of {', '.join(MODES[:2])}")
    return value


class _Settings(threading.local):
    mode: str = "strict"


_settings = _Settings()
_default: list[str] = []
debugging = [False]  # read on the per-op path; true while any thread may be in debug mode


def get_mode() -> str:
    """The calling thread's mode: ``"strict"`` or ``"debug"``."""
    if "mode" in _settings.__dict__:
        return _settings.mode
    if not _default:
        _default.append(_initial_mode())
        debugging[0] = debugging[0] or _default[0] == "debug"
    return _default[0]


def set_mode(value: str) -> None:
    """Select the mode of the calling thread; raises ValueError for an unknown name."""
    _settings.mode = _checked(value)
    if value == "debug":
        debugging[0] = True


@contextmanager
def mode(value: str) -> Iterator[None]:
    """Run a block in another mode; thread-local, nests."""
    before = _settings.__dict__.get("mode")
    set_mode(value)
    try:
        yield
    finally:
        if before is None:
            del _settings.mode
        else:
            _settings.mode = before
