"""The gradients of a new operator as JAX functions, which become operators of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtpu.plugins.opschema import name_of, signature


def vjp(schema: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The JAX function of (gradients of the floating results, arguments…) → gradients, by `jax.vjp`."""

    def grads_of(grads: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        import jax
        import numpy as np

        given = signature(schema)
        bound = given.bind(args, kwargs)
        names = [n for n in given.names if n in given.tensors]
        flat, tree = jax.tree.flatten([bound[n] for n in names])
        where = [i for i, v in enumerate(flat) if _inexact(v)]

        def call(*chosen: Any) -> list[Any]:
            full = list(flat)
            for i, value in zip(where, chosen, strict=True):
                full[i] = value
            tensors = dict(zip(names, jax.tree.unflatten(tree, full), strict=True))
            return jax.tree.leaves(given.call(reference, {**bound, **tensors}))

        outputs, pull = jax.vjp(call, *[flat[i] for i in where])
        rest = iter(grads)
        return list(
            pull(
                [
                    next(rest).astype(o.dtype) if _inexact(o) else np.zeros(o.shape, jax.dtypes.float0)
                    for o in outputs
                ]
            )
        )

    grads_of.__doc__ = f"The gradients of {name_of(schema)}."
    return grads_of


def given(schema: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    """The JAX function of (gradients, results, arguments…) → gradients, by a pack's ``backward``.

    ``backward`` gets one array, or a tuple of them, as the operator returns; None stands for the gradient
    of whole numbers. It returns a gradient for each floating tensor in order, None where it is zero.
    """

    def grads_of(grads: Sequence[Any], outputs: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp

        rest = iter(grads)
        shown = [next(rest) if _inexact(o) else None for o in outputs]
        first = [v[0] if len(outputs) == 1 else tuple(v) for v in (shown, outputs)]
        bound = signature(schema).bind(args, kwargs)
        found = signature(schema).call(lambda *a, **k: backward(*first, *a, **k), bound)
        found = list(found) if isinstance(found, list | tuple) else [found]
        tensors = jax.tree.leaves([v for n, v in bound.items() if n in signature(schema).tensors])
        wanted = [t for t in tensors if _inexact(t)]
        if len(found) != len(wanted):
            raise ValueError(
                f"{name_of(schema)}: its backward gave {len(found)} gradients for {len(wanted)} floating tensors"
            )
        return [
            _fitting(schema, jnp.zeros_like(w) if f is None else f, w)
            for f, w in zip(found, wanted, strict=True)
        ]

    grads_of.__doc__ = f"The gradients of {name_of(schema)}."
    return grads_of


def _fitting(schema: str, grad: Any, tensor: Any) -> Any:
    """A gradient in its tensor's dtype; ValueError if the shapes differ."""
    if grad.shape != tensor.shape:
        raise ValueError(
            f"{name_of(schema)}: its backward gave a gradient of shape {grad.shape} for {tensor.shape}"
        )
    return grad.astype(tensor.dtype)


def _inexact(array: Any) -> bool:
    import jax.numpy as jnp

    return bool(jnp.issubdtype(array.dtype, jnp.inexact))
