"""Install every package below one folder into another: ``install_packs.py SOURCES TARGET``."""

import subprocess
import sys
from pathlib import Path


def main(sources: str, target: str) -> int:
    """One pip call for all of them; their dependencies are here already, or are missing on purpose."""
    packs = sorted(str(file.parent) for file in Path(sources).glob("*/pyproject.toml"))
    if not packs:
        print(f"no package in {sources}", file=sys.stderr)
        return 1
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
    return subprocess.call([*pip, "--target", target, *packs])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
