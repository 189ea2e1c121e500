"""Fused mode: records operators into a graph and runs what is still alive as one program at a flush."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import islice
from sys import getrefcount
from typing import Any

from torchtpu import events
from torchtpu.dispatch.build import Entry
from torchtpu.errors import user_frame
from torchtpu.modes import fused_loop, fused_program
from torchtpu.modes.fused_loop import Loop
from torchtpu.modes.fused_watch import Watch
from torchtpu.runtime import cache, client
from torchtpu.tensors.layout import Layout
from torchtpu.tensors.pending import DONE, FAILED, Pending
from torchtpu.tensors.storage import TpuStorage

# After so many values without a flush the stream is searched for a loop; at the last number it is cut.
CHECKS = (256, 512, 1024, 2048, 4096)
Edge = tuple[Any, ...]


class Point(dict[Edge, "Point"]):
    """Where a stream of operators stands: the next operator leads to the next point.

    An edge is the entry, and for each storage the index of a value in the graph, or the complement of
    an input's index. The way from the root is the graph's structure, so a repeated stream finds its
    programs without being hashed again. The per-op path adds edges of its own form to the same points.
    """

    __slots__ = ("edge", "parent", "programs", "result", "straight")
    result: Layout | None  # of the operator that led here, where it makes one tensor

    def __init__(self, parent: Point | None = None, edge: Edge = ()) -> None:
        super().__init__()
        self.parent, self.edge = parent, edge
        self.programs: dict[Any, Any] = {}
        self.straight = False  # no loop ends here

    def path(self) -> list[Edge]:
        """The edges from the root."""
        edges, point = [], self
        while point.parent is not None:
            edges.append(point.edge)
            point = point.parent
        return edges[::-1]


class Graph:
    """The process's recorded, not yet run operators."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.root = Point()
        self.watch = Watch()
        self.loop: Loop | None = None
        self._start()

    def _start(self) -> None:
        self.at = self.root
        self.values: list[Pending] = []
        self.inputs: list[Any] = []
        self.scalars: list[tuple[type, Any]] = []
        self.where: dict[int, int] = {}
        self.limit = self.loop.values if self.loop is not None else CHECKS[0]
        self.bytes = 0

    def record(self, entry: Entry, buffers: Sequence[Any], scalars: Sequence[Any]) -> list[Pending]:
        """Append one operator; returns its outputs."""
        with self.lock:
            if len(self.values) >= self.limit:
                self.cut()
            try:
                self.at = self.step((entry, *[self.index(b) for b in buffers]))
                self.scalars += scalars
                first = len(self.values)
                out = [Pending(i) for i in range(first, first + entry.outputs)]
                self.values += out
            except BaseException:
                self.repair()
                raise
            return out

    def step(self, edge: Edge) -> Point:
        """The point that ``edge`` leads to."""
        point = self.at.get(edge)
        if point is None:
            point = self.at[edge] = Point(self.at, edge)
        return point

    def index(self, buffer: Any) -> int:
        """The index of a value of the graph, or the complement of an input's."""
        waits = buffer.__class__ is Pending and buffer.index >= 0
        return buffer.index if waits else self.input(buffer)

    def input(self, buffer: Any) -> int:
        """The complement of the index of an array that the program gets from outside."""
        array = buffer.get("") if buffer.__class__ is Pending else buffer
        if array is None:
            raise TypeError("nothing written yet")
        found = self.where.get(id(array))
        if found is None:
            found = self.where[id(array)] = ~len(self.inputs)
            self.inputs.append(array)
            self.bytes += array.nbytes
            if self.bytes > client.memory_budget():
                self.limit = -1
        return found

    def drop_inputs(self, count: int) -> None:
        """Forget the inputs from ``count`` on, of an operator that was not recorded.

        The way to a point must tell every input's layout: an edge names the layout at the first use only.
        """
        for array in self.inputs[count:]:
            del self.where[id(array)]
            self.bytes -= array.nbytes
        del self.inputs[count:]

    def repair(self) -> None:
        """After an error or Ctrl-C anywhere in the recording: the last operator counts wholly or not at all."""
        edges = self.at.path()
        while sum(e[0].outputs for e in edges) > len(self.values):
            edges.pop()
            self.at = self.at.parent  # type: ignore[assignment]
        del self.scalars[sum(e[0].numbers for e in edges) :]
        self.drop_inputs(max((~i + 1 for e in edges for i in e[1:]), default=0))

    def boundary(self, *_: Any) -> None:
        """The step ended: flush at the next operator, when the gradients may be gone."""
        if self.values:
            self.limit = -1

    def cut(self) -> None:
        """Called at ``limit`` values: flush what is due, and choose the next limit."""
        if self.limit < 0:
            self.flush("the step ended, or memory is short")
        elif self.loop is not None:
            self._next_piece(self.loop)
        else:
            self._search()

    def _next_piece(self, loop: Loop) -> None:
        """Flush a piece of the loop, or leave the loop if the stream has gone another way."""
        if loop.point is None and [e[0] for e in self.at.path()] == loop.entries:
            loop.point = self.at
        if loop.point is self.at:
            self.flush("a loop")
        else:
            self.loop = None
            self._search()

    def _search(self) -> None:
        """Look for a loop in what is recorded, and cut there; at the last check, cut at a mark."""
        count, last = len(self.values), len(self.values) >= CHECKS[-1]
        if not self.at.straight or last:
            edges = self.at.path()
            found = fused_loop.find(edges)
            if found is not None:
                self.loop, position = found
                self._flush_before(position, edges, "a loop")
                return
            if last:
                self._flush_before(fused_loop.cut([e[0] for e in edges]), edges, "the graph is long")
                return
            self.at.straight = True
        self.limit = next(c for c in CHECKS if c > count)

    def flush(self, reason: str) -> None:
        """Run everything that a storage still holds."""
        with self.lock:
            saved = self._saved()
            values, inputs, scalars, at = self.values, self.inputs, self.scalars, self.at
            self._start()
            # held by: the list, the loop's variable, the call's argument; any more is a storage
            live = tuple([p.index for p in values if getrefcount(p) > 3])
            try:
                self._launch(reason, at, live, values, inputs, scalars)
            except BaseException:
                if values[0].index >= 0:
                    self._resume(*saved)
                raise

    def _saved(self) -> tuple[Any, ...]:
        return self.at, self.values, self.inputs, self.scalars, self.where, self.bytes

    def _resume(self, *saved: Any) -> None:
        """Go on with a graph whose flush was interrupted and can be done again."""
        self.at, self.values, self.inputs, self.scalars, self.where, self.bytes = saved

    def _flush_before(self, position: int, edges: list[Edge], reason: str) -> None:
        """Run the operators before ``position``; those after it start the next graph."""
        inputs, scalars, rest = self.inputs, self.scalars, edges[position:]
        count = sum(e[0].outputs for e in edges[:position])
        numbers = sum(e[0].numbers for e in edges[:position])
        saved, values = self._saved(), self.values
        early, late = values[:count], values[count:]
        values.clear()  # a caller may still know this list, which would count as a holder
        used = {i for e in rest for i in e[1:] if i < count}
        kept = [inputs[~i] for i in used if i < 0]  # the reference says that they are not free
        self._start()
        live = tuple([p.index for p in early if getrefcount(p) > 3 or p.index in used])
        at = self.root
        for edge in edges[:position]:
            at = at[edge]
        try:
            self._launch(reason, at, live, early, inputs, scalars[:numbers])
        except BaseException as error:
            if early[0].index >= 0:
                values += early + late
                self._resume(*saved)
            else:
                _fail(late, error)
            raise
        del kept
        fresh = iter(late)
        for edge in rest:
            places = [late[i - count].index if i >= count else
                      self.input(early[i].value if i >= 0 else inputs[~i]) for i in edge[1:]]  # fmt: skip
            self.at = self.step((edge[0], *places))
            for p in islice(fresh, edge[0].outputs):
                p.index = len(self.values)
                self.values.append(p)
        self.scalars = scalars[numbers:]

    def _launch(
        self, reason: str, at: Point, live: Any, values: list[Pending], inputs: list[Any], scalars: Any
    ) -> None:
        """Run the program of the way to ``at``; fill in the live values."""
        if not live:
            return
        # held by: the list, the call's argument
        dead = tuple([i for i in range(len(inputs)) if getrefcount(inputs[i]) == 2])
        try:
            program = at.programs.get((live, dead))
            if program is None:
                program = self._compile(reason, at, live, dead, inputs, scalars)
            elif "flush" in events.handlers:
                self._tell(reason, at, live, "memory", 0.0, "")
            outputs = program.run(inputs, scalars)
        except BaseException as error:
            # after Ctrl-C the flush can be done again if no input's memory was given away
            if isinstance(error, Exception) or any(inputs[i].is_deleted() for i in dead):
                _fail(values, error)
            raise
        try:
            for i, array in zip(live, outputs, strict=True):
                p = values[i]
                p.value, p.index = array, DONE
        except BaseException as error:
            _fail(values, error)
            raise

    def _compile(
        self, reason: str, at: Point, live: Any, dead: Any, inputs: list[Any], scalars: Any
    ) -> fused_program.FusedProgram:
        start, hits, edges = time.perf_counter(), cache.hits[0], at.path()
        changed = self.watch.changed(user_frame(), edges, live)
        program = at.programs[live, dead] = fused_program.build(edges, live, dead, inputs, scalars)
        if "flush" in events.handlers:
            source = "disk" if cache.hits[0] > hits else "compiler"
            self._tell(reason, at, live, source, time.perf_counter() - start, changed)
        return program

    def _tell(self, reason: str, at: Point, live: Any, source: str, seconds: float, changed: str) -> None:
        events.emit(events.Event(
            kind="flush", name="fused", where=user_frame(), source=source, seconds=seconds, reason=reason,
            changed=changed, operators=len(at.path()), outputs=len(live),
        ))  # fmt: skip

    def forget(self) -> None:
        """Drop all structure; what is pending stays."""
        with self.lock:
            path, self.loop = self.at.path(), None
            self.root = self.at = Point()
            for edge in path:
                self.at[edge] = Point(self.at, edge)
                self.at = self.at[edge]


def _fail(values: list[Pending], error: BaseException) -> None:
    """Those that wait will raise ``error``."""
    if not isinstance(error, Exception):
        error = RuntimeError("torchtpu: the program of this tensor was interrupted, so it has no value")
    for p in values:
        if p.index >= 0:
            p.index, p.value = FAILED, error


graph = Graph()
Pending.flush = graph.flush


def run(entry: Entry, stores: Sequence[TpuStorage], scalars: Sequence[Any], state: Any) -> list[Any]:
    """`Run`: like `Graph.record`, for storages; those that nothing was written to count as zeros."""
    buffers = [s.buffer if s.buffer is not None else _zeros(s) for s in stores]
    for s in stores:
        s.shared = True  # another thread's strict mode must not take the memory of an input
    return list(graph.record(entry, [*buffers, state] if entry.rng else buffers, scalars))


def _zeros(store: TpuStorage) -> Any:
    store.buffer = graph.record(fused_program.zeros(store.layout), (), ())[0]
    return store.buffer
