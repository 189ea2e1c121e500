"""Chooses the implementation of a call, once for each program key, and keeps the decision.

``TORCHTPU_KERNELS`` is a list like ``acme.tiled,-other.fast,-third,require``: a name is preferred, a name with a
minus is switched off (a pack's name stands for all its kernels), ``require`` makes a kernel's failure an error.
"""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchtpu import events
from torchtpu.errors import user_frame
from torchtpu.plugins.records import CallSpec, Kernel

REQUIRE = "require"
KEPT = 1000  # decisions
_decisions: deque[Decision] = deque(maxlen=KEPT)
_failed: dict[str, str] = {}  # kernels that could not be compiled, by name
_lock = threading.Lock()
_elsewhere: list[tuple[str, str | None]] = []  # platform and generation of absent devices


@dataclass(frozen=True)
class Decision:
    """What serves one call: a kernel's name or ``"lowering"``; each candidate before it with its reason."""

    call: CallSpec
    chosen: str
    skipped: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_show(value)}" for name, value in self.call.args.items())
        lines = [f"{self.call.op}({shown}) on {self.call.target}: {self.chosen}"]
        return "\n".join(lines + [f"  not {name}: {reason}" for name, reason in self.skipped])


def _show(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    return f"[{', '.join(map(_show, value))}]" if isinstance(value, list | tuple) else repr(value)


def targets(platform: str) -> list[tuple[str, str | None]]:
    """The (platform, generation) pairs that a program is made for: the device's and the absent ones'."""
    return [(platform, None), *(pair for pair in _elsewhere if pair[0] != platform)]


@contextmanager
def also_for(platform: str, generation: str | None) -> Iterator[None]:
    """Choose kernels for a device that is not here, too, in every thread; new programs only."""
    _elsewhere.append((platform, generation))
    try:
        yield
    finally:
        _elsewhere.remove((platform, generation))


def full_name(kernel: Kernel) -> str:
    """``pack.kernel``."""
    origin = kernel.origin
    return f"{origin.pack or origin.distribution}.{kernel.name}" if origin is not None else kernel.name


def function(kernel: Kernel) -> Callable[..., Any]:
    """The kernel's function; imports its module when it is given by name."""
    if not isinstance(kernel.fn, str):
        return kernel.fn
    module, _, attribute = kernel.fn.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return found  # type: ignore[no-any-return]


def _wishes() -> list[str]:
    return [part.strip() for part in os.environ.get("TORCHTPU_KERNELS", "").split(",") if part.strip()]


def required() -> bool:
    """Whether a kernel that fails is an error."""
    return REQUIRE in _wishes()


def _matches(wish: str, kernel: Kernel) -> bool:
    name = full_name(kernel)
    return wish == name or wish == name.rpartition(".")[0]


def ranked(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Candidates in order: the user's preference, then priority, distribution and name."""
    wanted = [w for w in _wishes() if not w.startswith("-")]

    def key(kernel: Kernel) -> tuple[Any, ...]:
        place = next((i for i, w in enumerate(wanted) if _matches(w, kernel)), len(wanted))
        owner = kernel.origin.distribution if kernel.origin is not None else ""
        return place, -kernel.priority, owner, kernel.name

    return sorted(kernels, key=key)


def why_not(kernel: Kernel, call: CallSpec) -> str | None:
    """Why a kernel cannot serve a call, or None; a predicate that raises is a reason too."""
    if any(w.startswith("-") and _matches(w[1:], kernel) for w in _wishes()):
        return "switched off by TORCHTPU_KERNELS"
    if call.target not in kernel.platforms:
        return f"not for {call.target}"
    if kernel.generations is not None and call.generation not in kernel.generations:
        return f"not for generation {call.generation}"
    if call.training and kernel.vjp is None:
        return "training: it has no gradient"
    if full_name(kernel) in _failed:
        return f"failed before: {_failed[full_name(kernel)]}"
    try:
        return kernel.unsuitable(call)
    except Exception as error:
        return f"its predicate raised {type(error).__name__}: {error}"


def choose(call: CallSpec, kernels: Iterable[Kernel]) -> Kernel | None:
    """The first kernel without a reason against it, or None for the lowering; the decision is kept."""
    skipped: list[tuple[str, str]] = []
    chosen = None
    for kernel in ranked(kernels):
        reason = why_not(kernel, call)
        if reason is None:
            chosen = kernel
            break
        skipped.append((full_name(kernel), reason))
    decision = Decision(call, "lowering" if chosen is None else full_name(chosen), tuple(skipped))
    with _lock:
        _decisions.append(decision)
    if "choice" in events.handlers:
        events.emit(events.Event(
            kind="choice", name=call.op, where=user_frame(), source=decision.chosen, seconds=0.0,
            reason=str(decision),
        ))  # fmt: skip
    return chosen


def failed(kernel: Kernel, error: BaseException) -> None:
    """Remember that a kernel cannot be compiled, so that it is not tried again in this process."""
    text = str(error).strip().splitlines()
    reason = _failed[full_name(kernel)] = f"{type(error).__name__}: {text[0] if text else ''}"
    if "failure" in events.handlers:
        events.emit(events.Event(
            kind="failure", name=kernel.op, where=user_frame(), source=full_name(kernel), seconds=0.0,
            reason=reason,
        ))  # fmt: skip


def refuse(kernel: Kernel, error: Exception) -> None:
    """Take the lowering from now on, with one warning; the error itself where kernels are required."""
    if required():
        raise error
    failed(kernel, error)
    warnings.warn(
        f"torchtpu: kernel {full_name(kernel)} failed, the lowering serves {kernel.op}: {error}", stacklevel=3
    )


def decisions() -> list[Decision]:
    """The latest decisions, oldest first, of calls for which there was a kernel to choose."""
    with _lock:
        return list(_decisions)


def forget() -> None:
    """Drop the decisions and the failures, for tests."""
    with _lock:
        _decisions.clear()
        _failed.clear()
