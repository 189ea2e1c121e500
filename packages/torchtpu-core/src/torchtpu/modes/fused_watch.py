"""Which lines make fused mode compile, and what differs each time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

WARN_AT = 8  # different programs from one line


class Watch:
    """The last program of each line that flushed, and how many it needed."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[list[Any], Any]] = {}
        self._count: dict[str, int] = {}

    def changed(self, where: str, edges: Sequence[Any], live: Any) -> str:
        """Note a new program of a line; says what differs from the line's last one, and may warn."""
        if _printing():  # torch picks the numbers one by one, and the user has nothing to change
            return "torch prints a tensor"
        last = self._last.get(where)
        self._last[where] = list(edges), live
        count = self._count[where] = self._count.get(where, 0) + 1
        if last is None:
            return "first program of this line"
        text = _difference(last[0], edges) or "other results are held"
        if count == WARN_AT:
            warnings.warn(
                f"torchtpu: {where} has compiled {count} different programs in fused mode; "
                f"the last time {text}. Keep shapes fixed (pad, or drop the last short batch) and hand "
                "numbers to operators as arguments, not as sizes, to compile once.",
                stacklevel=2,
            )
        return text


def _printing() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == torch._tensor_str.__file__:
            return True
        frame = frame.f_back
    return False


def _difference(old: Sequence[Any], new: Sequence[Any]) -> str:
    """The first operator at which two graphs part; empty if none."""
    for number, (before, after) in enumerate(zip(old, new, strict=False)):
        if before[0] is not after[0]:
            return f"operator {number} was {before[0]} and is {after[0]}"
        if before != after:
            return f"operator {number}, {after[0]}, takes other values of the graph"
    if len(old) != len(new):
        return f"the graph has {len(new)} operators and had {len(old)}"
    return ""
