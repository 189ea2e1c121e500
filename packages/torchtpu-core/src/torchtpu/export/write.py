"""`save`: a module or an exported program as a file."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtpu.export import ahead, container, graph, signature
from torchtpu.export.container import ExportError, Info
from torchtpu.runtime.client import PLATFORMS


def save(
    what: torch.nn.Module | ExportedProgram,
    path: str | os.PathLike[str],
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    platforms: Sequence[str] = ("cpu", "tpu"),
    dynamic_shapes: Any = None,
    topology: str | None = None,
) -> Info:
    """Write a program and its parameters to ``path``, to be run by `load` without the model's source.

    ``what`` is a module, which ``torch.export.export`` traces with ``args``, ``kwargs`` and ``dynamic_shapes``, or
    what that function gave. Its mode counts: call ``eval()`` first, unless the program shall train batch
    statistics. ``topology``, such as ``"v5e:2x2"``, compiles it for that TPU too, notes what the compiler says,
    and chooses kernels for that generation. float32 products get the precision that is in force now.
    Raises `ExportError` for what cannot be exported, naming the operator and its line.
    """
    platforms = _checked(platforms, topology)
    torch.empty(0, device="tpu")  # starts the device
    from torchtpu.export import lowering
    from torchtpu.runtime import precision

    program = graph.exported(what, args, kwargs, dynamic_shapes)
    lowered = graph.lowerable(program)
    plan = signature.plan(program, lowered)
    name = type(what).__name__ if isinstance(what, torch.nn.Module) else "exported"
    generation = None if topology is None else topology.partition(":")[0]
    closed, draws = lowering.trace(lowered, plan.wanted, platforms, generation)
    programs = {platform: lowering.serialize(name, closed, platform) for platform in platforms}
    writes = tuple(place for place, _ in plan.wanted.writes)
    found = Info(
        versions=versions(), platforms=platforms, precision=precision.current(), writes=writes, draws=draws,
        compiled={} if topology is None else {topology: ahead.numbers(ahead.compiled(programs["tpu"], topology, writes))},
        **plan.described,
    )  # fmt: skip
    container.write(path, found, programs, plan.tensors)
    return found


def _checked(platforms: Sequence[str], topology: str | None) -> tuple[str, ...]:
    given = (platforms,) if isinstance(platforms, str) else tuple(dict.fromkeys(platforms))
    unknown = [p for p in given if p not in PLATFORMS]
    if unknown or not given:
        raise ValueError(f"torchtpu: platforms must be some of {', '.join(PLATFORMS)}, not {platforms!r}")
    if topology is not None and "tpu" not in given:
        raise ValueError("torchtpu: topology= needs 'tpu' among the platforms")
    return given


def versions() -> dict[str, str]:
    """The versions that a file was written by."""
    names = ("torch", "jax", "torchtpu-core")
    return {name: importlib.metadata.version(name) for name in names}


__all__ = ["ExportError", "save"]
