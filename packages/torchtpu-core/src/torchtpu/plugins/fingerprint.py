"""Names the contents of an installed pack, so that two machines or two days can be compared."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

# how and where it was installed, not what
_INSTALLER = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def fingerprint(point: Any) -> str:
    """Sixteen hexadecimal digits for the distribution of an entry point: its RECORD, or sources when editable."""
    if point.dist is None:
        return ""
    digest = hashlib.sha256((point.dist.read_text("METADATA") or "").encode())
    for part in _sources(point.value) if _editable(point.dist) else _recorded(point.dist):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _editable(dist: Any) -> bool:
    try:
        url = json.loads(dist.read_text("direct_url.json") or "{}")
        return bool(url.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


def _recorded(dist: Any) -> list[str]:
    """The files' names and hashes, without byte code and what differs from installation to installation."""
    lines = (dist.read_text("RECORD") or "").splitlines()
    return sorted(
        line
        for line in lines
        if not line.startswith("..")  # scripts have the interpreter's path in them
        and not line.partition(",")[0].endswith((".pyc", *_INSTALLER))
    )


def _sources(value: str) -> list[str]:
    """The names and hashes of the Python files of an editable pack; nothing is imported."""
    spec = importlib.util.find_spec(value.partition(":")[0].partition(".")[0])
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [(path, Path(folder)) for folder in folders for path in Path(folder).rglob("*.py")]
    if spec is not None and not folders and spec.origin is not None:
        files = [(Path(spec.origin), Path(spec.origin).parent)]
    return sorted(
        f"{path.relative_to(folder).as_posix()},{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path, folder in files
    )
