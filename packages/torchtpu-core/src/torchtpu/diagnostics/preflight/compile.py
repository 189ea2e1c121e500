"""Compiles what was collected, in a process that may die."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torchtpu.errors import TorchTpuError
from torchtpu.runtime import portable
from torchtpu.runtime.program import used
from torchtpu.runtime.target import Target
from torchtpu.runtime.topology import Collected, HostOnlyError

from . import worker
from .record import ProgramReport, Report

SECONDS = 300  # for one program, or for the compiler's start


class Worker:
    """The compiling process, started at the first need and again after its death."""

    def __init__(self, topology: str, quick: bool = True) -> None:
        self._topology, self._quick = topology, quick
        self._log = tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace")  # noqa: SIM115, closed below
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it loads while the caller does other things."""
        here, there = socket.socketpair()
        with there, open(self._log.name, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(there.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[there.fileno()],
                env={**os.environ, "TORCHTPU_PLATFORM": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for us
            )  # fmt: skip
        self._pipe = Connection(here.detach())
        self._pipe.send(self._topology)
        self._target: Target | None = None

    def target(self) -> Target:
        """What one device of the topology has; TorchTpuError for a topology that libtpu does not know."""
        try:
            if self._process is None:
                self.start()
            if self._target is None:
                state, said = self._receive()
                if state != "ready":
                    raise TorchTpuError(said)
                self._target = said
        except EOFError:
            raise TorchTpuError(f"torchtpu: the compiler does not start: {self._last_words()}") from None
        return self._target

    def compile(self, data: bytes) -> tuple[str, Any]:
        """The state of a program, with its numbers or the compiler's words."""
        state, said = self._compile(data, self._quick)
        if self._quick and _lacks_memory(state, said, self._target):
            return self._compile(data, False)  # trying harder takes less memory
        return state, said

    def _compile(self, data: bytes, quick: bool) -> tuple[str, Any]:
        try:
            self.target()
            self._pipe.send((data, quick))
            return self._receive()
        except TimeoutError:
            self.close()
            return "late", f"the compiler needs longer than {SECONDS} s"
        except (EOFError, OSError):
            self.close()
            return "aborted", self._last_words()

    def _receive(self) -> tuple[str, Any]:
        if not self._pipe.poll(SECONDS):
            raise TimeoutError
        return self._pipe.recv()  # type: ignore[no-any-return]

    def _last_words(self) -> str:
        with open(self._log.name, errors="replace") as log:
            text = log.read()
        fatal = re.findall(r"(?m)^F\d{4} .*?\] (.*)", text)
        return f"the compiler ended its process: {fatal[0] if fatal else text.strip()[-500:] or 'without a word'}"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.wait()
            self._process = None


def _lacks_memory(state: str, said: Any, target: Target | None) -> bool:
    if state == "refused":
        return "RESOURCE_EXHAUSTED" in said
    return state == "compiled" and target is not None and said["peak"] > target.hbm_bytes


def compile_all(
    report: Report,
    traced: Sequence[Collected],
    worker: Worker,
    target: Target,
    tell: Callable[[ProgramReport], None],
) -> None:
    """Fill in what the compiler says of each program; ``tell`` is called before each."""
    for found, program in zip(report.programs, traced, strict=True):
        tell(found)
        try:
            data = portable.dumps(program.name, program.closed, program.avals, program.donate)
        except HostOnlyError as error:
            found.state, found.error = "host", str(error)
        except Exception as error:  # whatever JAX says of a primitive without a TPU lowering
            found.state, found.error = "refused", f"{type(error).__name__}: {error}"
        else:
            found.state, said = worker.compile(data)
            _fill(found, program, said, target)


def _fill(found: ProgramReport, program: Collected, said: Any, target: Target) -> None:
    if found.state != "compiled":
        found.error = str(said)
        return
    for name, value in said.items():
        setattr(found, name, value)
    read = used(program.closed)
    own = sum(math.prod(program.avals[k].shape) * program.avals[k].dtype.itemsize for k in read)
    found.hbm = found.peak + max(0, found.held - own)
    found.roofline = target.roofline(found.flops, found.bytes_accessed)
    found.mfu = found.flops / (target.bf16_flops * found.roofline) if found.roofline else 0.0
