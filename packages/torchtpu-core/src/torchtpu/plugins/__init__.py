"""The only surface that packs import."""

from torchtpu.plugins.hookspecs import hookimpl
from torchtpu.plugins.pack import Pack
from torchtpu.plugins.records import (
    CallSpec,
    Check,
    Collective,
    Decomposition,
    Finding,
    GraphPass,
    Kernel,
    Lowering,
    Namespace,
    Origin,
    Probe,
    ShardingRule,
    TensorSpec,
)
from torchtpu.plugins.selection import Decision, decisions

__all__ = [
    "CallSpec",
    "Check",
    "Collective",
    "Decision",
    "Decomposition",
    "Finding",
    "GraphPass",
    "Kernel",
    "Lowering",
    "Namespace",
    "Origin",
    "Pack",
    "Probe",
    "ShardingRule",
    "TensorSpec",
    "decisions",
    "hookimpl",
]
