"""Picks the PJRT platform and starts JAX, once, at the first use of the device."""

from __future__ import annotations

import glob
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any

from torchtpu import config

PLATFORMS = ("tpu", "cuda", "cpu")
_lock = threading.RLock()
_pid: list[int] = []
# Told the platform, each gives a context in which JAX makes its client: where processes join each other.
starting: list[Callable[[str], AbstractContextManager[Any]]] = []


def tpu_present() -> bool:
    """Whether this host shows TPU chips, judged from device files only (never the network)."""
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")) and _has("libtpu")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _choose() -> str:
    forced = config.env("PLATFORM").lower()
    if forced:
        if forced not in PLATFORMS:
            raise RuntimeError(f"TORCHTPU_PLATFORM={forced!r}: choose one of {', '.join(PLATFORMS)}")
        if forced == "tpu" and not tpu_present():
            raise RuntimeError(
                "TORCHTPU_PLATFORM=tpu, but this host shows no TPU (no /dev/accel* or /dev/vfio/*, "
                "or libtpu is not installed). Install torchtpu[tpu] on a TPU VM, or unset the variable."
            )
        return forced
    if tpu_present():
        return "tpu"
    warnings.warn(
        "torchtpu: no TPU on this host; device 'tpu' runs on the CPU through PJRT "
        "(set TORCHTPU_PLATFORM=cpu to choose this silently)",
        stacklevel=2,
    )
    return "cpu"


@cache
def device() -> Any:
    """The JAX device behind ``tpu:0``; starts JAX on the chosen platform."""
    with _lock:
        check_fork()
        platform = _choose()
        import jax

        before = jax.config.jax_platforms  # type: ignore[attr-defined]
        if platform == "cpu" and not before:
            # An installed libtpu would be probed first, slowly and loudly, on a host without TPUs.
            jax.config.update("jax_platforms", "cpu")
        try:
            with ExitStack() as stack:
                for enter in starting:
                    stack.enter_context(enter(platform))
                return jax.local_devices(backend=platform)[0]
        finally:
            if jax.config.jax_platforms != before:  # type: ignore[attr-defined]
                jax.config.update("jax_platforms", before)


def started() -> bool:
    """Whether the device has been started in this process."""
    return bool(device.cache_info().currsize)


def check_index(device: Any) -> None:
    """Raise for a `torch.device` that is not the process's one device."""
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(f"torchtpu: invalid device {device}; this process has one device, tpu:0")


def check_fork() -> None:
    """Raise in a forked child of a process that had started the device."""
    if not _pid:
        _pid.append(os.getpid())
        os.register_at_fork(after_in_child=_mark_forked)
    elif _pid[0] == -1:
        raise RuntimeError(
            "torchtpu: cannot use the tpu device in a forked subprocess. "
            "Use the 'spawn' start method, or keep DataLoader workers on the CPU."
        )


def _mark_forked() -> None:
    _pid[0] = -1
    config.special[0] = config.FORKED  # sends every operator of the child past `check_fork`


def in_bad_fork() -> bool:
    """Whether this process was forked from one that used the device."""
    return bool(_pid) and _pid[0] == -1


def platform() -> str:
    """The PJRT platform in use: ``tpu``, ``cpu`` or ``cuda``."""
    name = device().platform
    return "cuda" if name == "gpu" else str(name)


@cache
def memory_budget() -> int:
    """Bytes that recorded, not yet run work may keep from being freed: a quarter of the memory."""
    stats = device().memory_stats() or {}
    total = stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total) // 4


def synchronize() -> None:
    """Wait until the device has finished all work."""
    import jax

    jax.effects_barrier()
    for array in _live():
        array.block_until_ready()


def live_bytes() -> int:
    """Bytes of all arrays that are alive on the device."""
    return sum(array.nbytes for array in _live())


def _live() -> list[Any]:
    return [a for a in device().client.live_arrays() if not a.is_deleted()]
