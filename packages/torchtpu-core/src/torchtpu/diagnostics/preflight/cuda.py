"""What stands for ``torch.cuda`` while a script written for CUDA is tried: ``torch.tpu`` and a few names more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

# what a name of torch.cuda is to be replaced with; other names that torch.tpu has keep their name
REPLACED = {
    "amp.autocast": 'torch.amp.autocast("tpu")',
    "amp.GradScaler": 'torch.amp.GradScaler("tpu"); bfloat16 needs no scaler',
    "amp.custom_fwd": 'torch.amp.custom_fwd(device_type="tpu")',
    "amp.custom_bwd": 'torch.amp.custom_bwd(device_type="tpu")',
    "nvtx": "torch.profiler.record_function",
    "get_device_capability": "nothing: bfloat16 is there on every TPU",
    "ipc_collect": "nothing",
    "is_current_stream_capturing": "nothing: fused mode and torch.compile take the place of CUDA graphs",
    "CUDAGraph": "nothing: fused mode and torch.compile take the place of CUDA graphs",
    "graph": "nothing: fused mode and torch.compile take the place of CUDA graphs",
}


class amp:
    """``torch.cuda.amp``."""

    autocast = partial(torch.amp.autocast, "tpu")
    GradScaler = partial(torch.amp.GradScaler, "tpu")
    custom_fwd = partial(torch.amp.custom_fwd, device_type="tpu")
    custom_bwd = partial(torch.amp.custom_bwd, device_type="tpu")


class nvtx:
    """``torch.cuda.nvtx``: marks that go nowhere."""

    @staticmethod
    def range_push(message: str) -> int:
        """Nothing."""
        return 0

    @staticmethod
    def range_pop() -> int:
        """Nothing."""
        return 0

    @staticmethod
    @contextmanager
    def range(message: str) -> Iterator[None]:
        """Nothing."""
        yield


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The least that has bfloat16."""
    return (8, 0)


def ipc_collect() -> None:
    """Nothing to collect."""


def is_current_stream_capturing() -> bool:
    """Never."""
    return False


def replacement(name: str) -> str:
    """What to write for ``torch.cuda.<name>``."""
    for known, text in REPLACED.items():
        if name == known or name.startswith(f"{known}."):
            return text
    first = name.partition(".")[0]
    if not first:
        return "torch.tpu"
    return f"torch.tpu.{name}" if hasattr(torch.tpu, first) else "nothing: a TPU has no counterpart"


def __getattr__(name: str) -> Any:
    found = getattr(torch.tpu, name, None)
    if found is None:
        raise AttributeError(f"torch.cuda.{name} has no counterpart on a TPU; remove it")
    return found
