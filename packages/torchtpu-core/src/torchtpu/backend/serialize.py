"""torch.save and torch.load for the device's storages."""

from __future__ import annotations

from typing import Any

import torch

from torchtpu.tensors.storage import TpuStorage, raw_storage


def _tag(storage: Any) -> str | None:
    return "tpu:0" if isinstance(storage, TpuStorage) else None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("tpu"):
        return None
    return to_tpu(storage)


def to_tpu(storage: Any) -> TpuStorage:
    """A device storage with the bytes of a CPU storage."""
    if isinstance(storage, TpuStorage):
        return storage
    return raw_storage(storage.nbytes()).copy_(storage)


_done: list[bool] = []


def register() -> None:
    """Tell torch.serialization how to tag and restore storages; once."""
    if not _done:
        _done.append(True)
        torch.serialization.register_package(9, _tag, _restore)
