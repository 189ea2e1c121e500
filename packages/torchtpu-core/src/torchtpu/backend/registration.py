"""Registers the device with torch, and the operators at the device's first use."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import backend_registration

# torch builds these from an allocation and a copy, which is how they cross devices.
CROSSING = frozenset({"_to_copy"})
_libraries: list[torch.library.Library] = []
_lock = threading.RLock()
_started: list[bool] = []
_kernels: dict[Any, Callable[..., Any]] = {}


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined,misc]
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return bool(_started)


class _Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined,misc]
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def register() -> None:
    """Make ``tpu`` a device of torch; cheap, starts nothing."""
    from torchtpu.backend import module

    with _lock:
        if _libraries:
            return
        backend_registration._setup_privateuseone_for_python_backend(
            "tpu", backend_module=module, hook=_Hooks(), device_guard=_Guard()
        )
        backend_registration._generate_storage_methods_for_privateuse1_backend("tpu")
        fallback = torch.library.Library("_", "IMPL")
        fallback.fallback(_dispatch, "PrivateUse1")
        boot = torch.library.Library("aten", "IMPL")
        for name in ("empty.memory_format", "empty_strided"):
            boot.impl(name, _booting(name), "PrivateUse1")
        _libraries.extend([fallback, boot])


def _booting(name: str) -> Callable[..., Any]:
    def first(*args: Any, **kwargs: Any) -> Any:
        start()
        return _kernels[name](*args, **kwargs)

    return first


def start() -> None:
    """Load the packs and register every operator; once, at the first use."""
    if _started:
        return
    with _lock:
        if _started:
            return
        from torchtpu.backend import amp, kernels, serialize
        from torchtpu.plugins.registry import registry
        from torchtpu.runtime import client

        client.device()  # a platform or a required pack that fails must leave nothing half registered
        registry()
        special = kernels.table()
        _kernels.update(special)
        _started.append(True)
        library = torch.library.Library("aten", "IMPL", "PrivateUse1")
        _libraries.append(library)
        for name, kernel in special.items():
            if name not in ("empty.memory_format", "empty_strided"):
                library.impl(name, kernel)
        _register_lowerings(library, special)
        serialize.register()
        _libraries.extend(amp.register())


def _composite(name: str) -> bool:
    """Whether torch builds the operator from others, autograd included, or it is TorchScript's only."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
    except RuntimeError:
        return True


def _register_lowerings(library: torch.library.Library, special: dict[str, Any]) -> None:
    from torchtpu.dispatch.schema import overload
    from torchtpu.plugins.registry import registry

    for name in list(registry().lowerings):
        if not name.startswith("aten::"):
            continue
        functional = overload(name)
        if functional is None:
            continue
        for op in _relatives(functional):
            short = _short(op)
            if short not in special and short not in CROSSING and not _composite(f"aten::{short}"):
                special[short] = True
                library.impl(short, _resolving(library, short, op))


def _short(op: OpOverload) -> str:
    from torchtpu.dispatch.schema import op_name

    return op_name(op).removeprefix("aten::")


def _relatives(op: OpOverload) -> list[OpOverload]:
    """The overload itself and the mutating ones of its packet and of the in-place packet."""
    base = op._schema.name.removeprefix("aten::").removesuffix("_functional")
    related = [op]
    for packet_name in (base, f"{base}_", f"_foreach_{base}", f"_foreach_{base}_"):
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is not None:
            related += [getattr(packet, v) for v in packet.overloads()]
    return [o for o in related if o is op or o._schema.is_mutable or "_foreach_" in o._schema.name]


def _resolving(library: torch.library.Library, name: str, op: OpOverload) -> Callable[..., Any]:
    """A kernel that at its first call finds the operator's family and takes itself out of the way."""

    def first(*args: Any, **kwargs: Any) -> Any:
        kernel = _kernels.get(op)
        if kernel is None:
            kernel = _kernels[op] = resolve(op)
            with _lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.impl(name, kernel, allow_override=True)
        return kernel(*args, **kwargs)

    return first


def resolve(op: OpOverload) -> Callable[..., Any]:
    """The kernel of ``op``: its lowering, a decomposition or the CPU."""
    from torchtpu.dispatch.call import make_call
    from torchtpu.dispatch.schema import family
    from torchtpu.plugins.registry import registry

    return make_call(family(op, registry().lowerings))


def _dispatch(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The boxed fallback: every operator without a kernel of its own."""
    start()
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = resolve(op)
    return kernel(*args, **kwargs)
