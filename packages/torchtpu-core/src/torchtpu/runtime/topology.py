"""Programs for TPUs that are not here: named topologies, ahead-of-time compilation, and what it reports."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from torchtpu.errors import TorchTpuError
from torchtpu.plugins import selection
from torchtpu.runtime import client
from torchtpu.runtime.target import TARGETS, Target

# What libtpu reads when it is loaded on a host without TPUs: it must ask no metadata server, take no
# lock (one process at a time would have it), and not report the missing hardware.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


class CompileError(TorchTpuError):
    """The compiler refused a program for the named target; the message is the compiler's."""


class HostOnlyError(CompileError):
    """The program is one that runs on the host of a TPU, as its compiler does not take it."""


@dataclass(frozen=True)
class Topology:
    """Devices of a slice that need not exist; ``target`` is what one device has of its chip."""

    name: str
    devices: tuple[Any, ...] = field(repr=False)
    target: Target

    @property
    def generation(self) -> str:
        """``"v5e"``, ``"tpu7x"``, …"""
        return self.target.name


def _programs() -> Any:
    client.device()  # chooses JAX's platform, so JAX must not be there before
    from torchtpu.runtime import program

    return program


@contextmanager
def _environment() -> Iterator[None]:
    """Variables for loading libtpu; those that are set stay, and on a TPU host nothing changes."""
    added = {} if client.tpu_present() else {k: v for k, v in _WITHOUT_TPU.items() if k not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@cache
def topology(name: str) -> Topology:
    """The topology of a name like ``"v5e:2x2"``: generation, then chips along each axis.

    Raises ValueError for a name that libtpu does not know, TorchTpuError where libtpu is not installed.
    """
    target = chip(name)
    _programs()
    import jax
    from jax.experimental import topologies

    try:
        with _environment():
            devices = tuple(topologies.get_topology_desc(name, "tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"torchtpu: unknown TPU topology {name!r}: {error}") from None
    chips = len({tuple(d.coords) for d in devices})  # type: ignore[attr-defined]
    return Topology(name, devices, target.part(chips / len(devices)))


def chip(name: str) -> Target:
    """The chip of a name like ``"v5e:2x2"``; raises as `topology`, before libtpu is asked for the shape."""
    generation = name.partition(":")[0]
    if generation not in TARGETS:
        raise ValueError(f"torchtpu: unknown TPU topology {name!r}; generations: {', '.join(TARGETS)}")
    if importlib.util.find_spec("libtpu") is None:
        raise TorchTpuError("torchtpu: compiling for TPUs needs libtpu: pip install 'torchtpu[tpu]'")
    return TARGETS[generation]


def resolved(where: Topology | str) -> Topology:
    """The topology itself, or that of a name."""
    return topology(where) if isinstance(where, str) else where


@contextmanager
def refusals(name: str, where: Topology) -> Iterator[None]:
    """What JAX raises in the block for a program that the compiler does not take, as `CompileError`."""
    import jax

    try:
        yield
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
        raise CompileError(f"{name} on {where.name}: {error}") from error


@dataclass(frozen=True)
class Compiled:
    """What the compiler says about a program; sizes in bytes.

    ``seconds`` is the compiler's own estimate or None, ``peak`` the memory that must be there at once.
    """

    name: str
    topology: Topology
    flops: float
    bytes_accessed: float
    seconds: float | None
    arguments: int
    outputs: int
    temporaries: int
    code: int
    peak: int
    executable: Any = field(repr=False)

    @cached_property
    def hlo(self) -> str:
        """The optimized program in XLA's text form."""
        return str(self.executable.as_text())

    @property
    def fits(self) -> bool:
        """Whether the program's memory is there on one device."""
        return self.peak <= self.topology.target.hbm_bytes


def compile_for(
    what: Any, avals: Sequence[Any], where: Topology | str, donate: Sequence[int] = (), name: str = ""
) -> Compiled:
    """Compile a closed jaxpr, or a function of arrays like ``avals`` that returns a list, for one device.

    ``donate`` names inputs whose memory the outputs may take over. Raises `CompileError`,
    or `HostOnlyError` without trying for what a TPU leaves to the host.
    """
    programs = _programs()
    import jax

    from torchtpu.runtime import legalize

    where = resolved(where)
    if isinstance(what, Callable):  # type: ignore[arg-type]
        name, what = name or what.__name__, programs.trace(what, avals)
    why = legalize.refused(what)
    if why is not None:
        raise HostOnlyError(f"{name} on {where.name}: {why} run on the host")
    sharding = jax.sharding.SingleDeviceSharding(where.devices[0])
    with refusals(name, where):
        lowered, _ = programs.lower(name or "program", what, avals, donate, sharding)
        done = lowered.compile()
    return report(name, where, done)


def report(name: str, where: Topology, done: Any) -> Compiled:
    """What a compiled executable says of itself."""
    cost, memory = done.cost_analysis() or {}, done.memory_analysis()
    seconds = cost.get("optimal_seconds", -1.0)
    own = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Compiled(
        name=name,
        topology=where,
        flops=max(0.0, cost.get("flops", 0.0)),  # negative: not known
        bytes_accessed=max(0.0, cost.get("bytes accessed", 0.0)),
        seconds=seconds if seconds > 0 else None,  # negative: the program has a part without an estimate
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        peak=own + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        executable=done,
    )


@dataclass(frozen=True)
class Collected:
    """A program that was compiled while a collector was active."""

    name: str
    closed: Any
    avals: Sequence[Any]
    donate: tuple[int, ...]

    def key(self) -> str:
        """Equal for programs that do the same, also in another process."""
        text = f"{self.closed} {self.avals} {self.donate}"
        return hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", text).encode()).hexdigest()

    def compile_for(self, where: Topology | str) -> Compiled:
        """The program on a device of ``where``."""
        return compile_for(self.closed, self.avals, where, self.donate, self.name)


@contextmanager
def targeting(where: Topology | str) -> Iterator[Topology]:
    """Make new programs so that they can be compiled for ``where`` with the kernels that a TPU would get.

    What was compiled before is made anew. They still run here, with the lowerings.
    """
    where = resolved(where)
    programs = _programs()
    programs.forget_all()
    try:
        with selection.also_for("tpu", where.generation):
            yield where
    finally:
        programs.forget_all()


@contextmanager
def collect() -> Iterator[list[Collected]]:
    """Record every program that any mode compiles in the block, in every thread.

    What was compiled before the block is not compiled again, so it is not recorded.
    """
    observers = _programs().observers
    found: list[Collected] = []

    def record(name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int]) -> None:
        found.append(Collected(name, closed, avals, tuple(donate)))

    observers.append(record)
    try:
        yield found
    finally:
        observers.remove(record)
