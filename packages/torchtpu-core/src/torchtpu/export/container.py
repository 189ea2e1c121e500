"""The file: a zip of a description in JSON, a program for each platform, and each tensor's bytes.

The programs are what `jax.export` serializes: StableHLO in a form that later versions read too.

Nothing in it is pickled, so reading a file runs no code of its writer's. Tensors are stored once, also when
several names share them, and not in the program.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from torchtpu.errors import TorchTpuError

FORMAT, VERSION = "torchtpu.export", 1
DESCRIPTION, PROGRAM, STATE = "description.json", "program/{}", "state/{}"
Size = int | str  # a name stands for a dynamic dimension


class ExportError(TorchTpuError):
    """A program that cannot be exported, or a file that cannot be used here."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A tensor of the file under the ``names`` that share it; ``kind`` is parameter, buffer or constant."""

    names: tuple[str, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    persistent: bool = True

    @property
    def nbytes(self) -> int:
        """Its bytes in the file and on the device."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class Input:
    """One leaf of the arguments: a tensor of ``dtype`` and ``shape``, or, without a dtype, the fixed ``value``."""

    name: str
    dtype: str | None = None
    shape: tuple[Size, ...] = ()
    value: Any = None

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.dtype, self.shape, self.value)}"


@dataclass(frozen=True, kw_only=True)
class Output:
    """One leaf of the result, as `Input`; ``order`` lists the dimensions from the slowest to the fastest."""

    dtype: str | None = None
    shape: tuple[Size, ...] = ()
    order: tuple[int, ...] = ()
    value: Any = None

    def __str__(self) -> str:
        return _shown(self.dtype, self.shape, self.value)


def _shown(dtype: str | None, shape: Sequence[Size], value: Any) -> str:
    return repr(value) if dtype is None else f"{dtype}[{', '.join(map(str, shape))}]"


@dataclass(frozen=True, kw_only=True)
class Info:
    """What a file says of itself.

    ``state`` and then the tensors of ``inputs`` are the program's arguments, and ``writes`` names those that it
    overwrites. ``dimensions`` holds the least and the greatest size (or None) of each dynamic dimension. ``draws``
    is how many random operators run, ``precision`` that of float32 products. ``positional`` and ``keywords``
    name the arguments. ``compiled`` has the compiler's numbers by topology.
    """

    versions: Mapping[str, str]
    platforms: tuple[str, ...]
    precision: str
    state: tuple[State, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    writes: tuple[int, ...]
    draws: int
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    in_spec: str
    out_spec: str
    dimensions: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    compiled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors that are stored."""
        return sum(s.nbytes for s in self.state)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a name like ``float32``."""
    return getattr(torch, name)  # type: ignore[no-any-return]


def write(
    path: str | os.PathLike[str], info: Info, programs: Mapping[str, bytes], tensors: Sequence[torch.Tensor]
) -> None:
    """Write a file, complete or not at all: programs by platform, the tensors of ``info.state`` on any device."""
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
            description = {"format": FORMAT, "version": VERSION, **asdict(info)}
            file.writestr(DESCRIPTION, json.dumps(description, indent=1))
            for platform, program in programs.items():
                file.writestr(PROGRAM.format(platform), program, zipfile.ZIP_DEFLATED)
            for number, tensor in enumerate(tensors):
                with file.open(STATE.format(number), "w", force_zip64=True) as stream:
                    stream.write(_raw(tensor))
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _raw(tensor: torch.Tensor) -> Any:
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return host.view(torch.uint8).numpy().data if host.numel() else b""


def info(path: str | os.PathLike[str]) -> Info:
    """What the file at ``path`` says of itself; raises as `load`."""
    return _reading(path, _describe)


def read(
    path: str | os.PathLike[str], platform: str, place: Callable[[torch.Tensor], Any]
) -> tuple[Info, bytes, list[Any]]:
    """A file's description, its program for ``platform``, and what ``place`` makes of each CPU tensor of its state.

    Raises `ExportError` for what is not such a file, is damaged, is of a newer format or has no such program,
    OSError as `open`.
    """

    def take(file: zipfile.ZipFile) -> tuple[Info, bytes, list[Any]]:
        found = _describe(file)
        data = _program(file, found, platform)
        return found, data, [place(_tensor(file, number, state)) for number, state in enumerate(found.state)]

    return _reading(path, take)  # type: ignore[no-any-return]


def program(path: str | os.PathLike[str], platform: str) -> tuple[Info, bytes]:
    """`read` without the tensors."""

    def take(file: zipfile.ZipFile) -> tuple[Info, bytes]:
        found = _describe(file)
        return found, _program(file, found, platform)

    return _reading(path, take)


def _reading(path: str | os.PathLike[str], take: Callable[[zipfile.ZipFile], Any]) -> Any:
    name = os.fspath(path)
    with open(name, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ExportError(f"torchtpu: {name} is not a whole file of torchtpu.export")
        try:
            with zipfile.ZipFile(stream) as file:
                return take(file)
        except (zipfile.BadZipFile, EOFError, KeyError, TypeError, ValueError, zlib.error) as error:
            raise ExportError(f"torchtpu: {name} is damaged: {error}") from error
        except ExportError as error:
            raise ExportError(f"torchtpu: {name} {error}") from None


def _describe(file: zipfile.ZipFile) -> Info:
    try:
        found = json.loads(file.read(DESCRIPTION))
    except KeyError:
        raise ExportError("is not a file of torchtpu.export") from None
    if found.pop("format") != FORMAT:
        raise ExportError("is not a file of torchtpu.export")
    version = found.pop("version")
    if version != VERSION:
        raise ExportError(
            f"has format {version}, this torchtpu reads format {VERSION}; it was written by {found.get('versions')}"
        )
    for name, kind in (("state", State), ("inputs", Input), ("outputs", Output)):
        found[name] = tuple(kind(**{k: _tupled(v) for k, v in item.items()}) for item in found[name])
    return Info(**{name: _tupled(value) for name, value in found.items()})


def _program(file: zipfile.ZipFile, info: Info, platform: str) -> bytes:
    if platform not in info.platforms:
        raise ExportError(f"was exported for {', '.join(info.platforms)}, not for {platform}")
    return file.read(PROGRAM.format(platform))


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tensor(file: zipfile.ZipFile, number: int, state: State) -> torch.Tensor:
    data = bytearray(file.read(STATE.format(number)))
    if len(data) != state.nbytes:
        raise ExportError(f"is damaged: {state.names[0]} has {len(data)} of {state.nbytes} bytes")
    dtype = torch_dtype(state.dtype)
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(state.shape)
