"""Picks the PJRT platform and starts JAX, once, at the first use of the device."""

from __future__ import annotations

import glob
import importlib.util
import os
import threading
import warnings
from functools import cache
from typing import Any

from torchtpu import config

PLATFORMS = ("tpu", "cuda", "cpu")
_lock = threading.RLock()
_pid: list[int] = []


def _tpu_present() -> bool:
    """Whether this host shows TPU chips, judged from device files only (never the network)."""
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")) and _has("libtpu")


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _choose() -> str:
    forced = config.env("PLATFORM").lower()
    if forced:
        if forced not in PLATFORMS:
            raise RuntimeError(f"TORCHTPU_PLATFORM={forced!r}: choose one of {', '.join(PLATFORMS)}")
        if forced == "tpu" and not _tpu_present():
            raise RuntimeError(
                "TORCHTPU_PLATFORM=tpu, but this host shows no TPU (no /dev/accel* or /dev/vfio/*, "
                "or libtpu is not installed). Install torchtpu[tpu] on a TPU VM, or unset the variable."
            )
        return forced
    if _tpu_present():
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
        if platform == "cpu" and "JAX_PLATFORMS" not in os.environ and "jax" not in _loaded():
            # An installed libtpu would be probed first, slowly and loudly, on a host without TPUs.
            os.environ["JAX_PLATFORMS"] = "cpu"
            import jax

            del os.environ["JAX_PLATFORMS"]
        else:
            import jax
        return jax.local_devices(backend=platform)[0]


def _loaded() -> Any:
    import sys

    return sys.modules


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
    config.debugging[0] = True  # sends every operator of the child past `check_fork`


def in_bad_fork() -> bool:
    """Whether this process was forked from one that used the device."""
    return bool(_pid) and _pid[0] == -1


def platform() -> str:
    """The PJRT platform in use: ``tpu``, ``cpu`` or ``cuda``."""
    name = device().platform
    return "cuda" if name == "gpu" else str(name)


def synchronize() -> None:
    """Wait until the device has finished all work."""
    import jax

    jax.effects_barrier()
    for array in device().client.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()
