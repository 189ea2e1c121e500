"""Runs the user's script in this process, its own modules included, with CUDA's names replaced."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import invalidate_caches
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from . import migrate
from .record import Replacement


@contextmanager
def _importing(folder: Path, found: list[Replacement]) -> Iterator[None]:
    """Read modules beside the script as the script is read; no compiled file is used or written."""

    class Loader(SourceFileLoader):
        """Reads the source each time."""

        def get_code(self, fullname: str) -> CodeType:
            """The module's code with CUDA's names replaced."""
            path = self.get_filename(fullname)
            code, replaced = migrate.rewritten(self.get_data(path), path)
            found.extend(replaced)
            return code

    hook = FileFinder.path_hook((Loader, SOURCE_SUFFIXES))

    def own(path: str) -> Any:
        resolved = Path(path or ".").resolve()
        if not resolved.is_relative_to(folder) or {"site-packages", "dist-packages"} & set(resolved.parts):
            raise ImportError
        return hook(path)

    sys.path_hooks.insert(0, own)
    _drop_finders(folder)
    try:
        yield
    finally:
        sys.path_hooks.remove(own)
        _drop_finders(folder)


def _drop_finders(folder: Path) -> None:
    for path in [p for p in sys.path_importer_cache if Path(p).resolve().is_relative_to(folder)]:
        sys.path_importer_cache.pop(path, None)
    invalidate_caches()


def run(path: Path, args: Sequence[str], found: list[Replacement]) -> None:
    """Run as ``python PATH ARGS``; raises what the script raises, but for an exit without an error."""
    name = str(path)
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    main = ModuleType("__main__")
    main.__dict__["__file__"] = name
    sys.argv = [name, *map(migrate.argument, args)]
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules["__main__"] = main
    try:
        code, replaced = migrate.rewritten(path.read_bytes(), name)
        found.extend(replaced)
        with _importing(path.resolve().parent, found):
            exec(code, main.__dict__)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise RuntimeError(f"the script exits with {error.code!r}") from error
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = before
