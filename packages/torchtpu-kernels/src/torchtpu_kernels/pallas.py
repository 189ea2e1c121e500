"""``torch.tpu.pallas``: JAX functions, with Pallas kernels in them or without, as PyTorch operators.

A kernel that was written for a TPU is interpreted where there is none, so the same program runs on a laptop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import torch.distributed as dist

from torchtpu.plugins import CallSpec, Definition, Kernel, NewOp, Origin, add_operator
from torchtpu_kernels.signature import Operator, operator

__all__ = ["get_pallas_mesh", "jax_op"]

_WIDE = frozenset(("int64", "uint64", "float64", "complex128"))


def jax_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    donate_argnums: int | Sequence[int] | None = None,
    mesh: Any = None,
    input_partition_specs: Sequence[Any] | None = None,
    output_partition_specs: Sequence[Any] | None = None,
    static_argnames: Collection[str] | None = None,
    backward: Literal["vjp"] | Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Any:
    """Make a JAX function the torch operator ``torch.ops.<namespace>.<op>`` of ``name`` ``"namespace::op"``.

    The schema follows from the annotations: `jax.Array` or `torch.Tensor`, numbers, str, lists and tuples of
    them, Optional; several results need one (``-> tuple[jax.Array, jax.Array]``). Shapes and dtypes of
    results follow from `jax.eval_shape`. Without ``fn`` it is a decorator. Gives back the operator.

    ``static_argnames``: by default every number is a Python value in ``fn``, and another value is another
    program; with this, only those named, and floats that are not arrive as arrays of shape ``()``.
    ``backward``: None; ``"vjp"`` for `jax.vjp` of ``reference``, or of ``fn``; or a JAX function of
    (gradients, results, arguments…), the first two an array or a tuple as ``fn`` returns, that gives the
    gradients of the floating tensors in order.
    ``reference``: a JAX function that serves where ``fn``, which is for TPUs, cannot; without it ``fn`` does.
    ``donate_argnums``: arguments that the caller will not read again. It is checked and promises nothing: the
    tensors stay valid, and compiled programs reuse what memory they can.
    ``mesh``: of one device, as a process has one; ``input_partition_specs`` say how arguments lie on it.

    Raises ValueError for a name that is taken or not of that form, TypeError for a function that has no schema,
    NotImplementedError for a mesh of more devices. A call raises TypeError if ``fn`` returns anything but what
    it was annotated with, and NotImplementedError for CPU tensors.
    """
    placed = _Placed(mesh, input_partition_specs, output_partition_specs)

    def define(decorated: Callable[..., Any]) -> NewOp:
        return _defined(name, decorated, donate_argnums, placed, static_argnames, backward, reference)

    return define if fn is None else define(fn)


def get_pallas_mesh(axis_names: Sequence[str], mesh_shape: Sequence[int] | None = None) -> Any:
    """A `jax.sharding.AbstractMesh` of the process's one device, for `jax_op` and `jax.shard_map`.

    Raises NotImplementedError where ``mesh_shape``, by default all ones, asks for more devices, and among the
    ranks of a process group, over which the mesh would go.
    """
    if dist.is_available() and dist.is_initialized():
        _one_device("get_pallas_mesh", dist.get_world_size())
    shape = tuple(mesh_shape) if mesh_shape is not None else (1,) * len(tuple(axis_names))
    if len(shape) != len(tuple(axis_names)):
        raise ValueError(f"mesh_shape {shape} has not one size for each of the axes {tuple(axis_names)}")
    _one_device("get_pallas_mesh", math.prod(shape))
    auto = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.sharding.AbstractMesh(shape, tuple(axis_names), axis_types=auto)


def _defined(
    name: str,
    fn: Callable[..., Any],
    donated: int | Sequence[int] | None,
    placed: _Placed,
    static_argnames: Collection[str] | None,
    backward: Any,
    reference: Callable[..., Any] | None,
) -> NewOp:
    if not (backward is None or backward == "vjp" or callable(backward)):
        raise ValueError(f'{name}: backward is None, "vjp" or a function, not {backward!r}')
    spec = operator(name, fn, static_argnames)
    _check_donated(name, spec, donated)
    placed.check(name, spec)
    fn = placed.around(fn, spec)
    kernels = () if reference is None else (_kernel(name, _called(name, fn, spec)),)
    definition = Definition(
        schema=spec.schema,
        fn=_called(name, fn if reference is None else reference, spec),
        backward=_named(backward, spec) if callable(backward) else backward,
        static=spec.static,
        around=_scoped,
        host=False,
    )
    return add_operator(definition, kernels)


@dataclass(frozen=True)
class _Placed:
    """A mesh of one device, and how arguments and results lie on it."""

    mesh: Any
    inputs: Sequence[Any] | None
    outputs: Sequence[Any] | None

    def check(self, name: str, spec: Operator) -> None:
        """Raise for a mesh that is no mesh of ours, or for more specs than there are tensors."""
        if self.mesh is not None:
            _one_device(name, self.mesh.size)
        elif self.inputs is not None or self.outputs is not None:
            raise ValueError(f"{name}: partition specs need a mesh")
        if len(self.inputs or ()) > len(spec.names):
            raise ValueError(f"{name}: {len(self.inputs or ())} input specs, {len(spec.names)} arguments")

    def around(self, fn: Callable[..., Any], spec: Operator) -> Callable[..., Any]:
        """``fn`` with arguments that bear their specs, where the mesh's axes are explicit in JAX's types."""
        explicit = self.mesh is not None and jax.sharding.AxisType.Explicit in self.mesh.axis_types
        if not explicit or not self.inputs:
            return fn
        specs = dict(zip(spec.names, self.inputs, strict=False))

        def run(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(spec.names, args, strict=False)), **kwargs}
            for name, value in given.items():
                if specs.get(name) is not None and isinstance(value, jax.Array):
                    where = jax.sharding.NamedSharding(self.mesh, specs[name])
                    given[name] = jax.sharding.reshard(value, where)
            return spec.call(fn, list(given.values())[: len(args)], {n: given[n] for n in kwargs})

        return functools.wraps(fn)(run) if hasattr(fn, "__name__") else run


def _check_donated(name: str, spec: Operator, donated: int | Sequence[int] | None) -> None:
    for index in [donated] if isinstance(donated, int) else donated or ():
        if not 0 <= index < len(spec.names):
            raise ValueError(f"{name}: donate_argnums has {index}, of {len(spec.names)} arguments")


def _one_device(name: str, devices: int) -> None:
    if devices != 1:
        raise NotImplementedError(
            f"torchtpu: {name}: a mesh of {devices} devices, but a program runs on the process's one device"
        )


def _kernel(name: str, fn: Callable[..., Any]) -> Kernel:
    def unsuitable(call: CallSpec) -> str | None:
        return None

    return Kernel(
        op=name, name=name.partition("::")[2], fn=fn, unsuitable=unsuitable,
        origin=Origin(distribution="", version="", pack=name.partition("::")[0]),
    )  # fmt: skip


def _called(name: str, fn: Callable[..., Any], spec: Operator) -> Callable[..., Any]:
    """``fn`` on the schema's arguments, with its results as the schema has them."""

    def run(*args: Any, **kwargs: Any) -> Any:
        found = spec.call(fn, args, kwargs)
        arrays = list(found) if isinstance(found, list | tuple) else [found]
        many = spec.results is None and isinstance(found, list | tuple)
        if not (many or len(arrays) == spec.results) or not all(map(_is_array, arrays)):
            raise TypeError(
                f"{name}: its function returned {_shown(found)}, "
                f"the operator is {spec.schema}; annotate the result, as in -> tuple[jax.Array, jax.Array]"
            )
        if spec.results == 1:
            return jnp.asarray(arrays[0])
        return [jnp.asarray(a) for a in arrays] if many else tuple(jnp.asarray(a) for a in arrays)

    run.__name__ = getattr(fn, "__name__", name)
    run.__doc__ = fn.__doc__
    return run


def _is_array(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex) or hasattr(value, "dtype")


def _shown(found: Any) -> str:
    if isinstance(found, list | tuple):
        return f"{type(found).__name__} of {len(found)}: ({', '.join(map(_shown, found))})"
    return f"{found.dtype}{list(found.shape)}" if hasattr(found, "dtype") else repr(found)


def _named(backward: Callable[..., Any], spec: Operator) -> Callable[..., Any]:
    """``backward`` on the gradients, the results and the schema's arguments."""

    def run(grads: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        return spec.call(backward, args, kwargs, grads, results)

    return run


def _scoped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` traced with JAX's own types, 32 bits, unless an argument has 64: what its author tried it with.

    A kernel's index arithmetic would be 64-bit otherwise, which Mosaic has not.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = [v for v in jax.tree.leaves((args, kwargs)) if isinstance(v, jax.Array)]
        wide = any(a.dtype.name in _WIDE and not a.weak_type for a in arrays)
        with nullcontext() if wide else jax.enable_x64(False):
            return fn(*args, **kwargs)

    run.__name__ = getattr(fn, "__name__", "jax_op")
    run.__doc__ = fn.__doc__
    return run
