"""Operators that a pack defines: the torch operator appears at its first use, with shapes and autograd.

Everything is derived from one JAX function, the reference: its shapes by abstract evaluation, its values on
CPU tensors by running it, its gradients by `jax.vjp`. The gradient is an operator of its own
(``ns::name_backward``), so that the device serves it like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from torchtpu.plugins import opgrad
from torchtpu.plugins.opschema import backward_schema, check, name_of, signature
from torchtpu.plugins.opvalues import on_cpu, shapes
from torchtpu.plugins.records import Lowering

_lock = threading.RLock()
_defined: dict[str, _Defined] = {}
ORDER = 2  # derivatives of this order and below have an operator
Backward = Literal["vjp"] | Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A new operator: its schema and ``fn``, the JAX function of its arguments in the schema's order.

    ``backward`` is ``"vjp"``, None for no gradient, or a JAX function of (gradients, results, arguments…).
    ``static`` names numbers that must be Python values. ``around`` is applied to ``fn`` and to each derivative
    after it was made: what all of them are traced in. ``host`` says whether CPU tensors are served. ``fake``
    and ``gradient`` are torch functions in place of what is derived, see `Pack.op`.
    """

    schema: str
    fn: Callable[..., Any]
    backward: Backward = "vjp"
    static: tuple[str, ...] = ()
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    host: bool = True
    order: int = ORDER
    fake: Callable[..., Any] | None = None
    gradient: Callable[..., Any] | None = None

    @classmethod
    def of(cls, record: Lowering) -> Definition:
        """That of a pack's record, which has a schema."""
        assert record.schema is not None
        return cls(
            schema=record.schema, fn=record.fn, backward=record.backward, static=record.static,
            fake=record.fake, gradient=record.gradient,
        )  # fmt: skip

    @cached_property
    def name(self) -> str:
        """``ns::name[.overload]``."""
        return name_of(self.schema)

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """The function that defines values and shapes."""
        return self.fn if self.around is None else self.around(self.fn)

    @cached_property
    def derivative(self) -> Definition | None:
        """The operator that autograd calls, if there is one."""
        if self.backward is None or self.order == 0 or self.gradient is not None:
            return None
        if self.backward == "vjp":
            fn, order = opgrad.vjp(self.schema, self.fn), self.order - 1
        else:
            fn, order = opgrad.given(self.schema, self.backward), 0
        return Definition(
            schema=backward_schema(self.schema, outputs=self.backward != "vjp"),
            fn=fn, static=self.static, around=self.around, host=self.host, order=order,
        )  # fmt: skip

    def lowerings(self) -> list[Lowering]:
        """The records that serve the operator and its derivatives."""
        own = Lowering(op=self.name, fn=self.reference, schema=self.schema, static=self.static)
        return [own, *(self.derivative.lowerings() if self.derivative is not None else ())]


@dataclass
class _Defined:
    """An operator that torch knows; ``autograd`` is the user's own (backward, setup_context)."""

    definition: Definition
    library: Any
    op: Any
    autograd: tuple[Callable[..., Any], Callable[..., Any] | None] | None = None


class NewOp:
    """Calls ``torch.ops.<ns>.<name>``; ``reference`` is the JAX function that defines its values."""

    def __init__(self, definition: Definition, op: Any = None) -> None:
        self.definition = definition
        self.schema = definition.schema
        self.reference = definition.fn
        self.__doc__ = self.reference.__doc__
        self.__name__ = getattr(self.reference, "__name__", self.schema)
        self._op = op  # torch.compile sees through a call only once it is here

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator, which is defined at the first call."""
        if self._op is None:
            self._op = define(self.definition)
        return self._op(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.schema}>"

    @property
    def overload(self) -> Any:
        """The operator as torch knows it, ``torch.ops.<ns>.<name>.default``; defined now if it was not."""
        self._op = self._op or define(self.definition)
        return self._op

    def register_fake(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Take ``fn``, on tensors without data, in place of the derived shapes; as torch's custom operators do."""
        import torch

        name = self.overload and self.definition.name
        torch.library.register_fake(name, fn, lib=_defined[name].library, allow_override=True)
        return fn

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Take ``backward(ctx, *grads)``, on torch tensors, in place of the derived gradient.

        ``setup_context(ctx, inputs, output)`` is called after the operator, as by `torch.library`.
        """
        name = self.overload and self.definition.name
        _defined[name].autograd = backward, setup_context


def derivatives(record: Lowering) -> list[Lowering]:
    """The lowerings of the operators that autograd calls for a new operator."""
    found = Definition.of(record).lowerings()[1:]
    return [replace(d, origin=record.origin, replaces=record.replaces) for d in found]


def taken(name: str) -> bool:
    """Whether torch has an operator ``ns::name`` already."""
    import torch

    return bool(torch._C._jit_get_schemas_for_operator(name.partition(".")[0]))


def define(definition: Definition) -> Any:
    """The torch operator of ``definition``; made if it is new.

    Raises ValueError when the name is taken by another schema, or no argument is a tensor.
    """
    import torch

    name, schema = definition.name, definition.schema
    with _lock:
        if name in _defined:
            known = _defined[name].definition.schema
            if known != schema:
                raise ValueError(f"{name} is defined already, with the schema {known}")
            return _defined[name].op
        check(schema)
        namespace, rest = name.split("::")
        base, _, variant = rest.partition(".")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(schema.strip().removeprefix(f"{namespace}::"))
        library.impl(rest, on_cpu(definition.reference) if definition.host else _refusing(name), "CPU")
        torch.library.register_fake(name, definition.fake or shapes(definition.reference), lib=library)
        pull = _autograd(definition) if definition.gradient is None else _given(definition)
        torch.library.register_autograd(name, pull, setup_context=_setup(definition), lib=library)
        op = getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")
        _defined[name] = _Defined(definition, library, op)
        return op


def define_all(definition: Definition) -> Any:
    """`define` with the derivatives: a graph that is being traced may need them."""
    op = define(definition)
    if definition.derivative is not None:
        define_all(definition.derivative)
    return op


def _refusing(name: str) -> Callable[..., Any]:
    """The kernel for CPU tensors of an operator that has none."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torchtpu: {name} runs on device 'tpu' and its arguments are on the CPU; move them with .to('tpu')"
        )

    return refuse


