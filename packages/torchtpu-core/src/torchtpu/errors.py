"""torchtpu's own errors; shape, dtype and index errors keep torch's types and words."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType


class TorchTpuError(RuntimeError):
    """The base of all errors that are about torchtpu itself."""


class PackError(TorchTpuError):
    """An operator pack that is required cannot be used."""


class PackApiError(PackError):
    """A pack was written for another version of the pack API."""


class BucketingError(TorchTpuError):
    """Padding of a size that varies cannot be proved exact."""


class GraphPassError(TorchTpuError):
    """A graph pass raised, or left a graph that cannot be used; the message names it and its pack."""


_INTERNAL = ("torch", "torchtpu", "torchtpu_ops", "torchtpu_kernels", "torchtpu_dist", "jax")


def _folders() -> tuple[str, ...]:
    """Where the modules that are not the user's lie; a user's folder may have the same name."""
    found = [getattr(sys.modules.get(name), "__file__", None) for name in _INTERNAL]
    return tuple([os.path.join(os.path.dirname(file), "") for file in found if file])


def internal(path: str) -> bool:
    """Whether a file belongs to torch, jax or us, or is no file."""
    return path.startswith(_folders()) or path.startswith("<")


def user_frame() -> str:
    """``file:line`` of the innermost frame that is neither torch's, jax's nor ours.

    In one of autograd's threads, which have no such frame, that of the main thread.
    """
    found = _outer(sys._getframe(1))
    if found is None and threading.current_thread() is not threading.main_thread():
        found = _outer(sys._current_frames().get(threading.main_thread().ident or 0))
    return found or "<unknown>"


def _outer(frame: FrameType | None) -> str | None:
    folders = _folders()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(folders):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
