"""``torch.tpu``: the device module, with the names that ``torch.cuda`` has."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

_current = [0]


def is_available() -> bool:
    """Always True: without a TPU the device runs on the CPU through PJRT."""
    return True


def device_count() -> int:
    """Number of devices of this process."""
    return 1


def current_device() -> int:
    """Index of the current device."""
    return 0


def set_device(device: Any) -> None:
    """Select the current device: index 0, or the number that a launcher gave this process's device."""
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index not in (0, int(os.environ.get("LOCAL_RANK", 0))):
        raise RuntimeError(f"torchtpu: invalid device index {index}; this process has 1 device")


class device:
    """A context that selects a device; index 0 is the only one."""

    def __init__(self, device: Any) -> None:
        set_device(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


def _is_in_bad_fork() -> bool:
    from torchtpu.runtime import client

    return client.in_bad_fork()


def synchronize(device: Any = None) -> None:
    """Wait until the device has finished all work."""
    from torchtpu.runtime import client
    from torchtpu.tensors.pending import Pending

    Pending.flush("torch.tpu.synchronize()")
    client.synchronize()


def get_device_name(device: Any = None) -> str:
    """The chip's name, e.g. ``TPU v5e`` or ``cpu``."""
    from torchtpu.runtime import client

    return str(client.device().device_kind)


def get_device_properties(device: Any = None) -> Any:
    """Name, platform and memory size in bytes (0 where unknown)."""
    from types import SimpleNamespace

    from torchtpu.runtime import client

    total = mem_get_info()[1]
    return SimpleNamespace(name=get_device_name(), platform=client.platform(), total_memory=total)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every TPU computes in bfloat16."""
    return True


def _stream() -> Any:
    from torchtpu.tensors.random import default_stream

    return default_stream


def manual_seed(seed: int) -> None:
    """Start the device's random stream of ``seed``."""
    _stream().set(int(seed), 0)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed from the operating system's entropy."""
    import os

    manual_seed(int.from_bytes(os.urandom(8), "little"))


seed_all = seed


def initial_seed() -> int:
    """The seed in use."""
    return int(_stream().seed)


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """The stream's state, a CPU ByteTensor of 16 bytes."""
    return _stream().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    """Restore a state from :func:`get_rng_state`."""
    _stream().set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Restore the states of all devices."""
    set_rng_state(states[0])


def _stats() -> dict[str, int]:
    from torchtpu.runtime import client

    return dict(client.device().memory_stats() or {})


_peak = [0]


def memory_allocated(device: Any = None) -> int:
    """Bytes in live device arrays."""
    from torchtpu.runtime import client

    stats = _stats()
    if "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    now = client.live_bytes()
    _peak[0] = max(_peak[0], now)
    return now


def max_memory_allocated(device: Any = None) -> int:
    """The peak of :func:`memory_allocated`; on CPU PJRT the largest value that was asked for."""
    return _stats().get("peak_bytes_in_use") or max(_peak[0], memory_allocated())


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peak anew (where the platform lets us: the CPU client)."""
    _peak[0] = 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds; equals :func:`memory_allocated` where PJRT does not say."""
    return _stats().get("bytes_reserved") or memory_allocated()


max_memory_reserved = memory_reserved


def memory_stats(device: Any = None) -> dict[str, int]:
    """PJRT's own statistics and ours."""
    return {
        **_stats(),
        "allocated_bytes.all.current": memory_allocated(),
        "allocated_bytes.all.peak": _peak[0],
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """:func:`memory_stats` as text."""
    return "\n".join(f"{k:40} {v:>16}" for k, v in memory_stats().items())


def empty_cache() -> None:
    """PJRT frees at once; nothing is cached."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes; zeros where the platform does not say."""
    stats = _stats()
    total = stats.get("bytes_limit", 0)
    return max(total - stats.get("bytes_in_use", 0), 0), total


class Stream:
    """One in-order stream per device: work is asynchronous to the host and ordered on the device."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("tpu", 0)

    def synchronize(self) -> None:
        """Wait for all work."""
        synchronize()

    def query(self) -> bool:
        """Whether the work is done; waits, as PJRT has no cheaper answer."""
        synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do: the device runs in order."""

    def wait_event(self, event: Any) -> None:
        """Nothing to do: the device runs in order."""

    def record_event(self, event: Any = None) -> Event:
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class Event:
    """A point in the device's work; times are taken on the host after waiting."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._time: float | None = None
        self._timing = enable_timing

    def record(self, stream: Any = None) -> None:
        """Note the point; with timing on, waits first so that the time means finished work."""
        import time

        if self._timing:
            synchronize()
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: the device runs in order."""

    def synchronize(self) -> None:
        """Wait for the work before the event."""
        synchronize()

    def query(self) -> bool:
        """Whether the work before the event is done."""
        synchronize()
        return True

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to ``other``."""
        if self._time is None or other._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (other._time - self._time) * 1e3


def current_stream(device: Any = None) -> Stream:
    """The device's stream."""
    return Stream()


default_stream = current_stream


def stream(value: Any) -> Any:
    """A context that selects a stream; the device has one."""
    import contextlib

    return contextlib.nullcontext(value)


def _lazy_init() -> None:
    from torchtpu.backend import registration

    registration.start()


def is_initialized() -> bool:
    """Whether the device was used."""
    from torchtpu.backend import registration

    return bool(registration._started)


# imported when asked for, as they are not needed to register the device
_LAZY = {
    "Generator": "torchtpu.tensors.random",
    "EagerMode": "torchtpu.backend.eager",
    "set_eager_mode": "torchtpu.backend.eager",
    "eager_mode": "torchtpu.backend.eager",
    "Precision": "torchtpu.backend.precision",
    "precision": "torchtpu.backend.precision",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint keeps the random state of such devices only
        return is_initialized()
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name.startswith("__"):
        raise AttributeError(name)
    from torchtpu.backend import namespaces

    return namespaces.find(name)
