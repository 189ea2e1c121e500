"""The process's memory mappings: XLA's CPU compiler makes one for each kernel, and crashes when Linux gives no more."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PART = 0.6  # of the mappings that a process may have, 65,530 by default
_MOST = 1000  # mappings of a large program, a whole training step
_wait = [0]  # compilations until the next look, as a look takes up to 20 ms


@cache
def _limit() -> int:
    try:
        return int(_PART * int(Path("/proc/sys/vm/max_map_count").read_text()))
    except (OSError, ValueError):  # not Linux
        return 0


def count() -> int:
    """How many mappings the process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def scarce() -> bool:
    """Whether programs should be forgotten before the next is compiled; to be asked before each."""
    _wait[0] -= 1
    if _wait[0] >= 0 or not _limit():
        return False
    left = _limit() - count()
    _wait[0] = max(left // _MOST, 8)
    return left < 0
