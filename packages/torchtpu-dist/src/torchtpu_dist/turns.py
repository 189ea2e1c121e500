"""The order in which a process called its collectives, over all of its groups.

A TPU runs programs in the order of their launches. If two ranks launched the collectives of two groups in different
orders, each would wait for the other. Each group has its own thread, so the threads take turns.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol


class Turn(Protocol):
    """What waits: ``lane.broken`` is an error once its group launches nothing any more."""

    lane: Any


class Turns:
    """A queue over several threads. ``lock`` is held while a collective joins this queue and its group's."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._order: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """Come after all that have joined before."""
        with self._changed:
            self._order.append(turn)

    def wait(self, turn: Turn, patience: float) -> bool:
        """Whether it is this one's turn, or becomes it within ``patience`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._first() in (turn, None), patience)

    def leave(self, turn: Turn) -> None:
        """Let the next one go; nothing happens if this one has left before."""
        with self._changed:
            if turn in self._order:
                self._order.remove(turn)
            self._changed.notify_all()

    def wake(self) -> None:
        """Look again who is next, after a group has broken."""
        with self._changed:
            self._changed.notify_all()

    def _first(self) -> Turn | None:
        return next((t for t in self._order if t.lane.broken is None), None)


turns = Turns()
