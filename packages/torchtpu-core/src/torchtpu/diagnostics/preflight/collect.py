"""Watches a run: every distinct program, when it is launched, what the host reads, what runs on the host."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from torchtpu.dispatch import fallback
from torchtpu.errors import user_frame
from torchtpu.runtime import client, dry, topology, transfer
from torchtpu.runtime.legalize import equations
from torchtpu.tensors import random
from torchtpu.tensors.pending import Pending
from torchtpu.tensors.storage import TpuStorage

from . import record


class Stop(BaseException):
    """Enough steps were seen; not an Exception, so that scripts do not catch it."""


class Collector:
    """Fills in a report while a script runs; ``limit`` is the number of steps after which it stops."""

    def __init__(self, report: record.Report, limit: int) -> None:
        self.report, self.limit = report, limit
        self.step = 0  # the one that is running; 0 until the first optimizer step, or call, begins
        self.traced: list[topology.Collected] = []
        self._known: dict[str, record.ProgramReport] = {}
        self._lock = threading.RLock()
        self._optimizer: Any = None
        self._hosting = ""
        self._closing = False  # what is flushed now is half a step

    def register(
        self, name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int]
    ) -> Callable[[], None]:
        """Note a program; what to call at its launches."""
        if self._closing:
            return lambda: None
        made = topology.Collected(name, closed, avals, tuple(donate))
        key = made.key()
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = record.ProgramReport(
                    len(self.traced) + 1, name, user_frame(), sum(1 for _ in equations(closed.jaxpr)), self.step,
                    inputs=record.shown(avals),
                )  # fmt: skip
                self.report.programs.append(found)
                self.traced.append(made)
        return lambda: self._launched(found)

    def _launched(self, found: record.ProgramReport) -> None:
        found.launches[self.step] = found.launches.get(self.step, 0) + 1
        found.held = max(found.held, client.live_bytes())

    def read(self, array: Any) -> None:
        """The host waits for an array."""
        where = user_frame()
        if where != self._hosting:  # an operator on the host is told as such
            record.noted(self.report.reads, "the host reads a tensor", where, self.step)

    def host(self, name: str, declared: bool) -> None:
        """An operator runs on the host."""
        self._hosting = user_frame()
        places = self.report.hosts if declared else self.report.fallbacks
        record.noted(places, name, self._hosting, self.step)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """The first optimizer's step begins, and a window with one whole cycle; enough of them end the run.

        What fused mode records is launched after the step, so a window reaches from one step to the next.
        """
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is self._optimizer:
            if self.step > 0:
                self.end_step()
            self.step = self.report.steps + 1
            if self.report.steps >= self.limit:
                raise Stop

    def end_step(self) -> None:
        """One more whole step."""
        self.report.steps += 1

    @contextmanager
    def active(self, run: bool) -> Iterator[None]:
        """Watch the block; its programs run only if ``run``, else their results are zeros."""
        transfer.readers.append(self.read)
        fallback.hosts.append(self.host)
        try:
            with dry.watching(self.register, run):
                try:
                    yield
                except BaseException:
                    self._closing = True
                    raise
                finally:  # nothing recorded may run later, when programs are real again
                    Pending.flush("the preflight ended")
        finally:
            transfer.readers.remove(self.read)
            fallback.hosts.remove(self.host)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Take each step of the first optimizer for a step."""
        hook = register_optimizer_step_pre_hook(self.before_step)
        try:
            yield
            if self.step > self.report.steps:  # the script's own last step
                self.end_step()
        finally:
            hook.remove()


@contextmanager
def untouched(where: topology.Topology) -> Iterator[None]:
    """Make programs for ``where``; afterwards the tensors that were there have the values that they had."""
    Pending.flush("a preflight begins")
    kept = [(s, s.buffer, s.layout, s.shared, s.views) for s in gc.get_objects() if type(s) is TpuStorage]
    for storage, *_ in kept:
        storage.shared = True  # no program may take the memory that is to come back
    state = random.default_stream.get_state()
    try:
        with topology.targeting(where):
            yield
    finally:
        for storage, buffer, layout, shared, views in kept:
            storage.buffer, storage.layout, storage.shared, storage.views = buffer, layout, shared, views
        random.default_stream.set_state(state)


def user_failure(error: BaseException) -> record.Failure:
    """The exception with the innermost of the user's lines and the trace of those alone."""
    import traceback

    from torchtpu.errors import internal

    frames = [f for f in traceback.extract_tb(error.__traceback__) if not internal(f.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "<unknown>"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    trace = "".join(traceback.format_list(frames))
    return record.Failure(type(error).__name__, str(error), where, record.source_line(where), trace)
