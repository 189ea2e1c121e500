"""`Pending`: a buffer that is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DONE, FAILED, LATER = -1, -2, -3


class Pending:
    """Value ``index`` of the recorded graph; after the flush ``index`` is `DONE` or `FAILED`.

    ``value`` is the array then, or the error. With `LATER`, ``value`` is a function that makes the array.
    """

    __slots__ = ("index", "value")
    flush: Callable[[str], None] = lambda reason: None  # runs the graph; set by the mode that records
    value: Any

    def __init__(self, index: int) -> None:
        self.index = index

    def get(self, reason: str) -> Any:
        """The array; flushes the graph for ``reason`` if it has not run."""
        if self.index >= 0:
            Pending.flush(reason)
        elif self.index == LATER:
            self.value, self.index = self.value(), DONE
        if self.index == FAILED:
            raise self.value
        return self.value


def resolve(buffer: Any, reason: str) -> Any:
    """``buffer`` itself, or the array of a pending one."""
    return buffer.get(reason) if buffer.__class__ is Pending else buffer
