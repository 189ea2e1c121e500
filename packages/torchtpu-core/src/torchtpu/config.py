"""Environment variables and the mode of the calling thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MODES = ("strict", "debug", "fused")
MODE_KEY = "torchtpu.mode"
# Read on the per-op path: 0 while every thread is in strict mode.
OTHER_MODES, FORKED = 1, 2
special = [0]
_default: list[str] = []


def env(name: str, default: str = "") -> str:
    """The value of ``TORCHTPU_<name>``, stripped."""
    return os.environ.get(f"TORCHTPU_{name}", default).strip()


def _checked(value: str) -> str:
    if value not in MODES:
        raise ValueError(f"torchtpu: unknown mode {value!r}; choose one of {', '.join(MODES)}")
    if value != "strict":
        special[0] = special[0] or OTHER_MODES
    return value


def default_mode() -> str:
    """The mode of threads that chose none: ``TORCHTPU_MODE``, or strict."""
    if not _default:
        _default.append(_checked(env("MODE", "strict").lower()))
    return _default[0]


def adopt_default() -> str:
    """Give the calling thread the default mode as its own, which is found faster; returns it."""
    _choose(default_mode())
    return default_mode()


def get_mode() -> str:
    """The calling thread's mode: ``"strict"``, ``"debug"`` or ``"fused"``."""
    return _chosen() or default_mode()


def _chosen() -> str | None:
    # in torch's thread-local state, which its autograd threads take over from the one that calls backward
    import torch

    if not torch._C._is_key_in_tls(MODE_KEY):
        return None
    return torch._C._get_obj_in_tls(MODE_KEY)  # type: ignore[no-any-return]


def _choose(value: str | None) -> None:
    import torch

    before = _chosen()
    value = value or default_mode()
    torch._C._stash_obj_in_tls(MODE_KEY, value)
    if before == "fused" and value != "fused":
        for leave in on_leaving_fused:
            leave()


on_leaving_fused: list[Callable[[], None]] = []  # what the fused mode wants done then


def set_mode(value: str) -> None:
    """Select the mode of the calling thread; raises ValueError for an unknown name."""
    _choose(_checked(value))


@contextmanager
def mode(value: str) -> Iterator[None]:
    """Run a block in another mode; thread-local, nests."""
    before = _chosen()
    set_mode(value)
    try:
        yield
    finally:
        _choose(before)
