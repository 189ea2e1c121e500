"""Operators without a lowering: torch's decompositions, then the CPU, counted and told once."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from torchtpu import config
from torchtpu.dispatch import lower
from torchtpu.dispatch.schema import op_name

_counts: Counter[str] = Counter()
_local = threading.local()


def fallbacks() -> dict[str, int]:
    """How often each operator ran on the CPU because no lowering or decomposition serves it."""
    return dict(_counts)


def reset_fallbacks() -> None:
    """Start counting anew."""
    _counts.clear()


def make(op: OpOverload, declared: bool = False) -> Callable[..., Any]:
    """A kernel that decomposes ``op`` or runs it on the CPU; ``declared`` means by design, uncounted."""
    name = op_name(op)
    rule = None if declared else _decomposition(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        busy = _local.__dict__.setdefault("busy", set())
        if rule is not None and name not in busy:  # some rules end in the operator itself
            busy.add(name)
            try:
                result = rule(*args, **kwargs)
            finally:
                busy.discard(name)
            if result is not NotImplemented:
                return result
        if not declared:
            _tell(name)
        return on_cpu(op, args, kwargs)

    return call


def _decomposition(op: OpOverload) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table

    if op._schema.is_mutable:
        return None
    return decomposition_table.get(op)


def _tell(name: str) -> None:
    if config.env("FALLBACK") == "error":
        raise NotImplementedError(
            f"torchtpu: {name} has no lowering for device 'tpu' and TORCHTPU_FALLBACK=error forbids the CPU"
        )
    _counts[name] += 1
    if _counts[name] == 1:
        warnings.warn(f"torchtpu: {name} has no lowering and runs on the CPU", stacklevel=4)


def _host(value: Any) -> Any:
    if isinstance(value, Tensor) and value.device.type == "tpu":
        return value.cpu()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def on_cpu(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run ``op`` on CPU copies; writes and results come back to the device."""
    bound = lower.bind(op, args, kwargs)
    if kwargs.get("generator") is not None:
        kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
    host_args, host_kwargs = tree_map(_host, args), tree_map(_host, kwargs)
    host = lower.bind(op, host_args, host_kwargs)
    result = op(*host_args, **host_kwargs)
    back: dict[int, Tensor] = {}
    for arg in op._schema.arguments:
        if arg.alias_info is not None and arg.alias_info.is_write and arg.name in bound:
            _copy_back(bound[arg.name], host[arg.name], back)
    return tree_map(lambda r: _device(r, back), result)


def _copy_back(real: Any, host: Any, back: dict[int, Tensor]) -> None:
    if isinstance(real, Tensor):
        if real.shape != host.shape:
            real.resize_(host.shape)
        real.copy_(host)
        back[id(host)] = real
    elif isinstance(real, list | tuple):
        for r, h in zip(real, host, strict=True):
            _copy_back(r, h, back)


def _device(result: Any, back: dict[int, Tensor]) -> Any:
    if not isinstance(result, Tensor):
        return result
    return back[id(result)] if id(result) in back else result.to("tpu")
