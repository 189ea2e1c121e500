"""Where to cut a stream of operators that nothing else cuts: loops, and marks in the content.

A stream is a list of edges whose first item, the entry, says what is done and on which shapes. A cut
depends on this content only, not on where the recording began, so the pieces of a periodic stream
repeat and their programs are found again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 8  # operators that a mark looks at
REPEATS = 3  # periods that make a loop
PIECE = 64  # operators that a loop's piece has at least


def period(entries: Sequence[Any]) -> int | None:
    """The smallest number of operators after which the end of the stream repeats, or None."""
    count = len(entries)
    last = entries[-1]
    for size in range(1, count // REPEATS + 1):
        if entries[count - 1 - size] is not last:
            continue
        tail = entries[count - size :]
        if all(entries[count - (i + 1) * size : count - i * size] == tail for i in range(1, REPEATS)):
            return size
    return None


def marks(entries: Sequence[Any]) -> list[int]:
    """One number for each operator: the content from it on, alike in every process."""
    own = [e.mark for e in entries]
    return [hash(tuple(own[i : i + WINDOW])) for i in range(len(own) - WINDOW + 1)]


def cut(entries: Sequence[Any]) -> int:
    """The position before which to cut: the last one of the rarest content, the smallest mark of equals.

    Content that a period holds once is among the rarest at any phase, so the same content is found
    wherever the recording began.
    """
    found = marks(entries)
    counts = Counter(found[1:])
    rare = min(counts.values()) + 1
    best = min(m for m, n in counts.items() if n <= rare)
    return len(found) - 1 - found[::-1].index(best)


@dataclass
class Loop:
    """A stream that repeats: its next piece has these ``entries``, ``values`` in all.

    ``point`` is where the piece ends, once it was seen.
    """

    entries: list[Any]
    values: int
    point: Any = None


def _turns(edges: Sequence[Any], size: int) -> bool:
    """Whether the last two periods are turns of a loop, not equal layers of one model.

    A turn takes its values from the turn before (at the same distance) or from before the loop, and
    mostly the same inputs; the next layer has its own weights, and its backward pass goes the other way.
    """
    first, places = 0, []
    for edge in edges:
        places.append(first)
        first += edge[0].outputs
    same = fresh = 0
    count = len(edges)
    for i in range(count - size, count):
        step = places[i] - places[i - size]
        for now, before in zip(edges[i][1:], edges[i - size][1:], strict=True):
            if now < 0 or before < 0:
                same, fresh = (same + 1, fresh) if now == before else (same, fresh + 1)
            elif now not in (before, before + step):
                return False
    return fresh <= same


def find(edges: Sequence[Any]) -> tuple[Loop, int] | None:
    """The loop at the stream's end and the position before which its next piece starts, or None."""
    entries = [e[0] for e in edges]
    size = period(entries)
    if size is None or not _turns(edges, size):
        return None
    tail = entries[-size:]
    turn = cut(tail * (WINDOW // size + REPEATS)) % size
    one = tail[turn:] + tail[:turn]
    periods = max(1, PIECE // size)
    values = periods * sum(e.outputs for e in one)
    return Loop(one * periods, values), len(entries) - (size - turn) % size
