"""The immutable table of everything that packs contribute; made once, at the first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torchtpu.plugins import discovery, newop
from torchtpu.plugins.discovery import Status
from torchtpu.plugins.pack import Pack
from torchtpu.plugins.records import Decomposition, GraphPass, Kernel, Lowering, Namespace, Origin


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
changed: list[Callable[[], None]] = []  # called when `use` puts other packs in place


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
    """Make the tables; a pack that collides with an earlier one is marked broken and left out.

    This family's packs come first, so that no other pack's name puts them at fault.
    """
    lowerings: dict[str, Lowering] = {}
    named: dict[tuple[str, str], Any] = {}
    found = sorted(found, key=lambda s: (not s.distribution.startswith("torchtpu-"), s.distribution, s.name))
    kept = [s for s in found if s.state == "loaded" and _distinct(s, named) and _merge(s, lowerings, named)]

    def gather(hook: str) -> list[Any]:
        return [r for s in kept for r in s.records.get(hook, ())]

    kernels: dict[str, list[Kernel]] = {}
    for kernel in gather("torchtpu_kernels"):
        kernels.setdefault(normal(kernel.op), []).append(kernel)
    names = ("torchtpu_sharding_rules", "torchtpu_collectives", "torchtpu_probes", "torchtpu_checks")
    return Registry(
        lowerings=MappingProxyType(lowerings),
        decompositions=MappingProxyType({normal(d.op): d for d in gather("torchtpu_decompositions")}),
        kernels=MappingProxyType({op: tuple(found) for op, found in kernels.items()}),
        passes=tuple(ordered(gather("torchtpu_graph_passes"))),
        namespaces=MappingProxyType({n.name: n for n in gather("torchtpu_namespaces")}),
        others=MappingProxyType({name: tuple(gather(name)) for name in names}),
    )


def _named(status: Status) -> dict[tuple[str, str], Any]:
    """The pack's records of which there may be one of each name."""
    records = status.records
    found: dict[tuple[str, str], Any] = {}
    for decomposition in records.get("torchtpu_decompositions", ()):
        found["decomposition", normal(decomposition.op)] = decomposition
    for item in records.get("torchtpu_namespaces", ()):
        found["namespace", item.name] = item
    for item in records.get("torchtpu_graph_passes", ()):
        found["graph pass", item.name] = item
    return found


def _distinct(status: Status, named: Mapping[tuple[str, str], Any]) -> bool:
    """Whether the pack's names are free and its passes fit among those of the packs before it."""
    mine = _named(status)
    for kind, name in mine:
        other = named.get((kind, name))
        if other is not None:
            owner = other.origin.distribution if other.origin is not None else None
            discovery.conflict(status, f"its {kind} {name} collides with the one of {owner}")
            return False
    passes = [item for (kind, _), item in {**named, **mine}.items() if kind == "graph pass"]
    try:
        ordered(passes)
    except ValueError as error:
        discovery.conflict(status, str(error))
        return False
    return True


def _merge(status: Status, lowerings: dict[str, Lowering], named: dict[tuple[str, str], Any]) -> bool:
    """Add a pack's lowerings and names; False if a lowering collides without ``replaces``."""
    mine: dict[str, Lowering] = {}
    own = status.records.get("torchtpu_lowerings", ())
    derived = [d for record in own if record.schema is not None for d in newop.derivatives(record)]
    given = {normal(record.op) for record in own}
    for record in [*own, *(d for d in derived if d.op not in given)]:
        op = normal(record.op)
        other = mine.get(op) or lowerings.get(op)
        owner = other.origin.distribution if other is not None and other.origin is not None else None
        if other is not None and other.replaces == status.distribution and op not in mine:
            continue
        if other is not None and record.replaces != owner:
            discovery.conflict(status, f"its lowering of {op} collides with the one of {owner}")
            return False
        mine[op] = record
    lowerings.update(mine)
    named.update(_named(status))
    return True


def define_operators() -> None:
    """Define every new operator of the packs with torch; one that torch refuses is told and left out."""
    for record in registry().lowerings.values():
        if (
            record.schema is not None and "(Tensor[] grads" not in record.schema
        ):  # derivatives come when they are needed
            try:
                newop.define(record.schema, record.fn, newop.ORDER, record.fake, record.gradient)
            except (RuntimeError, ValueError) as error:
                discovery.refused_operator(record, error)


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
    """Run a block with these packs only, for tests."""
    found = []
    for name, pack in packs.items():
        status = Status(name, name, "0", discovery.GROUP, "")
        status.origin = Origin(distribution=name, version="0", pack=name)
        discovery._load(status, lambda pack=pack: pack)  # type: ignore[misc]
        found.append(status)
    before = dict(_state)
    _state.update(statuses=found, registry=build(found))
    _tell_changed()
    try:
        yield _state["registry"]
    finally:
        _state.clear()
        _state.update(before)
        _tell_changed()


def _tell_changed() -> None:
    for forget in changed:
        forget()
