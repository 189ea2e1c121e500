"""Operators that a pack defines: the torch operator appears at its first use, with shapes and autograd.

Everything is derived from one JAX function, the reference: its shapes by abstract evaluation, its values on
CPU tensors by running it, its gradients by `jax.vjp`. The gradient is an operator of its own
(``ns::name_backward``), so that the device serves it like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from torchtpu.plugins.records import Lowering

Function = Callable[..., Any]
Maybe = Function | None
_lock = threading.RLock()
_defined: dict[str, tuple[str, Any, Any]] = {}  # name → schema, library, overload
ORDER = 2  # derivatives of this order and below have an operator


class NewOp:
    """Calls ``torch.ops.<ns>.<name>``; ``reference`` is the JAX function that defines its values."""

    def __init__(self, schema: str, reference: Function, fake: Maybe = None, gradient: Maybe = None) -> None:
        self.schema = schema
        self.reference = reference
        self._rules = fake, gradient
        self.__doc__ = reference.__doc__
        self.__name__ = getattr(reference, "__name__", schema)
        self._op: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator, which is defined at the first call."""
        if self._op is None:
            self._op = define(self.schema, self.reference, ORDER, *self._rules)
        return self._op(*args, **kwargs)


@dataclass(frozen=True)
class _Signature:
    """What is needed of a schema: argument names, which are tensors and which are keyword-only."""

    names: tuple[str, ...]
    tensors: frozenset[str]
    keyword_only: frozenset[str]
    defaults: dict[str, Any]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, in schema order."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        return {name: given.get(name, self.defaults.get(name)) for name in self.names}

    def call(self, fn: Callable[..., Any], bound: dict[str, Any]) -> Any:
        """``fn`` on the arguments as the schema passes them."""
        positional = [v for n, v in bound.items() if n not in self.keyword_only]
        return fn(*positional, **{n: v for n, v in bound.items() if n in self.keyword_only})


def name_of(schema: str) -> str:
    """``ns::name[.overload]`` of a schema; ValueError for one that cannot be served."""
    name = schema.split("(")[0].strip()
    if name.count("::") != 1 or "(" not in schema or "->" not in schema:
        raise ValueError(f"{schema!r} is not a schema 'ns::name(Tensor x, …) -> Tensor'")
    if "!" in schema or "(a" in schema.split("->")[1]:
        raise ValueError(f"{name}: a new operator must return fresh tensors and write none")
    return name


@cache
def _signature(schema: str) -> _Signature:
    import torch

    arguments = torch._C.parse_schema(schema).arguments
    return _Signature(
        names=tuple(a.name for a in arguments),
        tensors=frozenset(a.name for a in arguments if "Tensor" in str(a.type)),
        keyword_only=frozenset(a.name for a in arguments if a.kwarg_only),
        defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
    )


def check(schema: str) -> None:
    """Raise what is wrong with a schema: torch's parser's error, or `name_of`'s, or that it takes no tensor."""
    if name_of(schema) and not _signature(schema).tensors:
        raise ValueError(f"{name_of(schema)}: a new operator needs a Tensor among its arguments")


def backward_schema(schema: str) -> str:
    """The schema of the operator that gives the gradients of ``schema``'s floating tensors, in order."""
    left = schema.split("->")[0]
    base, _, variant = name_of(schema).partition(".")
    arguments = left[left.index("(") + 1 : left.rindex(")")]
    # each level names its gradients anew, as the arguments of the level below are among its own
    grads = f"grads{left.count('Tensor[] grads') or ''}"
    return f"{base}_backward{variant and '.' + variant}(Tensor[] {grads}, {arguments}) -> Tensor[]"


def derivatives(record: Lowering) -> list[Lowering]:
    """The lowerings of the operators that autograd calls for a new operator."""
    found: list[Lowering] = []
    for _ in range(ORDER if record.gradient is None else 0):
        assert record.schema is not None
        schema = backward_schema(record.schema)
        fn = backward(record.schema, record.fn)
        record = replace(record, op=name_of(schema), schema=schema, fn=fn, sharding=None, fake=None)
        found.append(record)
    return found


