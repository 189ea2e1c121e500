"""The per-op path: key, entry, launch, result. Everything here runs once per ATen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from torchtpu import config
from torchtpu.dispatch import executor, fallback, lower
from torchtpu.dispatch.build import Call, Entry, HostOnly, Result, build
from torchtpu.dispatch.schema import Family, functional, op_name, overload
from torchtpu.dispatch.template import ScalarHole, TensorHole, is_wrapped
from torchtpu.runtime import client, precision, transfer
from torchtpu.runtime import program as programs
from torchtpu.tensors import random
from torchtpu.tensors.layout import tensor_layout
from torchtpu.tensors.storage import CPU, TpuStorage, new_strided, new_tensor

_get, _KEY = torch._C._get_obj_in_tls, config.MODE_KEY
_create = torch._C._acc.create_empty_tensor
Fast = tuple[Entry, Any, Any]  # the entry, its program's launch (or None) and output handlers
_NUMBERS = frozenset((bool, int, float, complex))
BY_PRECISION = "by precision"  # in place of an entry: it is found under (key, precision)


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
        if varying and isinstance(value, bool | int | float | complex):
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
    """The PrivateUse1 kernel of an overload: a pack's decomposition in place of the lowering, or the lowering."""
    rule = fallback.instead(family.op)
    if rule is None:
        return _served(family)
    return _checked(family, fallback.decomposing(op_name(family.op), rule, _served(family)))


def _served(family: Family) -> Callable[..., Any]:
    if family.lowering is None or family.lowering.host:
        return _checked(family, fallback.make(family.op, declared=family.lowering is not None))
    slow = Slow(family)
    if family.hidden or family.lowering.rng or family.outs or family.base is not None:
        return slow
    if not family.writes:
        return _placed(family, _fast_call(slow))
    first = family.op._schema.arguments[0].name
    return _fast_write(slow) if family.writes == (first,) else slow


def _placed(family: Family, call: Callable[..., Any]) -> Callable[..., Any]:
    """``zeros_like`` and its kind may make a tensor on another device, as torch itself does then."""
    names = [a.name for a in family.op._schema.arguments]
    if "device" not in names or names[0] != "self":
        return call
    elsewhere = family.op._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and device.type != "tpu":
            return elsewhere(CPU, *args, **kwargs)
        return call(*args, **kwargs)

    return kernel


