"""The whole contract between core and packs: hooks without arguments that return records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

from torchtpu.plugins.records import (
    Check,
    Collective,
    Decomposition,
    GraphPass,
    Kernel,
    Lowering,
    Namespace,
    Probe,
    ShardingRule,
)

PROJECT = "torchtpu"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def torchtpu_lowerings() -> Iterable[Lowering]:  # type: ignore[empty-body]
    """Lowerings of operators, and new operators with a schema."""


@hookspec
def torchtpu_decompositions() -> Iterable[Decomposition]:  # type: ignore[empty-body]
    """Operators in terms of other operators."""


@hookspec
def torchtpu_kernels() -> Iterable[Kernel]:  # type: ignore[empty-body]
    """Faster implementations of operators that have a lowering."""


@hookspec
def torchtpu_graph_passes() -> Iterable[GraphPass]:  # type: ignore[empty-body]
    """Rewrites of graphs."""


@hookspec
def torchtpu_sharding_rules() -> Iterable[ShardingRule]:  # type: ignore[empty-body]
    """How operators map placements."""


@hookspec
def torchtpu_collectives() -> Iterable[Collective]:  # type: ignore[empty-body]
    """Ways to run collectives."""


@hookspec
def torchtpu_namespaces() -> Iterable[Namespace]:  # type: ignore[empty-body]
    """Sub-modules of ``torch.tpu``."""


@hookspec
def torchtpu_probes() -> Iterable[Probe]:  # type: ignore[empty-body]
    """Listeners for core's events."""


@hookspec
def torchtpu_checks() -> Iterable[Check]:  # type: ignore[empty-body]
    """Health checks for ``torchtpu doctor``."""


@hookspec
def torchtpu_commands(cli: Any) -> None:
    """Add click commands to the ``torchtpu`` command."""


RECORD_HOOKS = (
    "torchtpu_lowerings", "torchtpu_decompositions", "torchtpu_kernels", "torchtpu_graph_passes",
    "torchtpu_sharding_rules", "torchtpu_collectives", "torchtpu_namespaces", "torchtpu_probes", "torchtpu_checks",
)  # fmt: skip
