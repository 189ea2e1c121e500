"""Writes a new operator pack from the template that ships in this package."""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from torchtpu.errors import TorchTpuError

WORD = "mypack"  # stands for the name in the template's texts and file names
# namespaces of operators that belong to torch or to this family
TAKEN = frozenset(
    {"aten", "prim", "prims", "torch", "inductor", "quantized", "torchtpu", "ops", "kernels", "dist", "toy"}
)


def names(name: str) -> tuple[str, str]:
    """The distribution's name and the identifier (pack, operators' namespace) for ``name``.

    Raises `TorchTpuError` for a name that cannot be both.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise TorchTpuError(
            f"{name!r} is no name for a pack: lower-case letters and digits, begun by a letter, "
            "in parts joined by '-' or '_', like 'acme' or 'acme-vision'"
        )
    identifier = name.replace("-", "_")
    if identifier in TAKEN or keyword.iskeyword(identifier):
        raise TorchTpuError(
            f"{name!r} is taken: operators of that namespace belong to others; choose another"
        )
    return f"{identifier.replace('_', '-')}-tpu", identifier


def write(name: str, parent: Path) -> Path:
    """Write the pack ``name`` in a new folder below ``parent`` and return the folder.

    Raises `TorchTpuError`, before anything is written, for a bad name, a missing parent or an existing folder.
    """
    distribution, identifier = names(name)
    target = parent / distribution
    if not parent.is_dir():
        raise TorchTpuError(f"there is no folder {parent}")
    if target.exists() or target.is_symlink():
        raise TorchTpuError(f"{target} exists; remove it or choose another name or --path")

    def filled(text: str) -> str:
        return text.replace(f"{WORD}-tpu", distribution).replace(WORD, identifier)

    texts = {filled(path): filled(text) for path, text in _template(files("torchtpu") / "_template")}
    if not texts:
        raise TorchTpuError("this installation of torchtpu-core has no template; reinstall it")
    target.mkdir()
    try:
        for path, text in texts.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError:
        shutil.rmtree(target, ignore_errors=True)  # half a pack helps nobody
        raise
    return target


def _template(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    """The paths and texts of the template's files."""
    if not folder.is_dir():
        return
    for item in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if item.is_file() and not item.name.endswith(".pyc"):
            yield path + item.name, item.read_text(encoding="utf-8")
        elif item.is_dir() and item.name != "__pycache__":
            yield from _template(item, f"{path}{item.name}/")
