"""What the meta distribution depends on: the packages beside it in a checkout, version ranges in a release.

``pip install '.[dist,kernels]'`` in a checkout takes ``packages/*``. A release is built with
``TORCHTPU_RELEASE=1``, or from the source distribution, where there is no ``packages``.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Parts(MetadataHookInterface):
    """Fills in the dependencies and the extras from the hook's table in ``pyproject.toml``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dynamic fields to the core metadata."""
        extras = {name: self._requirements(parts) for name, parts in self.config["extras"].items()}
        metadata["dependencies"] = self._requirements(self.config["always"])
        metadata["optional-dependencies"] = {**extras, "all": [f"torchtpu[{','.join(sorted(extras))}]"]}

    def _requirements(self, parts: dict[str, str]) -> list[str]:
        return [self._requirement(name, versions) for name, versions in parts.items()]

    def _requirement(self, name: str, versions: str) -> str:
        path = Path(self.root, "packages", name)
        local = path.is_dir() and not os.environ.get("TORCHTPU_RELEASE")
        return f"{name} @ {path.as_uri()}" if local else f"{name}{versions}"