def backward(schema: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The JAX function of (gradients of the floating results, arguments…) → gradients."""

    def grads_of(grads: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        import jax
        import jax.numpy as jnp
        import numpy as np

        signature = _signature(schema)
        bound = signature.bind(args, kwargs)
        names = [n for n in signature.names if n in signature.tensors]
        flat, tree = jax.tree.flatten([bound[n] for n in names])
        where = [i for i, v in enumerate(flat) if jnp.issubdtype(v.dtype, jnp.inexact)]

        def call(*chosen: Any) -> list[Any]:
            full = list(flat)
            for i, value in zip(where, chosen, strict=True):
                full[i] = value
            tensors = dict(zip(names, jax.tree.unflatten(tree, full), strict=True))
            return jax.tree.leaves(signature.call(reference, {**bound, **tensors}))

        outputs, pull = jax.vjp(call, *[flat[i] for i in where])
        rest = iter(grads)
        inexact = [jnp.issubdtype(o.dtype, jnp.inexact) for o in outputs]
        return list(
            pull(
                [
                    next(rest).astype(o.dtype) if real else np.zeros(o.shape, jax.dtypes.float0)
                    for o, real in zip(outputs, inexact, strict=True)
                ]
            )
        )

    grads_of.__doc__ = f"The gradients of {name_of(schema)}."
    return grads_of


def define(
    schema: str, reference: Function, order: int = ORDER, fake: Maybe = None, gradient: Maybe = None
) -> Any:
    """The torch operator of ``schema``; makes it, and its derivatives up to ``order``, if it is new.

    Raises ValueError when the name is taken by another schema, or no argument is a tensor.
    """
    import torch

    name = name_of(schema)
    with _lock:
        if name in _defined:
            if _defined[name][0] != schema:
                raise ValueError(f"{name} is defined already, with the schema {_defined[name][0]}")
            return _defined[name][2]
        check(schema)
        namespace, rest = name.split("::")
        base, _, variant = rest.partition(".")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(schema.strip().removeprefix(f"{namespace}::"))
        library.impl(rest, _on_cpu(reference), "CPU")
        torch.library.register_fake(name, fake or _shapes(reference), lib=library)
        pull = _autograd(schema, reference, order) if gradient is None else _given(schema, gradient)
        setup = _setup(schema, outputs=gradient is not None)
        torch.library.register_autograd(name, pull, setup_context=setup, lib=library)
        op = getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")
        _defined[name] = schema, library, op
        return op


def _setup(schema: str, outputs: bool) -> Callable[..., None]:
    """Keep the inputs, and the outputs if told so, for the backward, the tensors by torch's own means."""

    def keep(ctx: Any, bound: dict[str, Any], output: Any) -> None:
        import torch
        from torch.utils._pytree import tree_flatten

        ctx.set_materialize_grads(not outputs)
        leaves, ctx.tree = tree_flatten((bound, output if outputs else None))
        ctx.fixed = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        ctx.which = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
        ctx.save_for_backward(*[leaves[i] for i in ctx.which])

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, _signature(schema).bind(inputs, {}), output)

    def setup_named(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
        keep(ctx, _signature(schema).bind(inputs, keyword_only_inputs), output)

    return setup_named if "*" in schema else setup


def _kept(ctx: Any) -> Any:
    """The arguments by name, and the outputs where they were kept."""
    from torch.utils._pytree import tree_unflatten

    leaves = list(ctx.fixed)
    for i, tensor in zip(ctx.which, ctx.saved_tensors, strict=True):
        leaves[i] = tensor
    return tree_unflatten(leaves, ctx.tree)


def _given(schema: str, gradient: Function) -> Function:
    """The backward that torch calls: the pack's own rule, in the form that torch wants."""

    def pull(ctx: Any, *grads: Any) -> Any:
        signature, (bound, outputs) = _signature(schema), _kept(ctx)
        names = [n for n in signature.names if n not in signature.keyword_only]
        needed = frozenset(n for n, needs in zip(names, ctx.needs_input_grad, strict=False) if needs)
        found = signature.call(partial(gradient, grads, outputs, needed), bound)
        back = [found.get(n) if n in needed else None for n in names]
        return tuple(back) if len(back) > 1 else back[0]

    return pull


def _autograd(schema: str, reference: Callable[..., Any], order: int) -> Callable[..., Any]:
    """The backward that torch calls: one call of the derivative's operator."""

    def pull(ctx: Any, *grads: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_map

        if order == 0:
            raise NotImplementedError(f"torchtpu: {name_of(schema)} has no derivative")
        signature, (bound, _) = _signature(schema), _kept(ctx)
        op = define(backward_schema(schema), backward(schema, reference), order - 1)
        given = [g for g in tree_flatten(grads)[0] if isinstance(g, torch.Tensor)]
        found = iter(signature.call(lambda *a, **k: op(given, *a, **k), bound))

        def grad(value: Any) -> Any:
            inexact = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
            return next(found).to(value.device) if inexact else None

        back = [
            tree_map(grad, v) if n in signature.tensors else None
            for n, v in bound.items()
            if n not in signature.keyword_only
        ]
        return tuple(back) if len(back) > 1 else back[0]

    return pull


def _mapped(reference: Callable[..., Any], args: Any, kwargs: Any, tensor: Callable[[Any], Any]) -> Any:
    """``reference`` on arguments whose tensors became what ``tensor`` makes of them, and dtypes JAX's."""
    import jax.numpy as jnp
    import torch
    from torch.utils._pytree import tree_map

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        return jnp.dtype(str(value)[6:]) if isinstance(value, torch.dtype) else value

    args, kwargs = tree_map(change, (args, kwargs))
    return reference(*args, **kwargs)


def _dtype(tensor: Any) -> Any:
    import jax.numpy as jnp

    return jnp.dtype(str(tensor.dtype)[6:])  # torch and NumPy use the same names


def _shapes(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Shapes and dtypes, as tensors without data on the arguments' device."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        import jax
        import torch
        from torch.utils._pytree import tree_leaves

        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        avals = [jax.ShapeDtypeStruct(tuple(map(int, v.shape)), _dtype(v)) for v in given]

        def call(*arrays: Any) -> Any:
            rest = iter(arrays)
            return _mapped(reference, args, kwargs, lambda _: next(rest))

        with jax.enable_x64(True):
            out = jax.eval_shape(call, *avals)
        device = next((v.device for v in given if v.dim()), given[0].device if given else None)
        return jax.tree.map(
            lambda o: torch.empty(o.shape, dtype=getattr(torch, o.dtype.name), device=device), out
        )

    return fake


def _on_cpu(reference: Callable[..., Any]) -> Callable[..., Any]:
    """CPU tensors run through the reference, on JAX's CPU client where there is one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        import jax
        import torch

        torch.empty(0, device="tpu")  # starts JAX as the device wants it
        with jax.enable_x64(True), jax.default_device(_host()):
            out = _mapped(reference, args, kwargs, to_array)
            return jax.tree.map(to_tensor, out)

    return run


@cache
def _host() -> Any:
    import jax

    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names the accelerator only
        return None


def to_array(tensor: Any) -> Any:
    """A JAX array, on the default device, with a tensor's values."""
    import jax.numpy as jnp
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy()  # bytes, as NumPy lacks bfloat16
    return jnp.asarray(raw.view(_dtype(tensor)).reshape(tuple(tensor.shape)))


def to_tensor(array: Any) -> Any:
    """A CPU tensor with an array's values."""
    import numpy as np
    import torch

    host = np.array(array)
    flat = torch.from_numpy(host.reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, array.dtype.name)).reshape(host.shape)
