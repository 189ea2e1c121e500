"""A process that compiles for TPUs: libtpu aborts the whole process on some programs."""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.conformance import harness
from torch.utils._pytree import tree_flatten

SECONDS = 180


@dataclass(frozen=True)
class Refusal:
    """A program that the TPU compiler does not take."""

    case: str
    program: str
    topology: str
    why: str


@dataclass
class Task:
    """One case and where to compile it; ``skip`` are the compilations that ended a worker."""

    op: str
    dtype: torch.dtype
    kind: str
    topologies: Sequence[str]
    limit: int | None
    skip: set[tuple[str, str]] = field(default_factory=set)


def _case(task: Task) -> harness.Case:
    found = (c for c in harness.cases([task.dtype], [task.kind]) if c.name == task.op)
    return next(found)


def _largest(case: harness.Case, limit: int | None) -> list[Any]:
    """The ``limit`` largest of the first samples: the very first is often empty."""

    def size(sample: Any) -> int:
        leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
        return sum(t.numel() for t in leaves if isinstance(t, torch.Tensor))

    return sorted(harness.samples(case, limit and 8 * limit), key=size, reverse=True)[:limit]


def _programs(case: harness.Case, limit: int | None) -> list[Any]:
    """What the samples compile; whether their values are right is another test's business."""
    from torchtpu.runtime.topology import collect

    with collect() as found:
        for sample in _largest(case, limit):
            try:
                harness.call(case, sample, "tpu")
            except Exception:  # what fails here fails in the comparison with the CPU
                continue
    return found


def _serve(pipe: Any, stderr: str) -> None:
    """Answer tasks with a ("try", …) before each compilation, ("refused", …), and ("done",)."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), 2)
    warnings.simplefilter("ignore")
    from torchtpu.runtime.topology import CompileError, HostOnlyError

    seen: set[Any] = set()
    while True:
        task: Task = pipe.recv()
        for program in _programs(_case(task), task.limit):
            for name in task.topologies:
                key = program.key(), name
                if key in seen or key in task.skip:
                    continue
                seen.add(key)
                pipe.send(("try", key[0], program.name, name))
                try:
                    program.compile_for(name)
                except HostOnlyError:
                    pipe.send(("host", name))
                except CompileError as error:
                    pipe.send(("refused", program.name, name, " ".join(str(error).split())))
        pipe.send(("done",))


class Worker:
    """The process, started again whenever it ends."""

    def __init__(self) -> None:
        self._log = tempfile.NamedTemporaryFile("r", suffix=".log")  # noqa: SIM115, lives as long as the worker
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, self._log.name), daemon=True)
        self._process.start()
        there.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._log.close()

    def run(self, case: harness.Case, topologies: Sequence[str], limit: int | None) -> Iterator[Any]:
        """Compile a case's programs; gives a topology's name for each, and a `Refusal` where it is due."""
        task = Task(case.name, case.dtype, case.kind, topologies, limit)
        last: Any = None
        self._pipe.send(task)
        while True:
            try:
                message = self._pipe.recv() if self._pipe.poll(SECONDS) else None
            except EOFError:
                message = None
            if message is None:
                why = self._restart()
                if last is None:
                    yield Refusal(str(case), "", "", f"before any compilation: {why}")
                    return
                yield Refusal(str(case), last[1], last[2], why)
                task.skip.add((last[0], last[2]))
                self._pipe.send(task)
            elif message[0] == "try":
                last = message[1:]
                yield last[2]
            elif message[0] == "host":
                yield f"{message[1]} on the host"
            elif message[0] == "refused":
                yield Refusal(str(case), *message[1:])
            else:
                return

    def _restart(self) -> str:
        """A new process; what the one before said at its end."""
        late = self._process.is_alive() and not self._pipe.poll(0)
        self._process.kill()
        self._process.join()
        words = re.findall(r"(?m)^F\d{4} .*?\] (.*)", self._log.read())
        self._start()
        if late and not words:
            return f"longer than {SECONDS} s"
        return f"the compiler aborts: {words[0] if words else 'without a word'}"
