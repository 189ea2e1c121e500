"""JAX arrays and tpu tensors, both ways, without a copy; JAX functions on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchtpu.tensors.dtypes import to_torch
from torchtpu.tensors.layout import buffer_layout
from torchtpu.tensors.storage import layout_of, materialize, new_tensor

_WIDE = frozenset(("int64", "uint64", "float64", "complex128"))


def to_jax(tensor: torch.Tensor) -> Any:
    """The JAX array of a tpu tensor; shares memory when it is contiguous, and never changes later."""
    if tensor.device.type != "tpu":
        raise ValueError(f"to_jax needs a tpu tensor, got one on {tensor.device}")
    tensor = tensor.detach()
    if not layout_of(tensor).canonical:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storage = tensor.untyped_storage()
    array = materialize(storage)
    storage.shared = True  # type: ignore[attr-defined]
    return array


def from_jax(array: Any) -> torch.Tensor:
    """A tpu tensor over a JAX array; writing to the tensor leaves the array as it is."""
    tensor = new_tensor(buffer_layout(tuple(array.shape), to_torch(array.dtype)), array)
    tensor.untyped_storage().shared = True  # type: ignore[attr-defined]
    return tensor


def call_jax(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function on tpu tensors; autograd goes through it by `jax.vjp`, to any order.

    ``args`` and ``kwargs`` may be nested in lists, tuples and dicts; what is no tensor is handed on as it is. The
    result has the structure that ``fn`` gives, with tpu tensors for arrays. ``fn`` runs as JAX runs it: operation by
    operation unless it is `jax.jit`-ed, and with JAX's 32-bit types unless an argument has 64 bits. Nothing is
    copied. For an operator that works in graphs too, see ``torch.tpu.pallas.jax_op``.

    Raises ValueError for tensors of other devices, and what ``fn`` raises.
    """
    leaves, tree = tree_flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    call = _Call(fn, [None if i in where else leaf for i, leaf in enumerate(leaves)], tree, where)
    results = _Bridge.apply(call, *[leaves[i] for i in where])
    return call.structure.unflatten(results)


class _Call:
    """``fn`` as a function of a flat list of arrays to a flat list of arrays."""

    def __init__(self, fn: Callable[..., Any], fixed: list[Any], tree: Any, where: list[int]) -> None:
        self.fn, self.fixed, self.tree, self.where = fn, fixed, tree, where
        self.structure: Any = None

    def __call__(self, *arrays: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        leaves = list(self.fixed)
        for i, array in zip(self.where, arrays, strict=True):
            leaves[i] = array
        args, kwargs = tree_unflatten(leaves, self.tree)
        found, self.structure = jax.tree.flatten(self.fn(*args, **kwargs))
        return [jnp.asarray(leaf) for leaf in found]

    def moving(self, arrays: Sequence[Any], which: Sequence[int]) -> Callable[..., list[Any]]:
        """The call as a function of the arrays at ``which`` alone."""

        def run(*chosen: Any) -> list[Any]:
            full = list(arrays)
            for i, array in zip(which, chosen, strict=True):
                full[i] = array
            return self(*full)

        return run


def _inexact(array: Any) -> bool:
    return bool(array.dtype.kind in "fcV")


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import jax

        arrays = [to_jax(t) for t in tensors]
        real = [i for i, a in enumerate(arrays) if _inexact(a) and ctx.needs_input_grad[i + 1]]

        ctx.wide = any(a.dtype.name in _WIDE for a in arrays)
        with _types(ctx.wide):
            if real:
                found, ctx.pull = jax.vjp(call.moving(arrays, real), *[arrays[i] for i in real])
            else:
                found = call(*arrays)
        ctx.call, ctx.real, ctx.avals = call, real, [(a.shape, a.dtype) for a in found]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        results = tuple(from_jax(a) for a in found)
        ctx.mark_non_differentiable(*[r for r, a in zip(results, found, strict=True) if not _inexact(a)])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        given = [g for g in grads if g is not None]
        present = [g is not None for g in grads]

        def cotangents(arrays: Sequence[Any]) -> list[Any]:
            rest = iter(arrays)
            return [
                next(rest) if here else _zero(*aval) for here, aval in zip(present, ctx.avals, strict=True)
            ]

        if torch.is_grad_enabled():  # create_graph: the gradient is a function of the inputs too

            def again(given: list[Any], arrays: list[Any]) -> Any:
                import jax

                pull = jax.vjp(ctx.call.moving(arrays, ctx.real), *[arrays[i] for i in ctx.real])[1]
                return list(pull(cotangents(given)))

            found = call_jax(again, given, list(tensors))
        else:
            arrays = [to_jax(g) for g in given]
            with _types(ctx.wide):
                found = [from_jax(a) for a in ctx.pull(cotangents(arrays))]
        by_place = dict(zip(ctx.real, found, strict=True))
        return None, *[by_place.get(i) for i in range(len(tensors))]


def _zero(shape: tuple[int, ...], dtype: Any) -> Any:
    """The gradient of a result that has none."""
    import jax
    import numpy as np

    return np.zeros(shape, dtype if dtype.kind in "fcV" else jax.dtypes.float0)


def _types(wide: bool) -> Any:
    """64-bit types where an argument has them; else JAX's own setting."""
    import jax

    return jax.enable_x64(True) if wide else nullcontext()
