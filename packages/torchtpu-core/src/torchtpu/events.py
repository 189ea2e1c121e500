"""What happened inside: compilations, flushes, choices and fallbacks, for those who ask to be told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

KINDS = {
    "compile": "a program was made by the compiler or came from the disk",
    "flush": "recorded work was launched in fused mode",
    "choice": "an implementation was chosen among kernels and the lowering",
    "failure": "a kernel could not be compiled and the lowering serves instead",
    "fallback": "an operator without a lowering or decomposition ran on the CPU",
    "pass": "a graph pass changed a graph of torch.compile",
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened: ``kind`` is one of `KINDS`, ``name`` the operator, program or pass.

    ``where`` is the user's ``file:line``; ``reason`` says why a flush came or what was decided, ``changed``
    what made a program differ from the one that this line ran before; ``source`` is where a program came
    from (``"memory"``, ``"disk"``, ``"compiler"``), what was chosen, or the pass' stage; ``seconds`` is the
    time to get the program, or that the CPU took. ``operators`` and ``outputs`` count a flush's parts.
    """

    kind: str
    name: str
    where: str
    source: str
    seconds: float
    reason: str = ""
    changed: str = ""
    operators: int = 1
    outputs: int = 1


Handler = Callable[[Event], None]
handlers: dict[str, tuple[Handler, ...]] = {}  # by kind; a kind that nobody asked for costs one look-up
_lock = threading.Lock()


def listen(handle: Handler, kinds: Iterable[str] = tuple(KINDS)) -> None:
    """Have ``handle`` told of each event of ``kinds``, until `leave`; unknown kinds never come."""
    with _lock:
        for kind in set(kinds):
            handlers[kind] = (*handlers.get(kind, ()), handle)


def leave(handle: Handler) -> None:
    """Tell ``handle`` no more; nothing happens if it was not told before."""
    with _lock:
        for kind, told in list(handlers.items()):
            rest = tuple(other for other in told if other != handle)
            if rest:
                handlers[kind] = rest
            else:
                del handlers[kind]


def emit(event: Event) -> None:
    """Tell every handler of the event's kind."""
    for handle in handlers.get(event.kind, ()):
        handle(event)
