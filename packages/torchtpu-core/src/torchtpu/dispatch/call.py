"""The per-op path: key, entry, launch, result. Everything here runs once per ATen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from torchtpu import config
from torchtpu.dispatch import fallback, lower
from torchtpu.dispatch.build import Call, Entry, HostOnly, Result, build
from torchtpu.dispatch.schema import Family, op_name
from torchtpu.dispatch.template import ScalarHole, TensorHole, is_wrapped
from torchtpu.modes import debug
from torchtpu.runtime import client, transfer
from torchtpu.tensors import random
from torchtpu.tensors.layout import tensor_layout
from torchtpu.tensors.storage import TpuStorage, materialize, new_strided, new_tensor

_create = torch._C._acc.create_empty_tensor
_NUMBERS = (bool, int, float, complex)


class Encoder:
    """Collects a call's key, storages and scalars, and its tree of holes for the first build."""

    def __init__(self, family: Family) -> None:
        self.family = family
        static = set(family.lowering.static) if family.lowering else set()
        schema = family.op._schema
        # a number given for a tensor (torch hands wrapped numbers over as such) varies as well
        self.varying = [
            any(kind in str(a.type) for kind in ("number", "float", "Tensor")) and a.name not in static
            for a in schema.arguments
        ]
        self.by_name = {a.name: v for a, v in zip(schema.arguments, self.varying, strict=True)}
        self.moves = op_name(family.op).startswith(("aten::index", "aten::_index", "aten::_unsafe_index"))

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Encoded:
        """Encode one call; a CPU tensor that is not 0-d raises torch's device error."""
        out = _Encoded(self.moves)
        tree = tuple(out.leaf(a, v) for a, v in zip(args, self.varying, strict=False))
        named = {n: out.leaf(None if n == "generator" else a, self.by_name[n]) for n, a in kwargs.items()}
        out.key.append(tuple(named))
        out.tree, out.named = tree, named
        return out


class _Encoded:
    """The parts of one encoded call."""

    def __init__(self, moves: bool) -> None:
        self.key: list[Any] = []
        self.stores: list[TpuStorage] = []
        self.places: list[int] = []
        self.layouts: list[Any] = []
        self.scalars: list[tuple[type, Any]] = []
        self.tree: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        self._moves = moves
        self._where: dict[int, int] = {}

    def leaf(self, value: Any, varying: bool) -> Any:
        """Replace one argument by a hole, or keep it as a static value."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            self.key.append(len(value))
            return [self.leaf(v, varying) for v in value]
        if varying and isinstance(value, _NUMBERS):
            return self._scalar(type(value), value)
        self.key.append((value.__class__, value))
        return value

    def _scalar(self, kind: type, value: Any, dtype: Any = None, wrapped: bool = False) -> ScalarHole:
        hole = ScalarHole(len(self.scalars), kind, dtype, wrapped)
        self.scalars.append((kind, value))
        self.key.append(hole)
        return hole

    def _tensor(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.__class__ is not TpuStorage:
            if tensor.device.type == "cpu" and tensor.dim() == 0:
                value = tensor.item()
                return self._scalar(type(value), value, tensor.dtype, is_wrapped(tensor))
            if not (self._moves and tensor.device.type == "cpu"):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"tpu:0 and {tensor.device}!"
                )
            tensor = tensor.to("tpu")
            storage = tensor.untyped_storage()
        layout = tensor_layout(tensor, storage.layout) if storage.views else storage.layout
        place = self._where.setdefault(id(storage), len(self.stores))
        if place == len(self.stores):
            self.stores.append(storage)
        self.places.append(place)
        self.layouts.append(layout)
        self.key.append(layout)
        self.key.append(place)
        return TensorHole(len(self.layouts) - 1)


def make_call(family: Family) -> Callable[..., Any]:
    """The PrivateUse1 kernel of an overload that has a lowering."""
    if family.lowering is None or family.lowering.host:
        return _checked(family, fallback.make(family.op, declared=family.lowering is not None))
    slow = _slow_call(family)
    if family.writes or family.hidden or family.lowering.rng:
        return slow
    return _fast_call(slow)


def _checked(family: Family, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Debug mode looks at what the host computes, too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if config.debugging[0] and config.get_mode() == "debug":
            return debug.run(family, args, kwargs, lambda: kernel(*args, **kwargs))
        return kernel(*args, **kwargs)

    return call


def _fast_call(slow: Any) -> Callable[..., Any]:
    """Functional operators on one or two tensors: the shortest way that torch's API allows."""
    cache: dict[Any, Entry] = {}
    debugging, views = config.debugging, tensor_layout

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or debugging[0]:
            return slow(*args, **kwargs)
        key: Any = ()
        buffers = []
        out = learn = None
        try:
            for a in args:
                cls = a.__class__
                if cls is Tensor or cls is Parameter:
                    s = a.untyped_storage()
                    key += (views(a, s.layout) if s.views else s.layout,)
                    buffers.append(s.buffer)
                else:
                    key += (cls, a)
            entry = cache[key]
            out = entry.execute(buffers).consume_with_handlers(entry.handlers)[0]
        except KeyError:
            learn = (cache, key)
        except (AttributeError, TypeError):
            pass  # not on the device, lists, or nothing written yet
        if out is None:
            return slow(*args, learn=learn)
        layout = entry.results[0].layout  # type: ignore[union-attr]
        tensor = _create(layout.shape, layout.dtype)
        storage = tensor.untyped_storage()
        storage.__class__ = TpuStorage
        storage.buffer = out
        storage.layout = layout
        storage.views = storage.shared = False
        return tensor

    return call


