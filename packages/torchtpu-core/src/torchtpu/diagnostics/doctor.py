"""What ``torchtpu doctor`` looks at, and the frozen state of an installation that it compares with."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import combinations
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from torchtpu import events
from torchtpu.plugins import Check, Finding, Kernel
from torchtpu.plugins.registry import registry, statuses
from torchtpu.plugins.selection import full_name

CORE = "torchtpu-core"
LIBRARIES = ("torch", "jax", "jaxlib", CORE)
State = dict[str, dict[str, Any]]


def findings() -> list[Finding]:
    """Everything that was looked at, wrong or not; never raises for what it finds."""
    parts: tuple[Callable[[], Iterator[Finding]], ...] = (
        _versions, _packs, _requirements, _names, _priorities, _probes, _checks,
    )  # fmt: skip
    return [finding for part in parts for finding in part()]


def _versions() -> Iterator[Finding]:
    yield Finding(level="ok", message=f"Python {platform.python_version()}")
    for name in LIBRARIES:
        version = _version(name)
        if version is None:
            yield Finding(level="error", message=f"{name} is not installed", remedy=f"pip install {name}")
        else:
            yield Finding(level="ok", message=f"{name} {version}")
    if importlib.util.find_spec("torch_tpu") is not None:
        yield Finding(
            level="error", message="torch_tpu is installed as well: both claim the device",
            remedy="remove one",
        )  # fmt: skip


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packs() -> Iterator[Finding]:
    for s in statuses():
        well = s.state in ("loaded", "off")
        text = f"pack {s.name} of {s.distribution} {s.version}: {s.state} {s.reason}".rstrip()
        yield Finding(level="ok" if well else "error", message=text, remedy=s.remedy)


def _requirements() -> Iterator[Finding]:
    """Requires-Dist of core and of each pack against what is installed, which `pip --no-deps` does not check."""
    for owner in sorted({CORE, *(s.distribution for s in statuses())}):
        try:
            needed = metadata.requires(owner) or []
        except metadata.PackageNotFoundError:
            continue
        yield from (bad for text in needed if (bad := _unmet(owner, text)) is not None)


def _unmet(owner: str, text: str) -> Finding | None:
    try:
        need = Requirement(text)
    except InvalidRequirement as error:
        message = f"{owner} states a requirement that cannot be read, {text!r}: {error}"
        return Finding(level="error", message=message, remedy=f"reinstall {owner}")
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    have = _version(need.name)
    if have is not None and need.specifier.contains(have, prereleases=True):
        return None
    wanted = f"{need.name}{need.specifier}"
    message = f"{owner} needs {wanted}, " + ("which is not installed" if have is None else f"found {have}")
    return Finding(level="error", message=message, remedy=f"pip install '{wanted}'")


def _names() -> Iterator[Finding]:
    """One pack name in two distributions: both may work, but a switch that names one names both."""
    owners: dict[str, set[str]] = {}
    for s in statuses():
        owners.setdefault(s.name, set()).add(s.distribution)
    for name, found in sorted(owners.items()):
        if len(found) > 1:
            message = f"pack name {name} is used by {', '.join(sorted(found))}: TORCHTPU_PACKS cannot tell them apart"
            yield Finding(level="warn", message=message, remedy="ask their authors to rename one")


def _priorities() -> Iterator[Finding]:
    """Kernels of two distributions for one operator at one priority: the order is fixed, but nobody's choice."""
    for op, kernels in sorted(registry().kernels.items()):
        for a, b in combinations(kernels, 2):
            if _owner(a) != _owner(b) and a.priority == b.priority and _meet(a, b):
                first, second = sorted((a, b), key=lambda k: (_owner(k), k.name))
                yield Finding(
                    level="warn",
                    message=f"{op}: {full_name(first)} and {full_name(second)} have priority {a.priority}; "
                    f"{full_name(first)} comes first by its distribution's name",
                    remedy=f"TORCHTPU_KERNELS={full_name(first)} or ={full_name(second)} says which you want",
                )


def _owner(kernel: Kernel) -> str:
    return kernel.origin.distribution if kernel.origin is not None else ""


def _meet(a: Kernel, b: Kernel) -> bool:
    """Whether some chip could be served by both."""
    generations = a.generations is None or b.generations is None or {*a.generations} & {*b.generations}
    return bool({*a.platforms} & {*b.platforms} and generations)


def _probes() -> Iterator[Finding]:
    for probe in registry().others["torchtpu_probes"]:
        unknown = sorted(probe.events - events.KINDS.keys())
        if unknown:
            owner = probe.origin.distribution if probe.origin is not None else "?"
            message = (
                f"a probe of {owner} waits for events that this core does not have: {', '.join(unknown)}"
            )
            yield Finding(level="warn", message=message, remedy=f"known: {', '.join(events.KINDS)}")


def _checks() -> Iterator[Finding]:
    for check in registry().others["torchtpu_checks"]:
        yield _run(check)


def _run(check: Check) -> Finding:
    try:
        found = check.run()
        return Finding(
            level=found.level, message=f"{check.name}: {found.message}", remedy=found.remedy,
            details=found.details,
        )  # fmt: skip
    except Exception as error:
        owner = check.origin.distribution if check.origin is not None else "its pack"
        message = f"{check.name}: the check itself failed, {type(error).__name__}: {error}"
        return Finding(level="error", message=message, remedy=f"tell the authors of {owner}")


def state() -> State:
    """The versions of the libraries and each pack's version, state and fingerprint, as `doctor --freeze` writes it."""
    packs = {
        f"{s.name} of {s.distribution}": {
            "version": s.version,
            "state": s.state,
            "fingerprint": s.origin.fingerprint if s.origin is not None else "",
        }
        for s in statuses()
    }
    libraries = {name: _version(name) for name in LIBRARIES}
    return {"libraries": {"Python": platform.python_version(), **libraries}, "packs": packs}


def differences(frozen: State, now: State) -> list[str]:
    """What is not as it was frozen, one sentence each; raises ValueError if ``frozen`` is no such state."""
    try:
        then, packs = dict(frozen["libraries"]), {k: dict(v) for k, v in frozen["packs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("it is not a file that `torchtpu doctor --freeze` has written") from None
    told = [
        f"{name}: frozen {then.get(name)}, now {now['libraries'].get(name)}"
        for name in sorted({*then, *now["libraries"]})
        if then.get(name) != now["libraries"].get(name)
    ]
    for name in sorted({*packs, *now["packs"]}):
        old, new = packs.get(name), now["packs"].get(name)
        if old is None or new is None:
            told.append(
                f"pack {name}: " + ("not frozen, now installed" if old is None else "frozen, now missing")
            )
            continue
        fields = [f for f in ("version", "state", "fingerprint") if old.get(f) != new.get(f)]
        told += [f"pack {name}: {f} frozen {old.get(f)}, now {new.get(f)}" for f in fields]
    return told