def _setup(definition: Definition) -> Callable[..., None]:
    """Keep what the backward reads, the tensors by torch's own means."""
    given = signature(definition.schema)
    with_outputs = callable(definition.backward) or definition.gradient is not None

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any, **named: Any) -> None:
        import torch
        from torch.utils._pytree import tree_flatten

        own = _defined[definition.name].autograd
        if own is not None:
            if own[1] is not None:
                own[1](ctx, inputs=inputs, output=output, **named)
            return
        ctx.set_materialize_grads(definition.gradient is None)
        bound = given.bind(inputs, named.get("keyword_only_inputs", {}))
        leaves, ctx.tree = tree_flatten((bound, tree_flatten(output)[0] if with_outputs else None))
        ctx.fixed = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        ctx.which = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
        ctx.save_for_backward(*[leaves[i] for i in ctx.which])

    def setup_named(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
        setup(ctx, inputs, output, keyword_only_inputs=keyword_only_inputs)

    def setup_plain(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup(ctx, inputs, output)

    return setup_named if given.keyword_only else setup_plain


def _kept(ctx: Any) -> Any:
    """The arguments by name, and the list of results where they were kept."""
    from torch.utils._pytree import tree_unflatten

    leaves = list(ctx.fixed)
    for i, tensor in zip(ctx.which, ctx.saved_tensors, strict=True):
        leaves[i] = tensor
    return tree_unflatten(leaves, ctx.tree)


def _given(definition: Definition) -> Callable[..., Any]:
    """The backward that torch calls: the pack's torch function, in the form that torch wants."""
    given, gradient = signature(definition.schema), definition.gradient
    assert gradient is not None

    def pull(ctx: Any, *grads: Any) -> Any:
        own = _defined[definition.name].autograd
        if own is not None:
            return own[0](ctx, *grads)
        bound, outputs = _kept(ctx)
        # torch leaves out what has its default
        names = [n for n in given.names if n not in given.keyword_only][: len(ctx.needs_input_grad)]
        needed = frozenset(n for n, needs in zip(names, ctx.needs_input_grad, strict=True) if _any(needs))
        found = given.call(partial(gradient, grads, outputs, needed), bound)
        back = [found.get(n) if n in needed else None for n in names]
        return tuple(back) if len(back) > 1 else back[0]

    return pull


def _any(needs: Any) -> bool:
    """Whether an argument, or any tensor of a list, wants a gradient."""
    return any(needs) if isinstance(needs, list | tuple) else bool(needs)


def _autograd(definition: Definition) -> Callable[..., Any]:
    """The backward that torch calls: one call of the derivative's operator."""
    given = signature(definition.schema)

    def pull(ctx: Any, *grads: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_map

        own = _defined[definition.name].autograd
        if own is not None:
            return own[0](ctx, *grads)
        if definition.derivative is None:
            why = ": it was defined with backward=None" if definition.backward is None else ""
            raise NotImplementedError(f"torchtpu: {definition.name} has no derivative{why}")
        bound, outputs = _kept(ctx)
        first = [[g for g in tree_flatten(grads)[0] if isinstance(g, torch.Tensor)]]
        first += [outputs] if outputs is not None else []
        op = define(definition.derivative)
        found = iter(given.call(lambda *a, **k: op(*first, *a, **k), bound))

        def grad(value: Any) -> Any:
            inexact = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
            return next(found).to(value.device) if inexact else None

        back = [
            tree_map(grad, v) if n in given.tensors else None
            for n, v in bound.items()
            if n not in given.keyword_only
        ]
        count = len(ctx.needs_input_grad)  # torch leaves out what has its default
        return tuple(back[:count]) if count > 1 else back[0]

    return pull
