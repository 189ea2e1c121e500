"""Operators that a pack defines: the torch operator appears at its first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()
_libraries: dict[str, Any] = {}


class NewOp:
    """Calls ``torch.ops.<ns>.<name>``; ``reference`` is the JAX function that defines its values."""

    def __init__(self, schema: str, reference: Callable[..., Any]) -> None:
        self.schema = schema
        self.reference = reference
        self.__doc__ = reference.__doc__
        self._op: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator, which is defined at the first call."""
        if self._op is None:
            self._op = define(self.schema, self.reference)
        return self._op(*args, **kwargs)


def define(schema: str, reference: Callable[..., Any]) -> Any:
    """The torch operator of ``schema``; defines it, with shapes and dtypes derived by tracing, if it is new."""
    import torch

    name = schema.split("(")[0].strip()
    namespace, base = name.split("::")
    with _lock:
        if name not in _libraries:
            library = torch.library.Library(namespace, "FRAGMENT")
            library.define(schema.removeprefix(f"{namespace}::"))
            library.impl(base, _shapes(reference), "Meta")
            library.impl(base, _on_cpu(reference), "CPU")
            _libraries[name] = library
    return getattr(getattr(torch.ops, namespace), base)


def _shapes(reference: Callable[..., Any]) -> Callable[..., Any]:
    def fake(*args: Any, **kwargs: Any) -> Any:
        import jax
        import torch

        from torchtpu.tensors.dtypes import to_numpy, to_torch

        def aval(value: Any) -> Any:
            return jax.ShapeDtypeStruct(tuple(value.shape), to_numpy(value.dtype))

        arrays = [aval(a) for a in args if isinstance(a, torch.Tensor)]

        def call(*traced: Any) -> Any:
            rest = iter(traced)
            return reference(*[next(rest) if isinstance(a, torch.Tensor) else a for a in args], **kwargs)

        with jax.enable_x64(True):
            out = jax.eval_shape(call, *arrays)
        return jax.tree.map(lambda o: torch.empty(o.shape, dtype=to_torch(o.dtype), device="meta"), out)

    return fake


def _on_cpu(reference: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_map

        moved = tree_map(lambda v: v.to("tpu") if isinstance(v, torch.Tensor) else v, (args, kwargs))
        import jax

        from torchtpu.interop import from_jax, to_jax

        arrays = tree_map(lambda v: to_jax(v) if isinstance(v, torch.Tensor) else v, moved)
        with jax.enable_x64(True):
            out = reference(*arrays[0], **arrays[1])
        return jax.tree.map(lambda o: from_jax(o).cpu(), out)

    return run
