"""The last collectives of each group of this process, written out once when one is not complete in time."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

from torchtpu import config
from torchtpu_dist.agreement import Post

KEPT, SHOWN = 64, 5  # per group: in memory and in a file; on stderr

_histories: weakref.WeakSet[History] = weakref.WeakSet()
_dumped: list[str] = []
_lock = threading.Lock()


@dataclass
class Entry:
    """One collective, and the moments (`time.monotonic`) at which something happened to it."""

    post: Post
    queued: float
    launched: float = 0.0
    ended: float = 0.0
    failed: bool = False

    def state(self, now: float) -> str:
        """What became of it, and when."""
        if self.ended:
            return f"{'failed' if self.failed else 'done'} {now - self.ended:.1f} s ago"
        if self.launched:
            return f"running for {now - self.launched:.1f} s"
        return f"not launched, called {now - self.queued:.1f} s ago"


class History:
    """The last collectives of one group; ``ranks`` are those of the world, ``me`` is this one's place there."""

    def __init__(self, ranks: tuple[int, ...], me: int) -> None:
        self.name = ""
        self.ranks, self.me = ranks, me
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        _histories.add(self)

    def add(self, post: Post) -> Entry:
        """Remember a collective that was called."""
        entry = Entry(post, time.monotonic())
        self._entries.append(entry)
        return entry

    def lines(self, count: int) -> list[str]:
        """The last ``count`` collectives, oldest first, below the group's name."""
        now = time.monotonic()
        head = f"group {self.name or '?'}, ranks {' '.join(map(str, self.ranks))}"
        entries = list(self._entries)[-count:]
        return [head] + [
            f"  {e.post.number:6} {e.post.what} at {e.post.where}: {e.state(now)}" for e in entries
        ]


def text(rank: int, why: str, count: int) -> str:
    """The last ``count`` collectives of every group of this process, the groups by name."""
    lines = [f"torchtpu: the last collectives of rank {rank} (process {os.getpid()}), after: {why}"]
    for history in sorted(_histories, key=lambda h: (len(h.name), h.name)):
        lines += history.lines(count)
    return "\n".join(lines) + "\n"


def dump(history: History, error: BaseException) -> None:
    """Write every group's last collectives to stderr, or to the file that ``TORCHTPU_COLLECTIVE_DUMP`` begins.

    The rank's number ends the file's name. Only the first call of a process writes: later errors follow from it.
    """
    with _lock:
        if _dumped:
            return
        _dumped.append(str(error))
    rank, prefix = history.ranks[history.me], config.env("COLLECTIVE_DUMP")
    if prefix:
        try:
            with open(f"{prefix}{rank}", "w", encoding="utf-8") as file:
                file.write(text(rank, str(error), KEPT))
            return
        except OSError as problem:
            print(f"torchtpu: {prefix}{rank} cannot be written: {problem}", file=sys.stderr)
    print(text(rank, str(error), SHOWN), end="", file=sys.stderr, flush=True)
