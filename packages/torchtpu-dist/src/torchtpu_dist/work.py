"""A group's thread that launches its collectives one after the other, and the handles of those."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jax  # noqa: F401  # its handler at exit is registered before ours
import torch
import torch.distributed as dist

from torchtpu import config
from torchtpu.runtime import client
from torchtpu_dist.agreement import Agreement, CollectiveError, CollectiveTimeout, Post, own_connection
from torchtpu_dist.history import History, dump
from torchtpu_dist.turns import turns

LOOK = 1.0  # seconds after which a waiting rank looks at what the others are doing
lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


class Job(dist.Work):
    """The handle of one collective: ``run`` is called on the lane's thread and returns the result tensors."""

    def __init__(self, lane: Lane, post: Post, run: Callable[[Any], list[torch.Tensor]], meets: bool) -> None:
        super().__init__()
        self.lane, self.post, self.run, self.meets = lane, post, run, meets
        self.tensors: list[torch.Tensor] = []
        self.error: BaseException | None = None
        self.launched = False
        self._done = threading.Event()
        self._future: Any = None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._entry = lane.history.add(post)

    def launching(self) -> None:
        """Called on the lane's thread when the ranks have agreed."""
        self.launched, self._entry.launched = True, time.monotonic()

    def finish(self, tensors: list[torch.Tensor], error: BaseException | None) -> None:
        """Called once, on the lane's thread or when a waiter gives up."""
        with self._lock:
            if self._done.is_set():
                return
            self.tensors, self.error = tensors, error
            self._entry.ended, self._entry.failed = time.monotonic(), error is not None
            self.run = _nothing  # frees the inputs
            self._done.set()
            future = self._future
        if future is not None:
            _settle(future, tensors, error)

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._done.is_set() and self.error is None

    def exception(self) -> Any:
        """Its error, or None."""
        return self.error

    def result(self) -> list[torch.Tensor]:
        """The result tensors; waits."""
        self.wait()
        return self.tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the results are in place; raises what went wrong, in time."""
        limit = timeout.total_seconds() if timeout else 0
        deadline = self._began + limit if limit > 0 else None
        while not self._done.wait(self._pause(deadline)):
            problem = self.lane.watch(self)
            if problem is None and deadline is not None and time.monotonic() >= deadline:
                problem = self.lane.watching.late(self.post, limit)
            if problem is not None:
                self.lane.fail(problem)
                self.finish([], problem)
        if self.error is not None:
            raise self.error
        return True

    def _pause(self, deadline: float | None) -> float:
        look = min(LOOK, self.lane.timeout)
        return look if deadline is None else min(look, max(deadline - time.monotonic(), 0))

    def get_future(self) -> Any:
        """A future of the result tensors."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future(devices=None)
                if self._done.is_set():
                    _settle(self._future, self.tensors, self.error)
            return self._future


def _nothing(facts: Any) -> list[torch.Tensor]:
    return []


def _settle(future: Any, tensors: list[torch.Tensor], error: BaseException | None) -> None:
    if error is None:
        future.set_result(tensors)
    else:
        future.set_exception(error)


def _trusting() -> bool:
    """Whether collectives that were agreed on before are launched at once.

    XLA's CPU collectives end the process where sizes differ, so there each one is compared first;
    ``TORCHTPU_COLLECTIVE_CHECK=all|new`` chooses.
    """
    chosen = config.env("COLLECTIVE_CHECK")
    return chosen == "new" if chosen else client.platform() != "cpu"


class Lane:
    """The thread of one group. After an error that leaves the ranks at different points it refuses work."""

    def __init__(self, store: Any, ranks: tuple[int, ...], me: int, timeout: timedelta) -> None:
        # with all comparisons, ranks may also call the collectives of different groups in different orders
        self.in_turn = trusting = _trusting()
        self.agreement = Agreement(own_connection(store, timeout), ranks, me, trusting)
        self.watching = Agreement(own_connection(store, timeout), ranks, me, trusting)  # for waiting threads
        self.history = History(ranks, me)
        self.timeout = timeout.total_seconds()
        self.broken: BaseException | None = None
        self.last: Job | None = None
        self._count = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._watch_lock = threading.Lock()
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="torchtpu collectives")
        self._thread.start()
        lanes.add(self)

    def submit(
        self,
        what: str,
        where: str,
        run: Callable[[Any], list[torch.Tensor]],
        facts: Any = None,
        meets: bool = False,
    ) -> Job:
        """Queue a collective."""
        self._whole()
        with turns.lock:
            self._count += 1
            job = Job(self, Post(self._count, what, where, facts), run, meets)
            self.last = job
            if self.in_turn:
                turns.join(job)
            self._jobs.put(job)
        return job

    def launched(self) -> None:
        """Called on the lane's thread when its collective is launched, and before it is complete."""
        if self._current is not None:
            turns.leave(self._current)

    def _whole(self) -> None:
        if self.broken is not None:
            raise CollectiveError(f"torchtpu: the group cannot go on after: {self.broken}") from self.broken

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._current = job
            try:
                self._whole()
                facts = self.agreement.announce(job.post, self.timeout, job.meets)
                if self.in_turn and not turns.wait(job, self.timeout):
                    raise self.agreement.late(job.post, self.timeout)
                job.launching()
                job.finish(job.run(facts), None)
            except BaseException as error:
                found = self._explained(job, error)
                self.fail(found)
                job.finish([], found)
            turns.leave(job)
            self._current = None
            del job  # or it would live until the next one

    def _explained(self, job: Job, error: BaseException) -> BaseException:
        if isinstance(error, CollectiveError | TypeError | ValueError):
            return error
        try:
            self.agreement.inspect(job.post)
        except CollectiveError as disagreement:
            return disagreement
        except Exception:  # the store's host is gone as well
            pass
        return CollectiveError(
            f"torchtpu: {job.post.what} at {job.post.where} failed; another rank may have ended: {error}"
        )

    def fail(self, error: BaseException) -> None:
        """Refuse further work; a timeout tells what all groups have done last."""
        if self.broken is None:
            self.broken = error
            turns.wake()
            if isinstance(error, CollectiveTimeout):
                dump(self.history, error)

    def watch(self, job: Job) -> BaseException | None:
        """What a waiting thread finds wrong with a job that takes long."""
        if not job.launched:
            return None  # the lane itself waits for the others, and raises
        with self._watch_lock:
            try:
                self.watching.inspect(job.post)
                if time.monotonic() - job._began < self.timeout:
                    return None
                return self.watching.late(job.post, self.timeout)
            except CollectiveError as error:
                return error
            except Exception as error:  # the store's host is gone
                return CollectiveError(f"torchtpu: {job.post.what} at {job.post.where}: {error}")

    def close(self, patience: float) -> None:
        """End the thread; one that is stuck in a launch is left behind."""
        self._jobs.put(None)
        self._thread.join(patience)
        self.agreement.closed = True
        if self._current is not None and not self._current.launched:
            self._thread.join(patience)
        current = self._current
        if current is not None:
            self.fail(CollectiveError("torchtpu: the process group was destroyed"))
            current.finish([], self.broken)

    def stuck(self) -> bool:
        """Whether XLA is still in a collective that was given up."""
        return self._current is not None and self._current.launched and self.broken is not None


@atexit.register  # this module comes after jax, so before jax's own handler
def _leave() -> None:
    """XLA cannot abort a collective that waits for another rank, and ending its client waits for it."""
    for lane in list(lanes):
        lane.close(patience=0.2)
    if any(lane.stuck() for lane in list(lanes)):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1 if hasattr(sys, "last_value") else 0)
