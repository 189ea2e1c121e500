"""Preflight: what a script would do on a TPU that is not here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Report

__all__ = ["preflight"]


def preflight(
    fn: Callable[..., Any],
    *args: Any,
    topology: str,
    steps: int = 3,
    values: str = "zeros",
    effort: str = "quick",
    **kwargs: Any,
) -> Report:
    """Call ``fn(*args, **kwargs)`` ``steps`` times and compile every program that it launches for ``topology``.

    Nothing needs a TPU: libtpu compiles in another process. With ``values="zeros"`` nothing runs either:
    what is computed on the device reads as zeros, tensors that were there keep their values, and what ``fn``
    leaves in Python objects (an optimizer's state, gradients) is zeros as well. ``values="cpu"`` computes.
    ``effort="full"`` compiles as for a run, up to ten times as long; less memory for temporaries may be the gain.
    An exception of ``fn`` is in the report. ValueError for unknown arguments, TorchTpuError where
    the compiler does not know the topology or is not installed.

    Example:
        report = torchtpu.preflight(step, batch, topology="v5e:2x2")
        print(report)
        open("report.html", "w").write(report.html())
    """
    from torchtpu.tensors.pending import Pending

    from .drive import Flight

    flight = Flight(getattr(fn, "__qualname__", repr(fn)), topology, steps, values, effort)

    def run() -> None:
        for _ in range(steps):
            flight.collector.step = flight.report.steps + 1
            fn(*args, **kwargs)
            Pending.flush("a call of the preflight ended")
            flight.collector.end_step()

    return flight.finish(run)


def preflight_script(
    path: Path,
    args: tuple[str, ...],
    topology: str,
    steps: int = 3,
    values: str = "zeros",
    effort: str = "quick",
) -> Report:
    """Run a script until its first optimizer has made ``steps`` steps; otherwise as `preflight`.

    A script for CUDA runs as one for the tpu device, and the report lists every replacement.
    """
    from . import script
    from .drive import Flight

    flight = Flight(str(path), topology, steps, values, effort)

    def run() -> None:
        with flight.collector.counting():
            script.run(path, args, flight.report.replacements)

    return flight.finish(run)
