"""The per-op path of fused mode: one walk over the arguments, one lookup, one result tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from torchtpu.dispatch.executor import Front
from torchtpu.modes.fused import Point, graph
from torchtpu.runtime import precision
from torchtpu.tensors.layout import tensor_layout
from torchtpu.tensors.pending import Pending
from torchtpu.tensors.storage import TpuStorage

_create = torch._C._acc.create_empty_tensor
_ALL = 1 << 62  # inputs of the graph that stay when a call fails
_NUMBERS = frozenset((bool, int, float, complex))


def _elements(values: list[Any]) -> list[Any]:
    """The edge's part for a list of tensors and static values; TypeError for numbers, which may vary."""
    part: list[Any] = []
    for a in values:
        if isinstance(a, Tensor):
            s = a.untyped_storage()
            waits = s.buffer.__class__ is Pending and s.buffer.index >= 0
            part.append(s.buffer.index if waits else graph.input(s.buffer))
            s.shared = s.shared or not waits
            part.append(tensor_layout(a, s.layout) if s.views else s.layout)
        elif a.__class__ is float:
            raise TypeError
        else:
            part += (a.__class__, a)
    return part


def _learn(slow: Any, writes: bool, edge: Any, args: tuple[Any, ...]) -> Point | None:
    """The point behind an edge that is new here; None if the operator needs the general path."""
    if writes and args[0].__class__ is list:  # a foreach of one: its result is no tensor
        return None
    exact = edge, precision.current()
    point = graph.at.get(exact)
    if point is not None:
        return point
    found = slow.simple(args)
    if found is None:
        return None
    entry, stores = found
    point = graph.step((entry, *[graph.index(s.buffer) for s in stores]))
    point.result = None if writes else entry.results[0].layout
    # matrix products come here every time, as only this edge says how exact they are
    graph.at[edge if entry.precision is None else exact] = point
    return point


def make(slow: Any, writes: bool) -> Front:
    """The path for one operator; what it cannot record goes to ``slow``."""
    views, varying, lock, name = tensor_layout, slow.encoder.varying, graph.lock, id(slow)
    learn = partial(_learn, slow, writes)

    def call(args: tuple[Any, ...]) -> Any:
        edge: Any = (name,)
        numbers: Any = ()
        known = _ALL
        with lock:  # an interrupt right after a plain acquire() would leave it locked for other threads
            try:
                values = graph.values
                place = len(values)
                if place >= graph.limit:
                    graph.cut()
                    values = graph.values
                    place = len(values)
                known = len(graph.inputs)
                for a, varies in zip(args, varying):  # noqa: B905 - trailing defaults are left out
                    cls = a.__class__
                    if cls is Tensor or cls is Parameter:
                        s = a.untyped_storage()
                        b = s.buffer
                        if b.__class__ is Pending and b.index >= 0:
                            i: Any = b.index
                        elif (i := graph.where.get(id(b))) is None:
                            i = graph.input(b)
                            s.shared = True  # another thread's strict mode must not take its memory
                            edge += (s.layout,)  # later uses are implied by the index
                        edge += (i, views(a, s.layout)) if s.views else (i,)
                    elif varies and cls in _NUMBERS:
                        edge += (cls,)
                        numbers += ((cls, a),)
                    elif cls is list:
                        edge += (list, len(a), *_elements(a))
                    else:
                        edge += (cls, a)
                point = graph.at.get(edge)
                if point is None:
                    point = learn(edge, args)
                    if point is None:
                        graph.drop_inputs(known)
                        return slow(*args)
                graph.at = point
                if numbers:
                    graph.scalars += numbers
                out = Pending(place)
                values.append(out)
            except (AttributeError, TypeError):
                graph.drop_inputs(known)
                return slow(*args)  # not on the device, lists, or nothing written yet
            except BaseException:
                graph.repair()
                raise
        if writes:
            storage = args[0].untyped_storage()
            storage.buffer = out
            return args[0]
        layout = point.result
        tensor = _create(layout.shape, layout.dtype)  # type: ignore[union-attr]
        storage = tensor.untyped_storage()
        storage.__class__ = TpuStorage
        storage.buffer = out
        storage.layout = layout
        return tensor

    return call
