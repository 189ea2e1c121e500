"""What a file holds, as text for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torchtpu.export import container


def render(path: str | os.PathLike[str]) -> str:
    """Inputs, outputs, stored tensors, platforms and versions of the file at ``path``."""
    info = container.info(path)
    programs = {name: len(container.program(path, name)[1]) for name in info.platforms}
    parameters = [s for s in info.state if s.kind == "parameter"]
    overwritten = [s.names[0] for k, s in enumerate(info.state) if k in info.writes]
    versions = ", ".join(f"{name} {version}" for name, version in info.versions.items())
    lines = [
        *_block("platforms", (f"{name}, a program of {size(count)}" for name, count in programs.items())),
        f"written by  {versions}",
        f"precision   {info.precision} for float32 products",
        *_block("inputs", map(str, info.inputs)),
        *_block("outputs", map(str, info.outputs)),
        *_block("dynamic", (f"{name}: {_range(*limits)}" for name, limits in info.dimensions.items())),
        f"parameters  {len(parameters)}, {size(sum(s.nbytes for s in parameters))}",
        f"others      {len(info.state) - len(parameters)} buffers and constants, "
        f"{size(info.nbytes - sum(s.nbytes for s in parameters))}",
        *_block("overwrites", overwritten),
        *([f"random      {info.draws} operators draw from the device's generator"] if info.draws else []),
    ]
    return "\n".join([*lines, *(costs(name, found) for name, found in info.compiled.items())])


def _block(title: str, items: Iterable[str]) -> list[str]:
    return [f"{title if not k else '':12}{item}" for k, item in enumerate(items)]


def _range(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"{least} to {most}"


def costs(topology: str, found: Mapping[str, Any]) -> str:
    """The compiler's numbers for one topology."""
    seconds = (
        "" if found["seconds"] is None else f", {found['seconds'] * 1e6:.4g} µs by the compiler's estimate"
    )
    return (
        f"on {topology}: {found['flops']:.4g} flops, {size(found['bytes_accessed'])} accessed, "
        f"{size(found['peak'])} of memory{seconds}"
    )


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
