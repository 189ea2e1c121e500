"""Finds packs by their entry points, loads them one by one and keeps the broken ones apart."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pluggy

from torchtpu.errors import PackApiError, PackError
from torchtpu.plugins import hookspecs, opschema
from torchtpu.plugins.fingerprint import fingerprint
from torchtpu.plugins.pack import PACK_API, Pack, check_api
from torchtpu.plugins.records import Lowering, Origin

PREFIX = "torchtpu.packs."
GROUP = f"{PREFIX}v{PACK_API[0]}"


@dataclass
class Status:
    """One found pack: ``state`` is found, off, refused, loaded or broken; ``reason`` and ``remedy`` say why."""

    name: str
    distribution: str
    version: str
    group: str
    value: str
    state: str = "found"
    reason: str = ""
    remedy: str = ""
    api: str = ""
    records: dict[str, list[Any]] = field(default_factory=dict)
    origin: Origin | None = None
    plugin: Any = None


def required() -> set[str] | None:
    """The packs that ``TORCHTPU_PACKS`` names, or None when it is unset."""
    text = os.environ.get("TORCHTPU_PACKS")
    return None if text is None else {part.strip() for part in text.split(",") if part.strip()}


def strict() -> bool:
    """Whether any failure of a pack is an error (``TORCHTPU_STRICT_PACKS=1``)."""
    return os.environ.get("TORCHTPU_STRICT_PACKS", "0") not in ("", "0")


def entry_points() -> list[Any]:
    """All entry points of pack groups, once each, in (distribution, name) order."""
    groups = [g for g in metadata.entry_points().groups if g.startswith(PREFIX)]
    found: dict[tuple[str, ...], Any] = {}
    for group in groups:
        for point in metadata.entry_points(group=group):
            dist = point.dist.name if point.dist is not None else "?"
            found.setdefault((dist, group, point.name, point.value), point)
    return [found[key] for key in sorted(found)]


def _status(point: Any) -> Status:
    dist = point.dist
    name, version = (dist.name, dist.version) if dist is not None else ("?", "?")
    status = Status(point.name, name, version, point.group, point.value)
    status.origin = Origin(
        distribution=name, version=version, fingerprint=fingerprint(point), pack=point.name
    )
    return status


def scan(points: Iterable[Any] | None = None) -> list[Status]:
    """Load every pack that may be used; never raises unless a failing pack is required."""
    wanted = required()
    statuses = []
    for point in entry_points() if points is None else points:
        status = _status(point)
        statuses.append(status)
        if wanted is not None and status.name not in wanted:
            status.state, status.reason = "off", "not named in TORCHTPU_PACKS"
        elif status.group != GROUP:
            version = status.group.removeprefix(PREFIX)
            _fail(status, "refused", f"needs pack API {version}", "upgrade torchtpu-core")
        else:
            _load(status, point.load)
    missing = (wanted or set()) - {s.name for s in statuses}
    if missing:
        raise PackError(f"TORCHTPU_PACKS names packs that are not installed: {', '.join(sorted(missing))}")
    return statuses


def _load(status: Status, load: Callable[[], Any]) -> None:
    try:
        plugin = load()
        status.api = plugin.api if isinstance(plugin, Pack) else str(getattr(plugin, "TORCHTPU_API", "1.0"))
        check_api(status.api)
        status.records = _records(plugin, status)
        status.plugin = plugin
        status.state = "loaded"
    except PackApiError as error:
        _fail(status, "refused", str(error), "upgrade torchtpu-core, or install an older release of the pack")
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        _fail(status, "broken", text, f"reinstall or remove {status.distribution}")


def _records(plugin: Any, status: Status) -> dict[str, list[Any]]:
    """Call the plug-in's hooks in a manager of its own, so that one failure stays one."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=status.name)
    manager.check_pending()
    records = {}
    for hook in hookspecs.RECORD_HOOKS:
        lists = getattr(manager.hook, hook)()
        records[hook] = [_stamped(r, status) for items in lists for r in items]
    return records


def _stamped(record: Any, status: Status) -> Any:
    if isinstance(record, Lowering) and record.schema is not None:
        opschema.check(record.schema)
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"a hook returned {record!r}, not a record")
    return dataclasses.replace(record, origin=status.origin)


def _fail(status: Status, state: str, reason: str, remedy: str) -> None:
    status.state, status.reason, status.remedy = state, reason, remedy
    status.records = {}
    text = f"pack {status.name!r} of {status.distribution} {status.version}: {reason} ({remedy})"
    if strict() or status.name in (required() or ()):
        raise PackError(text)
    warnings.warn(f"torchtpu: {text}; it is skipped", stacklevel=2)


def refused_operator(record: Lowering, error: Exception) -> None:
    """Tell that torch does not take a pack's new operator; an error when failures are."""
    origin = record.origin or Origin(distribution="?", version="?")
    text = f"operator {record.op} of {origin.distribution} {origin.version} cannot be defined: {error}"
    if strict():
        raise PackError(text) from error
    warnings.warn(f"torchtpu: {text} (rename it, or remove one of its owners)", stacklevel=2)


def conflict(status: Status, reason: str) -> None:
    """Mark a loaded pack as broken because it collides with another."""
    _fail(status, "broken", reason, "remove one of the two, or set replaces= in a lowering that should win")
