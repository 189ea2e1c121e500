"""Registers the device with torch, and the operators at the device's first use."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
_resolved: list[Callable[[], None]] = []  # put the kernels that find their family back in place


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined,misc]
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return bool(_started)


_TYPE = torch._C._autograd.DeviceType.PrivateUse1
# CPython checks on the way out of this call that no error is set
_trip = partial(int)


class _Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined,misc]
    def type_(self) -> Any:
        """The device's type; also asked for while torch unwinds, where an error left set ends the process.

        That is the error of an autograd hook. torch then raises SystemError in its place.
        """
        try:
            _trip()
        except SystemError as error:
            _report(error.__cause__ or error)
        return _TYPE


def _report(error: BaseException) -> None:
    """Show an error that its thread cannot raise; nothing may be raised here either."""
    with suppress(Exception):
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )


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
        host = torch.library.Library("aten", "IMPL")
        host.impl("_pin_memory", _pin_memory, "CPU")
        _libraries.extend([fallback, boot, host])


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy in plain memory: torch asks the newest accelerator for page-locked memory, and PJRT has none to give.

    CUDA, where there is one, still locks its own.
    """
    cuda = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    if not cuda:
        return tensor.clone()
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)  # torch's own kernel, as for every key but CPU
    return torch.ops.aten._pin_memory.default.redispatch(key, tensor, "cuda")  # type: ignore[no-any-return]


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
        from torchtpu import modes
        from torchtpu.backend import amp, kernels, serialize
        from torchtpu.compile import backend
        from torchtpu.diagnostics import explain
        from torchtpu.plugins import probes
        from torchtpu.plugins.registry import changed, define_operators, registry
        from torchtpu.runtime import client

        client.device()  # a platform or a required pack that fails must leave nothing half registered
        registry()
        explain.install()
        modes.install()
        special = kernels.table()
        _kernels.update(special)
        _started.append(True)
        library = torch.library.Library("aten", "IMPL", "PrivateUse1")
        above = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
        _libraries.extend([library, above])
        for name, kernel in special.items():
            if name not in ("empty.memory_format", "empty_strided"):
                library.impl(name, kernel)
        _register_lowerings(library, special)
        _take_over([library, above], special)
        define_operators()
        changed += (_forget, partial(_register_lowerings, library, special))
        changed.append(partial(_take_over, [library, above], special))
        probes.install()
        changed.append(probes.install)
        serialize.register()
        _libraries.extend(amp.register())
        if "torch._dynamo" in sys.modules:  # importing it takes longer than torch; the backend does
            backend.register()


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
    # of these the forms that write come through torch's own kernels, or as calls without a kernel
    for name in list(registry().decompositions):
        op, short = overload(name), name.removeprefix("aten::")
        if name.startswith("aten::") and op is not None and short not in special and not _composite(name):
            special[short] = True
            library.impl(short, _resolving(library, short, op))


def _take_over(libraries: Sequence[torch.library.Library], special: dict[str, Any]) -> None:
    """Let packs' decompositions of composite operators come before torch's, on operators that have gradients."""
    from torchtpu.dispatch.schema import overload
    from torchtpu.plugins.registry import registry

    for name, record in registry().decompositions.items():
        op, short = overload(name), name.removeprefix("aten::")
        if record.when == "always" and op is not None and _composite(name) and short not in special:
            special[short] = True
            for library in libraries:
                library.impl(short, _resolving(library, short, op))


def _full(op: OpOverload) -> str:
    from torchtpu.dispatch.schema import op_name

    return op_name(op)


def _short(op: OpOverload) -> str:
    return _full(op).removeprefix("aten::")


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

    def put(kernel: Callable[..., Any]) -> None:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(name, kernel, allow_override=True)

    def first(*args: Any, **kwargs: Any) -> Any:
        kernel = _kernels.get(op)
        if kernel is None:
            kernel = _kernels[op] = resolve(op)
            _resolved.append(lambda: put(first))
            put(kernel)
        return kernel(*args, **kwargs)

    return first


def _forget() -> None:
    """Other packs are in place: resolve every operator anew."""
    for restore in _resolved:
        restore()
    _resolved.clear()
    for op in [k for k in _kernels if not isinstance(k, str)]:
        del _kernels[op]


def resolve(op: OpOverload) -> Callable[..., Any]:
    """The kernel of ``op``: its lowering, a decomposition or the CPU; of a composite one, the decomposition."""
    from torchtpu.dispatch import fallback
    from torchtpu.dispatch.call import make_call
    from torchtpu.dispatch.schema import family
    from torchtpu.plugins.registry import registry

    if op._can_decompose() and _composite(_full(op)):
        rule = fallback.instead(op)
        return op.decompose if rule is None else fallback.decomposing(_full(op), rule, op.decompose)
    return make_call(family(op, registry().lowerings))


def _dispatch(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The boxed fallback: every operator without a kernel of its own."""
    start()
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = resolve(op)
    return kernel(*args, **kwargs)
