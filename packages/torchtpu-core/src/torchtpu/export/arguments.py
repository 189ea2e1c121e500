"""Checks the arguments of a call against those that a program was exported with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu.export.container import ExportError, Info, Input, torch_dtype


class Binder:
    """Turns the arguments of a call into the tensors that the program takes."""

    def __init__(self, info: Info) -> None:
        self._info = info
        in_spec, self.out_spec = _spec(info.in_spec), _spec(info.out_spec)
        args, kwargs = pytree.tree_unflatten(list(info.inputs), in_spec)
        self._wanted = {**dict(zip(info.positional, args, strict=True)), **kwargs}
        self._leaves = {name: pytree.tree_flatten(value) for name, value in self._wanted.items()}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors; raises TypeError or ValueError that names the argument."""
        given = self._named(args, kwargs)
        found: list[torch.Tensor] = []
        sizes: dict[str, int] = {}
        for name, (wanted, spec) in self._leaves.items():
            leaves, shape = pytree.tree_flatten(given[name])
            if shape != spec:
                raise TypeError(f"torchtpu: argument {name} is {shape}, the program takes {spec}")
            for want, value in zip(wanted, leaves, strict=True):
                if want.dtype is None:
                    _check_value(want, value)
                else:
                    found.append(self._tensor(want, value, sizes))
        return found

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = [*self._info.positional, *self._info.keywords]
        if len(args) > len(names):
            raise TypeError(
                f"torchtpu: {len(args)} arguments, the program takes {len(names)}: {', '.join(names)}"
            )
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"torchtpu: argument {name} is given twice")
            if name not in names:
                raise TypeError(f"torchtpu: unknown argument {name}, the program takes {', '.join(names)}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(f"torchtpu: missing argument {', '.join(missing)}")
        return given

    def _tensor(self, want: Input, value: Any, sizes: dict[str, int]) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"torchtpu: argument {want} is a tensor, not {type(value).__name__}")
        if value.dtype != torch_dtype(str(want.dtype)):
            raise TypeError(
                f"torchtpu: argument {want} does not take {str(value.dtype).removeprefix('torch.')}"
            )
        if value.device.type not in ("cpu", "tpu"):
            raise TypeError(f"torchtpu: argument {want} is on {value.device}; give it on tpu or cpu")
        fits = value.dim() == len(want.shape)
        if not fits or not all(
            self._size(want, known, n, sizes) for known, n in zip(want.shape, value.shape, strict=True)
        ):
            raise ValueError(f"torchtpu: argument {want} does not take shape {list(value.shape)}")
        return value

    def _size(self, want: Input, known: int | str, size: int, sizes: dict[str, int]) -> bool:
        if isinstance(known, int):
            return known == size
        least, most = self._info.dimensions[known]
        if size < least or (most is not None and size > most):
            limits = f"at least {least}" if most is None else f"{least} to {most}"
            raise ValueError(f"torchtpu: argument {want}: {known} is {size}, the program takes {limits}")
        if sizes.setdefault(known, size) != size:
            raise ValueError(f"torchtpu: argument {want}: {known} is {size} here and {sizes[known]} before")
        return True


def _check_value(want: Input, value: Any) -> None:
    if isinstance(value, torch.Tensor) or type(value) is not type(want.value) or value != want.value:
        raise ValueError(
            f"torchtpu: argument {want.name} was exported as {want.value!r} and is fixed, not {value!r}"
        )


def _spec(text: str) -> Any:
    try:
        return pytree.treespec_loads(text)
    except Exception as error:  # a class that this process has not registered
        raise ExportError(
            f"torchtpu: the program's arguments or results are of a class that is unknown here: {error}; "
            "import what registers it with torch.utils._pytree before loading"
        ) from error
