"""Hands core's events to the packs' probes; a probe that raises is told once and left out."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from torchtpu import events
from torchtpu.plugins import registry
from torchtpu.plugins.records import Probe

_active: list[events.Handler] = []
_told = threading.local()  # probes that are at work in this thread


def install() -> None:
    """Subscribe the probes of the packs in use, in place of those that were subscribed before."""
    for handle in _active:
        events.leave(handle)
    _active.clear()
    for probe in registry.registry().others["torchtpu_probes"]:
        handle = _guarded(probe)
        events.listen(handle, probe.events)
        _active.append(handle)


def _guarded(probe: Probe) -> Callable[[events.Event], None]:
    def handle(event: events.Event) -> None:
        busy: set[int] = _told.__dict__.setdefault("busy", set())
        if id(probe) in busy:
            return  # what a probe does on the device is no event for itself
        busy.add(id(probe))
        try:
            probe.handle(event)
        except Exception as error:
            events.leave(handle)
            _tell(probe, event, error)
        finally:
            busy.discard(id(probe))

    return handle


def _tell(probe: Probe, event: events.Event, error: Exception) -> None:
    owner = "?" if probe.origin is None else f"{probe.origin.distribution} {probe.origin.version}"
    warnings.warn(
        f"torchtpu: a probe of {owner} raised {type(error).__name__}: {error} (event {event.kind!r} of "
        f"{event.name}); it is told no more",
        stacklevel=4,
    )