def _checked(family: Family, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Debug mode looks at what the host computes, too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        check = executor.check()
        if check is not None:
            return check.run(family, args, kwargs, lambda: kernel(*args, **kwargs))
        return kernel(*args, **kwargs)

    return call


def _fast_call(slow: Slow) -> Callable[..., Any]:
    """Functional operators with one result: the shortest way that torch's API allows."""
    cache: dict[Any, Fast] = {}
    slow.caches.append(cache)
    special, views, varying = config.special, tensor_layout, slow.encoder.varying
    fused: Any = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal fused
        if kwargs:
            return slow(*args, **kwargs)
        if special[0]:
            if special[0] == 2:  # config.FORKED
                return slow(*args)
            try:
                mode = _get(_KEY)
            except RuntimeError:  # a new thread
                mode = config.adopt_default()
            if mode == "fused":
                fused = fused or executor.fronts["fused"](slow, False)
                return fused(args)
            if mode != "strict":
                return slow(*args)
        key: Any = ()
        buffers: list[Any] = []
        numbers: Any = ()
        out = learn = None
        try:
            for a, varies in zip(args, varying):  # noqa: B905 - trailing defaults are left out
                cls = a.__class__
                if cls is Tensor or cls is Parameter:
                    s = a.untyped_storage()
                    key += (views(a, s.layout) if s.views else s.layout,)
                    buffers.append(s.buffer)
                elif varies and cls in _NUMBERS:
                    key += (cls,)
                    numbers += ((cls, a),)
                else:
                    key += (cls, a)
            entry, execute, handlers = cache[key]
            for number in numbers:
                buffers.append(transfer.scalar(*number))
            out = execute(buffers).consume_with_handlers(handlers)[0]
        except KeyError:
            learn = (cache, key, True)
        except (AttributeError, TypeError):
            pass  # not on the device, lists, pending, or nothing written yet
        if out is None:
            return slow(*args, learn=learn)
        layout = entry.results[0].layout  # type: ignore[union-attr]
        tensor = _create(layout.shape, layout.dtype)
        storage = tensor.untyped_storage()
        storage.__class__ = TpuStorage
        storage.buffer = out
        storage.layout = layout
        return tensor

    return call


def _fast_write(slow: Slow) -> Callable[..., Any]:
    """Operators that write their first tensor and return it, as `_fast_call`."""
    caches: tuple[dict[Any, Fast], dict[Any, Fast]] = ({}, {})
    slow.caches.extend(caches)
    special, views, varying = config.special, tensor_layout, slow.encoder.varying
    fused: Any = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal fused
        if kwargs:
            return slow(*args, **kwargs)
        if special[0]:
            if special[0] == 2:  # config.FORKED
                return slow(*args)
            try:
                mode = _get(_KEY)
            except RuntimeError:  # a new thread
                mode = config.adopt_default()
            if mode == "fused":
                fused = fused or executor.fronts["fused"](slow, True)
                return fused(args)
            if mode != "strict":
                return slow(*args)
        key: Any = ()
        buffers: list[Any] = []
        numbers: Any = ()
        out = learn = None
        try:
            for a, varies in zip(args, varying):  # noqa: B905 - trailing defaults are left out
                cls = a.__class__
                if cls is Tensor or cls is Parameter:
                    s = a.untyped_storage()
                    key += (views(a, s.layout) if s.views else s.layout,)
                    buffers.append(s.buffer)
                elif varies and cls in _NUMBERS:
                    key += (cls,)
                    numbers += ((cls, a),)
                else:
                    key += (cls, a)
            target = args[0].untyped_storage()
            cache = caches[target.shared]
            _, execute, handlers = cache[key]
            written = target.buffer
            for other in buffers[1:]:
                if other is written:
                    raise TypeError  # one input of the program, not two
            for number in numbers:
                buffers.append(transfer.scalar(*number))
            out = execute(buffers).consume_with_handlers(handlers)[0]
        except KeyError:
            learn = (cache, key, target.shared)
        except (AttributeError, TypeError):
            pass
        if out is None:
            return slow(*args, learn=learn)
        target.buffer = out
        target.shared = False
        return args[0]

    return call


class Slow:
    """Any call: encodes it fully, builds its entry at the first time, and hands it to the mode."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.encoder = Encoder(family)
        self.entries: dict[Any, Any] = {}  # Entry, HostOnly or BY_PRECISION
        self.caches: list[dict[Any, Any]] = [self.entries]
        _calls.append(self)
        self.host = fallback.make(family.op, declared=True)
        twin = overload(functional(family.op) or "aten::") if family.outs else None
        self.store = fallback.storing(family.op, twin) if twin is not None else self.host

    def __call__(self, *args: Any, learn: Any = None, **kwargs: Any) -> Any:
        """Run the call; ``learn`` is the per-op path's (cache, key) to fill."""
        if config.special[0]:
            client.check_fork()
        family = self.family
        if family.outs and not _check_outs(family, args, kwargs):
            return self.store(*args, **kwargs)
        enc = self.encoder.encode(args, kwargs)
        entry = self._entry(enc, args, kwargs)
        if isinstance(entry, HostOnly):
            return self.host(*args, **kwargs)
        check = executor.check()
        if check is not None:
            return check.run(family, args, kwargs, lambda: self._launch(entry, enc, args, kwargs))
        result = self._launch(entry, enc, args, kwargs)
        if learn is not None and entry.simple and len(set(enc.places)) == len(enc.places):
            _teach(entry, learn)
        return result

    def simple(self, args: tuple[Any, ...]) -> tuple[Entry, list[TpuStorage]] | None:
        """The entry and storages of a call with one row-major output; None for any other call."""
        enc = self.encoder.encode(args, {})
        entry = self._entry(enc, args, {})
        return (entry, enc.stores) if isinstance(entry, Entry) and entry.simple else None

    def _entry(self, enc: _Encoded, args: Any, kwargs: Any) -> Entry | HostOnly:
        key = tuple(enc.key)
        entry = self.entries.get(key)
        if entry is BY_PRECISION:
            entry = self.entries.get((key, precision.current()))
        if entry is None:
            kinds = [k for k, _ in enc.scalars]
            spec = Call(self.family, enc.tree, enc.named, enc.layouts, enc.places, kinds)
            entry = self._built(spec, args, kwargs)
            if isinstance(entry, Entry) and entry.precision is not None:
                self.entries[key], self.entries[key, entry.precision] = BY_PRECISION, entry
            else:
                self.entries[key] = entry
        return entry

    def _built(self, spec: Call, args: Any, kwargs: Any) -> Entry | HostOnly:
        try:
            return build(spec)
        except HostOnly as reason:
            return reason
        except Exception as error:
            check = executor.check()
            if check is not None:
                raise check.located(error, self.family, args, kwargs) from None
            raise

    def _launch(self, entry: Entry, enc: _Encoded, args: Any, kwargs: Any) -> Any:
        """Run, store the writes and wrap the results."""
        run = executor.run() if config.special[0] else executor.runs["strict"]
        if entry.rng:
            stream = random.stream_of(kwargs.get("generator"))
            with stream.lock:
                outputs = run(entry, enc.stores, enc.scalars, stream.take())
                stream.state = outputs.pop()
        else:
            outputs = run(entry, enc.stores, enc.scalars, None)
        for place, buffer in zip(entry.writes, outputs, strict=False):
            store = enc.stores[place]
            store.buffer, store.shared = buffer, False
        return _returned(self.family, entry, outputs[len(entry.writes) :], args, kwargs)


_calls: list[Slow] = []


def _forget() -> None:
    """Drop every entry; programs that are still in use compile again, or come from the disk."""
    for call in _calls:
        for cache in call.caches:
            cache.clear()


programs.forget.append(_forget)


def _teach(entry: Entry, learn: Any) -> None:
    """Let the per-op path serve this key from now on; without a launch while no program fits."""
    cache, key, shared = learn
    program = entry.programs.get(() if shared else entry.writes)
    if program is not None and program.kept == tuple(range(len(entry.avals))):
        execute = program.execute
        if entry.precision is not None:
            execute = precision.guarded(execute, entry.precision)
        cache[key] = entry, execute, program.handlers
    else:
        cache[key] = entry, None, None


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


def _check_outs(family: Family, args: Any, kwargs: Any) -> bool:
    """Give ``out=`` tensors the shape of the result, as torch's resize of outputs does; False if unknown."""
    bound = lower.bind(family.op, args, kwargs)
    outs = [bound[n] for n in family.outs]
    rest = {k: v for k, v in bound.items() if k not in family.outs}
    metas = {
        n: torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device="meta")
        for n, o in zip(family.outs, outs, strict=True)
        if isinstance(o, Tensor)
    }
    if len(metas) != len(outs):
        return True

    def to_meta(v: Any) -> Any:
        if isinstance(v, Tensor) and v.device.type == "tpu":
            return torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta")
        if isinstance(v, list | tuple):
            return [to_meta(x) for x in v]
        return torch.device("meta") if isinstance(v, torch.device) else v

    try:
        family.op(**{k: to_meta(v) for k, v in rest.items()}, **metas)
    except NotImplementedError:
        return False
    for name, out in zip(family.outs, outs, strict=True):
        shape = metas[name].shape
        if shape != out.shape:
            if any(v is out for v in rest.values()):  # an in-place form made of this one
                raise RuntimeError(
                    f"output with shape {list(out.shape)} doesn't match the broadcast shape {list(shape)}"
                )
            out.resize_(shape)
    return True
