"""The only surface that packs import."""

from torchtpu.plugins.hookspecs import hookimpl
from torchtpu.plugins.newop import Definition, NewOp
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
from torchtpu.plugins.registry import add_operator
from torchtpu.plugins.selection import Decision, decisions

__all__ = [
    "CallSpec",
    "Check",
    "Collective",
    "Decision",
    "Decomposition",
    "Definition",
    "Finding",
    "GraphPass",
    "Kernel",
    "Lowering",
    "Namespace",
    "NewOp",
    "Origin",
    "Pack",
    "Probe",
    "ShardingRule",
    "TensorSpec",
    "add_operator",
    "decisions",
    "hookimpl",
]
