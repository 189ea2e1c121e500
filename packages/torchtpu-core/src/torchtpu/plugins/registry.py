"""The immutable table of everything that packs contribute; made once, at the first use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torchtpu.plugins import discovery
from torchtpu.plugins.discovery import Status
from torchtpu.plugins.pack import Pack
from torchtpu.plugins.records import Decomposition, GraphPass, Kernel, Lowering, Namespace


@dataclass(frozen=True)
class Registry:
    """Records by operator (``aten::add.Tensor``; no suffix for the default overload) or by name."""

    lowerings: Mapping[str, Lowering]
    decompositions: Mapping[str, Decomposition]
    kernels: Mapping[str, tuple[Kernel, ...]]
    passes: tuple[GraphPass, ...]
    namespaces: Mapping[str, Namespace]
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


_lock = threading.RLock()
_state: dict[str, Any] = {}


def registry() -> Registry:
    """The registry; scans the installed packs at the first call."""
    found = _state.get("registry")
    if found is None:
        with _lock:
            if "registry" not in _state:
                _state["statuses"] = discovery.scan()
                _state["registry"] = build(_state["statuses"])
            found = _state["registry"]
    return found  # type: ignore[no-any-return]


def statuses() -> list[Status]:
    """What became of each pack that was found."""
    registry()
    return list(_state["statuses"])


def normal(op: str) -> str:
    """The key of an operator name: no ``.default``."""
    return op.removesuffix(".default")


def build(found: list[Status]) -> Registry:
    """Make the tables; a pack that collides with an earlier one is marked broken and left out."""
    lowerings: dict[str, Lowering] = {}
    kept = [s for s in found if s.state == "loaded" and _merge(s, lowerings)]

    def gather(hook: str) -> list[Any]:
        return [r for s in kept for r in s.records.get(hook, ())]

    kernels: dict[str, list[Kernel]] = {}
    for kernel in gather("torchtpu_kernels"):
        kernels.setdefault(normal(kernel.op), []).append(kernel)
    ranked = {
        op: tuple(sorted(ks, key=lambda k: (-k.priority, k.origin.distribution if k.origin else "", k.name)))
        for op, ks in kernels.items()
    }
    names = ("torchtpu_sharding_rules", "torchtpu_collectives", "torchtpu_probes", "torchtpu_checks")
    return Registry(
        lowerings=MappingProxyType(lowerings),
        decompositions=MappingProxyType({normal(d.op): d for d in gather("torchtpu_decompositions")}),
        kernels=MappingProxyType(ranked),
        passes=tuple(ordered(gather("torchtpu_graph_passes"))),
        namespaces=MappingProxyType({n.name: n for n in gather("torchtpu_namespaces")}),
        others=MappingProxyType({name: tuple(gather(name)) for name in names}),
    )


def _merge(status: Status, lowerings: dict[str, Lowering]) -> bool:
    """Add a pack's lowerings; False if one collides without ``replaces``."""
    mine: dict[str, Lowering] = {}
    for record in status.records.get("torchtpu_lowerings", ()):
        op = normal(record.op)
        other = mine.get(op) or lowerings.get(op)
        owner = other.origin.distribution if other is not None and other.origin is not None else None
        if other is not None and record.replaces != owner:
            discovery.conflict(status, f"its lowering of {op} collides with the one of {owner}")
            return False
        mine[op] = record
    lowerings.update(mine)
    return True


def ordered(passes: list[GraphPass]) -> list[GraphPass]:
    """Passes in an order that honours ``after`` and ``before``; names break ties; a cycle is a ValueError."""
    by_name = {p.name: p for p in sorted(passes, key=lambda p: p.name)}
    needs = {name: set(p.after) & by_name.keys() for name, p in by_name.items()}
    for name, item in by_name.items():
        for later in item.before:
            if later in needs:
                needs[later].add(name)
    result: list[GraphPass] = []
    while needs:
        ready = next((n for n, before in needs.items() if not before), None)
        if ready is None:
            raise ValueError(f"graph passes form a cycle: {', '.join(sorted(needs))}")
        result.append(by_name[ready])
        del needs[ready]
        for before in needs.values():
            before.discard(ready)
    return result


@contextmanager
def use(packs: dict[str, Pack]) -> Iterator[Registry]:
    """Run a block with these packs only, for tests; kernels of earlier calls stay as they are."""
    found = []
    for name, pack in packs.items():
        status = Status(name, name, "0", discovery.GROUP, "")
        discovery._load(status, lambda pack=pack: pack)  # type: ignore[misc]
        found.append(status)
    before = dict(_state)
    _state.update(statuses=found, registry=build(found))
    try:
        yield _state["registry"]
    finally:
        _state.clear()
        _state.update(before)
