"""Compiled programs on disk, shared by all processes of a user.

A file's name is a hash of the StableHLO text, the compiler options, the versions of jax, jaxlib and
the PJRT plug-in, the machine, and the device's number among those of the job, which a file names;
so it is valid for ever. A file that cannot be read is a miss.
``TORCHTPU_CACHE_DIR`` moves the folder, ``TORCHTPU_CACHE_DIR=off`` turns it off.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental import serialize_executable

from torchtpu import config
from torchtpu.runtime import client

hits = [0]


@cache
def folder() -> Path | None:
    """Where programs are kept, or None when caching is off or the folder cannot be made."""
    chosen = config.env("CACHE_DIR")
    if chosen == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(chosen or Path(base) / "torchtpu") / "programs"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return path


@cache
def _machine() -> str:
    """Compiled CPU code is valid on processors with the same features only."""
    parts = [
        jax.__version__,
        jaxlib.__version__,
        client.device().device_kind,
        client.device().client.platform_version,
        f"device {client.device().id}",  # it is in the file: ranks would overwrite each other's
    ]
    if client.platform() == "cpu":
        parts += [platform.machine(), _cpu_flags()]
    return "|".join(parts)


def _cpu_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")


def _file(lowered: Any, options: dict[str, Any]) -> Path | None:
    path = folder()
    if path is None:
        return None
    digest = hashlib.sha256(
        "\0".join([lowered.as_text(), repr(sorted(options.items())), _machine()]).encode()
    )
    return path / digest.hexdigest()


def compile(lowered: Any, options: dict[str, Any]) -> Any:
    """The compiled program of ``lowered``, from disk if it is there."""
    file = _file(lowered, options)
    if file is not None:
        found = _load(file)
        if found is not None:
            hits[0] += 1
            return found
    compiled = lowered.compile(compiler_options=options)
    if file is not None:
        _store(file, compiled)
    return compiled


def _load(file: Path) -> Any:
    try:
        payload, tree_in, tree_out = pickle.loads(file.read_bytes())
        return serialize_executable.deserialize_and_load(
            payload, tree_in, tree_out, execution_devices=[client.device()]
        )
    except FileNotFoundError:
        return None
    except Exception:  # corrupt, foreign or written by another jax: compile again
        return None


def _store(file: Path, compiled: Any) -> None:
    try:
        data = pickle.dumps(serialize_executable.serialize(compiled))
        handle, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, file)
    except Exception:  # a program that cannot be serialized, or a full disk, costs only the cache
        return