def _slow_call(family: Family) -> Callable[..., Any]:
    cache: dict[Any, Entry | HostOnly] = {}
    encoder = Encoder(family)
    host = fallback.make(family.op, declared=True)
    mutated = bool(family.writes or family.hidden)

    def call(*args: Any, learn: Any = None, **kwargs: Any) -> Any:
        if config.debugging[0]:
            client.check_fork()
        if family.outs:
            _check_outs(family, args, kwargs)
        enc = encoder.encode(args, kwargs)
        shared = tuple(s.shared for s in enc.stores) if mutated else ()
        key = (*enc.key, shared)
        entry = cache.get(key)
        if entry is None:
            spec = Call(
                family, enc.tree, enc.named, enc.layouts, enc.places, [k for k, _ in enc.scalars],
                shared or (True,) * len(enc.stores),
            )  # fmt: skip
            entry = cache[key] = _built(family, spec, args, kwargs)
        if isinstance(entry, HostOnly):
            return host(*args, **kwargs)
        if config.debugging[0] and config.get_mode() == "debug":
            return debug.run(family, args, kwargs, lambda: launch(family, entry, enc, args, kwargs))
        if learn is not None and entry.direct and not enc.scalars and len(set(enc.places)) == len(enc.places):
            learn[0][learn[1]] = entry
        return launch(family, entry, enc, args, kwargs)

    return call


def _built(family: Family, spec: Call, args: Any, kwargs: Any) -> Entry | HostOnly:
    try:
        return build(spec)
    except HostOnly as reason:
        return reason
    except Exception as error:
        if config.get_mode() == "debug":
            raise debug.located(error, family, args, kwargs) from None
        raise


def launch(family: Family, entry: Entry, enc: _Encoded, args: Any, kwargs: Any) -> Any:
    """Run the program on the call's buffers, store the writes and wrap the results."""
    inputs, count = [], len(enc.stores)
    stream = None
    total = count + len(enc.scalars)
    for k in entry.program.kept:
        if k < count:
            inputs.append(materialize(enc.stores[k]))
        elif k < total:
            inputs.append(transfer.scalar(*enc.scalars[k - count]))
    if entry.rng:
        stream = random.stream_of(kwargs.get("generator"))
        with stream.lock:
            inputs.append(stream.take())
            outputs = entry.program.run(inputs)
            stream.state = outputs.pop()
    else:
        outputs = entry.program.run(inputs)
    for place, buffer in zip(entry.writes, outputs, strict=False):
        store = enc.stores[place]
        store.buffer = buffer
        store.shared = False
    return _returned(family, entry, outputs[len(entry.writes) :], args, kwargs)


def _wrap(result: Result | None, buffers: list[Any]) -> Tensor | None:
    if result is None:
        return None
    buffer = buffers.pop(0)
    if result.strides is None:
        return new_tensor(result.layout, buffer)
    return new_strided(result.shape, result.strides, result.layout.dtype, buffer)


def _returned(family: Family, entry: Entry, buffers: list[Any], args: Any, kwargs: Any) -> Any:
    tensors = [_wrap(r, buffers) for r in entry.results]
    out: list[Any] = []
    for part in entry.shape:
        if part is None:
            out.append(tensors.pop(0) if tensors else None)
        elif isinstance(part, int):
            out.append([tensors.pop(0) for _ in range(part)])
        else:
            out.append(lower.bind(family.op, args, kwargs)[part])
    return out[0] if len(out) == 1 else (tuple(out) if out else None)


def _check_outs(family: Family, args: Any, kwargs: Any) -> None:
    """Give ``out=`` tensors the shape of the result, as torch's resize of outputs does."""
    bound = lower.bind(family.op, args, kwargs)
    outs = [bound[n] for n in family.outs]
    rest = {k: v for k, v in bound.items() if k not in family.outs}
    metas = {
        n: torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device="meta")
        for n, o in zip(family.outs, outs, strict=True)
        if isinstance(o, Tensor)
    }
    if len(metas) != len(outs):
        return

    def to_meta(v: Any) -> Any:
        if isinstance(v, Tensor) and v.device.type == "tpu":
            return torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta")
        if isinstance(v, list | tuple):
            return [to_meta(x) for x in v]
        return torch.device("meta") if isinstance(v, torch.device) else v

    try:
        family.op(**{k: to_meta(v) for k, v in rest.items()}, **metas)
    except NotImplementedError:
        return
    for name, out in zip(family.outs, outs, strict=True):
        if metas[name].shape != out.shape:
            out.resize_(metas[name].shape)
