"""Puts the kernel that was chosen for a call in the place of its lowering, once for each program key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
import torch

from torchtpu.plugins import CallSpec, Kernel, Lowering, TensorSpec, registry, selection
from torchtpu.runtime import client, without


def call(
    lowering: Lowering, arguments: list[Any], values: dict[str, Any], given: tuple[list[Any], dict[str, Any]]
) -> Any:
    """The results of ``lowering`` on ``given`` (positional and keyword arguments), by a kernel where one fits.

    The program holds both, so that it can be compiled for another platform too, and without the kernel.
    """
    positional, keyword = given
    kernels = registry.registry().kernels.get(registry.normal(lowering.op))
    if not kernels:
        return lowering.fn(*positional, **keyword)
    chosen: dict[str, Kernel] = {}
    for target, generation in selection.targets(client.platform()):
        kernel = selection.choose(_spec(lowering.op, arguments, values, target, generation), kernels)
        if kernel is not None:
            chosen[target] = kernel
    return _either(lowering, chosen, positional, keyword) if chosen else lowering.fn(*positional, **keyword)


def _spec(
    op: str, arguments: list[Any], values: dict[str, Any], target: str, generation: str | None
) -> CallSpec:
    full = {a.name: a.default_value for a in arguments if a.has_default_value()} | values
    shown = {name: _shown(value) for name, value in full.items()}
    return CallSpec(op=op, args=shown, target=target, generation=generation)


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(v) for v in value]
    if isinstance(value, jax.Array):
        return TensorSpec(shape=tuple(value.shape), dtype=value.dtype.name)
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    return value.name if isinstance(value, np.dtype) else value


def _either(lowering: Lowering, chosen: dict[str, Kernel], positional: Any, keyword: Any) -> Any:
    leaves, tree = jax.tree.flatten((positional, keyword))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[i] for i in places]

    def with_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            full = list(leaves)
            for i, array in zip(places, given, strict=True):
                full[i] = array
            args, kwargs = jax.tree.unflatten(tree, full)
            return fn(*args, **kwargs)

        return run

    reference = with_arrays(lowering.fn)
    wanted = jax.eval_shape(reference, *arrays)
    branches = {}
    for platform, kernel in chosen.items():
        branch = _same(with_arrays(selection.function(kernel)), wanted, exact(arrays))
        try:
            jax.eval_shape(branch, *arrays)
        except Exception as error:  # whatever a third party's kernel raises
            selection.refuse(kernel, error)
            continue
        branches[platform] = without.marked(selection.full_name(kernel), branch)
    return jax.lax.platform_dependent(*arrays, default=reference, **branches)


def exact(arrays: list[Any]) -> AbstractContextManager[Any]:
    """The precision for a kernel: Mosaic takes a stated one for float32 operands only."""
    narrow = any(a.dtype in (jax.numpy.bfloat16, jax.numpy.float16) for a in arrays)
    return jax.default_matmul_precision("default") if narrow else nullcontext()


def _same(fn: Callable[..., Any], wanted: Any, precision: AbstractContextManager[Any]) -> Callable[..., Any]:
    """``fn`` with the structure and dtypes of the lowering; a shape that differs is a ValueError."""

    def run(*arrays: Any) -> Any:
        narrow = all(a.dtype.itemsize < 8 for a in arrays)
        # under 64-bit types a kernel's index arithmetic would be 64-bit, which Mosaic has not
        with precision, jax.enable_x64(False) if narrow else nullcontext():
            found = jax.tree.leaves(fn(*arrays))
        want, tree = jax.tree.flatten(wanted)
        if [f.shape for f in found] != [w.shape for w in want]:
            raise ValueError(f"results {[f.shape for f in found]}, the lowering's {[w.shape for w in want]}")
        return jax.tree.unflatten(tree, [f.astype(w.dtype) for f, w in zip(found, want, strict=True)])

    return run
