"""Compiles an exported program for a TPU that is not here, and tells what the compiler says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchtpu.runtime.topology import Compiled, Topology

_NUMBERS = ("flops", "bytes_accessed", "seconds", "arguments", "outputs", "temporaries", "code", "peak")


def compile(path: str | os.PathLike[str], topology: str | Topology) -> Compiled:
    """What the TPU's own compiler makes of the file at ``path``, for one device of ``topology``, like ``"v5e:2x2"``.

    The result has ``flops``, ``bytes_accessed``, ``peak`` and other sizes in bytes, ``seconds`` (the compiler's
    estimate or None), ``fits`` and ``hlo``. Needs ``libtpu`` and no TPU. Raises ``CompileError`` with the
    compiler's words, ValueError for an unknown topology, `ExportError` for a file that has no TPU program.
    """
    from torchtpu.export import container

    info, data = container.program(path, "tpu")
    if info.dimensions:
        raise container.ExportError(
            "torchtpu: a program with dynamic dimensions cannot be compiled without their sizes"
        )
    return compiled(data, topology, info.writes)


def compiled(data: bytes, topology: str | Topology, writes: Sequence[int]) -> Compiled:
    """A serialized program on one device of ``topology``; it may reuse the memory of the arguments ``writes``."""
    from torchtpu.runtime import client, portable

    client.device()  # chooses JAX's platform, so JAX must not be there before
    from jax import export

    made = export.deserialize(bytearray(data))
    return portable.compile_exported(made.fun_name, made, tuple(writes), topology)


def numbers(found: Compiled) -> dict[str, Any]:
    """What is noted of a compiled program in a file."""
    return {name: getattr(found, name) for name in _NUMBERS}
