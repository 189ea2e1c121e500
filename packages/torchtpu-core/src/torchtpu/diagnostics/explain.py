"""`explain`: every compilation and every flush, with its reason and the user's line."""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from types import TracebackType
from typing import TextIO

from torchtpu import config, events


class Report:
    """What happened in a block: ``events``, and a text by ``str()``."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    @property
    def flushes(self) -> list[events.Event]:
        """Launches of recorded work in fused mode."""
        return [e for e in self.events if e.kind == "flush"]

    @property
    def compilations(self) -> list[events.Event]:
        """Programs that the compiler made or the disk gave."""
        return [e for e in self.events if e.kind == "compile"]

    def __str__(self) -> str:
        made = [e for e in self.compilations if e.source == "compiler"]
        loaded = len(self.compilations) - len(made)
        lines = [
            f"torchtpu: {len(made)} programs compiled in {sum(e.seconds for e in made):.2f} s, "
            f"{loaded} from disk, {len(self.flushes)} flushes"
        ]
        groups: Counter[tuple[str, ...]] = Counter()
        for e in self.events:
            if (e.kind, e.name) != ("compile", "fused"):  # its flush tells the same
                groups[e.where, _said(e)] += 1
        lines += [f"  {count:5}x {where}  {text}" for (where, text), count in groups.items()]
        return "\n".join(lines)


def _said(e: events.Event) -> str:
    """What happened, in one line."""
    if e.kind == "flush":
        return f"flush: {e.reason}; {e.operators} operators, {e.outputs} results, {_got(e)}"
    said = {
        "compile": f"compile {e.name}: {_got(e)}",
        "choice": f"choose {e.source} for {e.name}",
        "failure": f"kernel {e.source} of {e.name} failed: {e.reason}",
        "fallback": f"fallback {e.name}: {e.reason}",
        "pass": f"pass {e.name} ({e.source}) changed the graph",
    }
    return said[e.kind]


def _got(event: events.Event) -> str:
    if event.source == "memory":
        return "program in memory"
    how = "from disk" if event.source == "disk" else "compiled"
    return f"{how} ({event.changed})" if event.changed else how


class explain:
    """``with torchtpu.explain() as report:`` collects what all threads do in the block; nests.

    Example:
        with torchtpu.explain() as report:
            step()
        print(report)
    """

    def __enter__(self) -> Report:
        self._report = Report()
        events.listen(self._report.events.append)
        return self._report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        events.leave(self._report.events.append)


def install(stream: TextIO = sys.stderr) -> None:
    """With ``TORCHTPU_EXPLAIN=1``, print the whole process's report at its end."""
    if config.env("EXPLAIN") in ("", "0"):
        return
    report = explain().__enter__()
    atexit.register(lambda: print(report, file=stream))
