"""Runs graph passes, the packs' and our own, in order; each is timed, logged, counted and named when it fails."""

from __future__ import annotations

import logging
import time
from itertools import count
from typing import Any

import torch
from torch import fx

from torchtpu import config, events
from torchtpu.compile import cleanup, products
from torchtpu.errors import GraphPassError, TorchTpuError, user_frame
from torchtpu.plugins.records import GraphPass
from torchtpu.plugins.registry import ordered, registry

OURS = (*cleanup.pack.graph_passes, *products.pack.graph_passes)
log = logging.getLogger(__name__)
_runs = count(1)  # of this process, in its order


def limit() -> int | None:
    """How many runs of passes this process may make (``TORCHTPU_PASS_LIMIT``); None for all."""
    text = config.env("PASS_LIMIT")
    if not text:
        return None
    if not text.isdecimal():
        raise TorchTpuError(f"torchtpu: TORCHTPU_PASS_LIMIT must be a whole number, not {text!r}")
    return int(text)


def passes(stage: str) -> list[GraphPass]:
    """The passes of ``stage`` in their order; a pack's pass takes the place of ours of the same name."""
    named = {item.name: item for item in (*OURS, *registry().passes)}
    return [item for item in ordered(list(named.values())) if item.stage == stage]


def run(stage: str, kind: str, module: fx.GraphModule) -> None:
    """Apply the passes of ``stage`` to ``module``, the graph of ``kind`` (``"forward"``, …).

    Raises `GraphPassError` with the pass' and the pack's name where one raises or leaves a graph that is
    not well formed.
    """
    most = limit()
    for item in passes(stage):
        number = next(_runs)
        if most is not None and number > most:
            log.info("run %d: pass %s on the %s graph is over TORCHTPU_PASS_LIMIT", number, item.name, kind)
            continue
        start = time.perf_counter()
        changed = _apply(item, kind, module)
        seconds = time.perf_counter() - start
        what = "changed" if changed else "left"
        log.info(
            "run %d: pass %s (%s) %s the %s graph, %.4f s", number, item.name, stage, what, kind, seconds
        )
        if changed and "pass" in events.handlers:
            events.emit(
                events.Event(kind="pass", name=item.name, where=user_frame(), source=stage, seconds=seconds)
            )


def _apply(item: GraphPass, kind: str, module: fx.GraphModule) -> bool:
    before = _ends(module)
    try:
        changed = bool(item.run(module))
        if changed:
            if _ends(module) != before:
                raise ValueError("it changed how many inputs or outputs the graph has")
            module.graph.lint()
            module.recompile()
            describe(module)
    except Exception as error:
        raise GraphPassError(f"torchtpu: {_name(item)} failed on the {kind} graph: {_text(error)}") from error
    return changed


def _name(item: GraphPass) -> str:
    origin = item.origin
    if origin is None:
        return f"graph pass {item.name!r}"
    return f"graph pass {item.name!r} of pack {origin.pack!r} ({origin.distribution} {origin.version})"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _ends(module: fx.GraphModule) -> tuple[list[str], int]:
    """What the callers of the graph count on: its inputs, and the number of its outputs."""
    nodes = list(module.graph.nodes)
    returned = nodes[-1].args[0]
    return (
        [n.name for n in nodes if n.op == "placeholder"],
        len(returned) if isinstance(returned, list | tuple) else 1,
    )


def describe(module: fx.GraphModule) -> None:
    """Give new nodes the ``meta["val"]`` that lowering reads: a fake tensor of their shape and dtype."""
    from torch._guards import detect_fake_mode

    new = [n for n in module.graph.nodes if n.op == "call_function" and "val" not in n.meta]
    if not new:
        return
    known = [v for n in module.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    mode = detect_fake_mode(known)
    if mode is None:
        raise ValueError("it added nodes without meta['val'] to a graph without tensors")
    with mode:
        for node in new:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            target: Any = node.target
            node.meta["val"] = target(*args, **kwargs)
