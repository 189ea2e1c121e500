"""Decompositions, of packs and of torch; then the CPU, counted and told once."""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from torchtpu import config, events
from torchtpu.dispatch import lower
from torchtpu.dispatch.schema import foreach_base, functional, op_name, overload
from torchtpu.errors import user_frame
from torchtpu.plugins.registry import registry

_counts: Counter[str] = Counter()
_local = threading.local()
hosts: list[Callable[[str, bool], None]] = []  # told before an operator runs on the host; True: by design


def fallbacks() -> dict[str, int]:
    """How often each operator ran on the CPU because no lowering or decomposition serves it."""
    return dict(_counts)


def reset_fallbacks() -> None:
    """Start counting anew."""
    _counts.clear()


def make(op: OpOverload, declared: bool = False) -> Callable[..., Any]:
    """A kernel that decomposes ``op`` or runs it on the CPU; ``declared`` means by design, uncounted."""
    name = op_name(op)

    def host(*args: Any, **kwargs: Any) -> Any:
        if not declared:
            _tell(name)
            if "fallback" in events.handlers:
                return _timed(op, args, kwargs)
        return on_cpu(op, args, kwargs, declared)

    rule = None if declared else _decomposition(op)
    return host if rule is None else decomposing(name, rule, host)


def decomposing(name: str, rule: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """``rule``; ``otherwise`` for what it does not take, and for the operator inside its own rule."""

    def call(*args: Any, **kwargs: Any) -> Any:
        busy = _local.__dict__.setdefault("busy", set())
        if name not in busy:  # some rules end in the operator itself
            busy.add(name)
            try:
                result = rule(*args, **kwargs)
            finally:
                busy.discard(name)
            if result is not NotImplemented:
                return result
        return otherwise(*args, **kwargs)

    return call


def _decomposition(op: OpOverload) -> Callable[..., Any] | None:
    """What serves an operator without a lowering: the packs' decomposition, or else torch's."""
    from torch._decomp import decomposition_table

    rule = _of_packs(op)
    if rule is not None:
        return rule
    if not op._schema.is_mutable:
        return decomposition_table.get(op)
    twin = overload(functional(op) or "aten::")
    return storing(op, twin) if twin is not None and twin in decomposition_table else None


def _of_packs(op: OpOverload, always: bool = False) -> Callable[..., Any] | None:
    """A pack's decomposition of ``op`` or, for a form that writes, of its functional twin."""
    table = registry().decompositions
    name = op_name(op)
    found = table.get(name)
    twin = None if found is not None or not op._schema.is_mutable else functional(op)
    record = found or table.get(twin or "")
    if record is None or (always and record.when != "always"):
        return None
    form = overload(twin or "aten::")
    return record.fn if form is None else storing(op, decomposing(op_name(form), record.fn, form))


def instead(op: OpOverload) -> Callable[..., Any] | None:
    """The decomposition that a pack wants in place of the lowering (``when="always"``), or None."""
    if not any(record.when == "always" for record in registry().decompositions.values()):
        return None
    rule = _of_packs(op, always=True)
    if rule is not None or not op._schema.name.startswith("aten::_foreach_"):
        return rule
    listed = overload(functional(op) or "aten::") if op._schema.is_mutable else op
    base = foreach_base(listed, registry().lowerings) if listed is not None else None
    if listed is None or base is None or _of_packs(base, always=True) is None:
        return None
    each = _each(listed, base)
    return each if listed is op else storing(op, each)


def _each(op: OpOverload, base: OpOverload) -> Callable[..., Any]:
    """A functional foreach operator as one call of ``base`` for each element."""

    def call(*args: Any, **kwargs: Any) -> list[Tensor]:
        bound = lower.bind(op, args, kwargs)
        return [base(**element) for element in lower.elements(op, base, bound)]

    return call


def storing(op: OpOverload, twin: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place, ``out=`` or foreach form of ``twin``, which gives fresh results."""
    arguments = op._schema.arguments
    outs = [a.name for a in arguments if a.is_out]
    targets = outs or [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = lower.bind(op, args, kwargs)
        values = twin(**{name: value for name, value in bound.items() if name not in outs})
        values = values if isinstance(values, tuple) else (values,)
        for name, value in zip(targets, values, strict=True):
            _store(bound[name], value, resize=name in outs)
        stored = tuple(bound[name] for name in targets) if op._schema.returns else (None,)
        return stored[0] if len(stored) == 1 else stored

    return call


def _store(target: Any, value: Any, resize: bool) -> None:
    if isinstance(target, list | tuple):
        for one, new in zip(target, value, strict=True):
            _store(one, new, resize)
        return
    lower.check_cast(value.dtype, target.dtype)
    if target.shape != value.shape:
        if not resize:
            shapes = list(target.shape), list(value.shape)
            raise RuntimeError("output with shape {} doesn't match the broadcast shape {}".format(*shapes))
        target.resize_(value.shape)
    target.copy_(value)


def _tell(name: str) -> None:
    if config.env("FALLBACK") == "error":
        raise NotImplementedError(
            f"torchtpu: {name} has no lowering for device 'tpu' and TORCHTPU_FALLBACK=error forbids the CPU"
        )
    _counts[name] += 1
    if _counts[name] == 1:
        warnings.warn(f"torchtpu: {name} has no lowering and runs on the CPU", stacklevel=4)


def _timed(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """`on_cpu` as an event; its time has the copies to and from the device in it."""
    start = time.perf_counter()
    result = on_cpu(op, args, kwargs)
    events.emit(events.Event(
        kind="fallback", name=op_name(op), where=user_frame(), source="cpu",
        seconds=time.perf_counter() - start, reason="no lowering or decomposition serves it",
    ))  # fmt: skip
    return result


def _host(value: Any) -> Any:
    if isinstance(value, Tensor) and value.device.type == "tpu":
        return value.cpu()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def on_cpu(op: OpOverload, args: Any, kwargs: Any, declared: bool = False) -> Any:
    """Run ``op`` on CPU copies; writes and results come back to the device."""
    for tell in hosts:
        tell(op_name(op), declared)
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
            # the CPU may have chosen other strides, LAPACK's
            real.set_(torch.empty_strided(host.shape, host.stride(), dtype=real.dtype, device=real.device))
        real.copy_(host)
        back[id(host)] = real
    elif isinstance(real, list | tuple):
        for r, h in zip(real, host, strict=True):
            _copy_back(r, h, back)


def _device(result: Any, back: dict[int, Tensor]) -> Any:
    if not isinstance(result, Tensor):
        return result
    return back[id(result)] if id(result) in back else result.to("tpu")
