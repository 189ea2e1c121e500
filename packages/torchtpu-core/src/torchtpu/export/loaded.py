"""`load`: a file as a module that runs its program."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchtpu.compile.segment import Inputs, launch
from torchtpu.dispatch import executor
from torchtpu.dispatch.build import Entry, Result
from torchtpu.export import container
from torchtpu.export.arguments import Binder
from torchtpu.export.container import ExportError, Info
from torchtpu.runtime import client
from torchtpu.runtime import program as programs
from torchtpu.tensors import views
from torchtpu.tensors.layout import Layout, buffer_layout
from torchtpu.tensors.storage import new_tensor

KEPT = 64  # programs for other layouts or sizes of the arguments


def load(path: str | os.PathLike[str]) -> Loaded:
    """The program of a file that `save` wrote, with its parameters and buffers on the tpu device.

    Raises `ExportError` if the file is damaged, of another format, or has no program for the platform in use.
    """
    torch.empty(0, device="tpu")  # starts the device
    info, data, tensors = container.read(path, client.platform(), lambda tensor: tensor.to("tpu"))
    from jax import export

    try:
        made = export.deserialize(bytearray(data))
    except Exception as error:  # whatever JAX says of a version that it does not read
        raise ExportError(
            f"torchtpu: JAX cannot read the program of {os.fspath(path)}, which was written by {dict(info.versions)}: {error}"
        ) from error
    return Loaded(info, made, tensors)


class Loaded(nn.Module):
    """A module whose forward runs an exported program; ``info`` describes it.

    It takes the arguments that the program was exported with, in tensors on the tpu device or the CPU, and returns
    results of the same structure on the tpu device. ``state_dict`` has the names of the original's, so other
    parameters of the same shapes can be loaded. Nothing is differentiated.
    """

    def __init__(self, info: Info, made: Any, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.info = info
        self._made, self._binder = made, Binder(info)
        self._entries: dict[Any, Entry] = {}
        self._slots: list[tuple[nn.Module | None, str, torch.Tensor]] = []
        for state, value in zip(info.state, tensors, strict=True):
            if state.kind == "parameter":
                value = nn.Parameter(value, requires_grad=False)
            for name in state.names if state.kind != "constant" else ():
                _put(self, name, value, state.persistent)
            self._slots.append(
                _slot(self, state.names[0], value) if state.kind != "constant" else (None, "", value)
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; TypeError and ValueError name an argument that does not fit."""
        given = self._binder(args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            raise RuntimeError("torchtpu: an exported program has no gradient; call it under torch.no_grad()")
        with torch.no_grad():
            return self._run([*self._state(), *given])

    def train(self, mode: bool = True) -> Loaded:
        """Not possible: what the model does in training was decided when it was exported."""
        raise NotImplementedError(
            "torchtpu: an exported program is as it was exported, train() and eval() change nothing"
        )

    def _state(self) -> list[torch.Tensor]:
        return [value if owner is None else getattr(owner, name) for owner, name, value in self._slots]

    def _run(self, values: list[torch.Tensor]) -> Any:
        written = [place in self.info.writes for place in range(len(values))]
        # those of the CPU without dimensions would be taken for Python numbers
        values = [v if v.dim() or w else v.to("tpu") for v, w in zip(values, written, strict=True)]
        inputs = Inputs(values, written)
        key = tuple(inputs.key)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= KEPT:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[key] = self._build(values, inputs)
        buffers = launch(partial(executor.run(), entry), inputs, entry.writes, self.info.draws or None)
        for host, copy in inputs.moved:
            host.copy_(copy)
        return self._results(entry, buffers)

    def _build(self, values: list[torch.Tensor], inputs: Inputs) -> Entry:
        self._check_state(values)
        layouts, places = inputs.key[::2], inputs.key[1::2]
        return build(self._made, self.info, layouts, places, len(inputs.stores))

    def _check_state(self, values: list[torch.Tensor]) -> None:
        for state, value in zip(self.info.state, values, strict=False):
            if str(value.dtype) != f"torch.{state.dtype}" or tuple(value.shape) != state.shape:
                raise TypeError(
                    f"torchtpu: {state.kind} {state.names[0]} is {str(value.dtype)[6:]}{list(value.shape)}, "
                    f"the program takes {state.dtype}{list(state.shape)}"
                )

    def _results(self, entry: Entry, buffers: list[Any]) -> Any:
        described = zip([r for r in entry.results if r is not None], buffers, strict=True)
        leaves = []
        for output in self.info.outputs:
            if output.dtype is None:
                leaves.append(output.value)
                continue
            result, buffer = next(described)
            made = new_tensor(result.layout, buffer)
            inverse = [output.order.index(d) for d in range(len(output.order))]
            leaves.append(made if inverse == sorted(inverse) else made.permute(inverse))
        return pytree.tree_unflatten(leaves, self._binder.out_spec)


def _put(root: nn.Module, name: str, value: torch.Tensor, persistent: bool) -> None:
    """Register a parameter or a buffer under a dotted name."""
    *parts, last = name.split(".")
    owner = root
    for part in parts:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner._modules[part]  # type: ignore[assignment]
    if isinstance(value, nn.Parameter):
        owner.register_parameter(last, value)
    else:
        owner.register_buffer(last, value, persistent)


def _slot(root: nn.Module, name: str, value: torch.Tensor) -> tuple[nn.Module, str, torch.Tensor]:
    path, _, last = name.rpartition(".")
    return root.get_submodule(path), last, value


def build(made: Any, info: Info, layouts: list[Layout], places: list[int], count: int) -> Entry:
    """The entry of a program for arguments that lie as ``layouts`` say on ``count`` storages, at ``places``."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    bases = {place: layout.base for layout, place in zip(layouts, places, strict=True)}
    avals: list[Any] = [jax.ShapeDtypeStruct(bases[p].shape, bases[p].np_dtype) for p in range(count)]
    avals += [jax.ShapeDtypeStruct((4,), np.uint32)] if info.draws else []
    written = sorted({places[k] for k in info.writes})
    dtypes = [container.torch_dtype(o.dtype) for o in info.outputs if o.dtype is not None]
    results: list[Result | None] = []

    def fn(*flat: Any) -> list[Any]:
        arrays = [views.read(flat[p], layout) for p, layout in zip(places, layouts, strict=True)]
        made_now = list(made.call(*arrays, *flat[count:]))
        new, rest = made_now[: len(info.writes)], made_now[len(info.writes) :]
        buffers = {p: flat[p] for p in written}
        for k, value in zip(info.writes, new, strict=True):
            buffers[places[k]] = views.write(buffers[places[k]], layouts[k], jnp.asarray(value))
        shapes = [tuple(a.shape) for a, _ in zip(rest, dtypes, strict=False)]
        results[:] = [Result(buffer_layout(s, d), s, None) for s, d in zip(shapes, dtypes, strict=True)]
        return [*(buffers[p] for p in written), *rest]

    try:
        closed = programs.trace(fn, avals)
    except ValueError as error:  # sizes that do not follow from each other as they have to
        raise ValueError(f"torchtpu: {_renamed(str(error), info)}") from error
    return Entry(made.fun_name, closed, avals, tuple(written), results, None, bool(info.draws), False)


def _renamed(text: str, info: Info) -> str:
    """JAX's words about sizes, with the arguments' names in the place of their numbers."""
    names = [state.names[0] for state in info.state] + [i.name for i in info.inputs if i.dtype is not None]
    return re.sub(r"args\[(\d+)\]", lambda found: names[int(found[1])], text.partition(". Using")[0])
