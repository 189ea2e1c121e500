"""From the graph to StableHLO: the walk that ``torch.compile`` uses, traced once and lowered for each platform."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export
from jax.extend import core
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

from torchtpu.compile.walk import Env, Unlowerable, Walk, located
from torchtpu.export.container import ExportError
from torchtpu.export.graph import needed
from torchtpu.plugins import selection
from torchtpu.runtime import legalize, program
from torchtpu.runtime.rewrite import safe_updates
from torchtpu.tensors.dtypes import to_numpy


@dataclass(frozen=True)
class Wanted:
    """What a program takes and gives: placeholders by argument (several may share one), nodes by result.

    ``writes`` are the nodes that overwrite arguments, in the arguments' order, ``results`` those that follow,
    each with the order of dimensions in which its memory lies.
    """

    places: dict[fx.Node, int]
    avals: list[Any]
    writes: list[tuple[int, fx.Node]]
    results: list[tuple[fx.Node, tuple[int, ...]]]
    random: bool


_COUNTING = (torch.ops.aten.arange.default, torch.ops.aten.arange.start)


class _Watched(Walk):
    """A walk that knows where it is, and counts up to sizes that are not known."""

    at: fx.Node

    def _value(self, node: fx.Node, env: Env) -> Any:
        self.at = node
        return super()._value(node, env)

    def operator(self, node: fx.Node, op: OpOverload, args: Any, kwargs: Any, wanted: Any) -> Any:
        """As of `Walk`; the lowering of ``arange`` needs numbers."""
        if op in _COUNTING and any(map(export.is_symbolic_dim, args)):
            first, last = (0, *args)[-2:]
            return (jnp.arange(last - first) + first).astype(to_numpy(wanted.dtype))
        return super().operator(node, op, args, kwargs, wanted)


def trace(
    lowered: ExportedProgram, wanted: Wanted, platforms: Sequence[str], generation: str | None
) -> tuple[Any, int]:
    """The graph as a jaxpr of (arguments…, random state), and the number of its draws.

    The results are the new values of what is overwritten, then the graph's own, then the random state.
    """
    walk = _Watched(lowered.graph_module, None)

    def fn(*flat: Any) -> list[Any]:
        walk.state, walk.draws = flat[-1] if wanted.random else None, 0
        env: Env = {node: flat[place] for node, place in wanted.places.items()}
        walk.run(needed(lowered.graph), env)
        new = [
            jnp.asarray(env[node]).astype(wanted.avals[place].dtype).reshape(wanted.avals[place].shape)
            for place, node in wanted.writes
        ]
        results = [jnp.asarray(env[node]).transpose(order) for node, order in wanted.results]
        return [*new, *results, *([walk.state] if wanted.random else [])]

    avals = [*wanted.avals, *([jax.ShapeDtypeStruct((4,), np.uint32)] if wanted.random else [])]
    dynamic = any(export.is_symbolic_dim(size) for a in avals for size in a.shape)
    try:
        with selection.also_for("tpu", generation) if "tpu" in platforms else nullcontext():
            return program.trace(fn, avals), walk.draws
    except Unlowerable as error:
        also = ", or on a dynamic dimension" if dynamic and "depends on data" in str(error) else ""
        raise ExportError(f"{error}{also}{located(error.node)}") from error
    except Exception as error:
        if not dynamic:
            raise
        raise ExportError(
            f"torchtpu: {walk.at.target} with a dynamic dimension is not supported yet: {error}{located(walk.at)}"
        ) from error


def serialize(name: str, closed: Any, platform: str) -> bytes:
    """The jaxpr as versioned StableHLO for ``platform``; `ExportError` with JAX's words if there is none.

    Each platform has a program of its own: JAX lowers one for several with the kernels of each for all.
    """
    if platform == "tpu":
        why = legalize.refused(closed)
        if why is not None:
            raise ExportError(
                f"torchtpu: {why} run on the host of a TPU and cannot be part of its program; "
                "platforms=('cpu',) exports for the CPU alone"
            )
    closed = legalize.legal(closed, platform)
    flat = core.jaxpr_as_fun(safe_updates(closed, platform))

    def call(*arrays: Any) -> Any:
        return flat(*arrays)

    call.__name__ = name
    with program.lowering():
        try:
            made = export.export(jax.jit(call, keep_unused=True), platforms=[platform])(*closed.in_avals)
            return bytes(made.serialize())
        except (ValueError, NotImplementedError) as error:
            raise ExportError(f"torchtpu: {name} cannot be exported for {platform}: {error}") from error


def aval(value: torch.Tensor, shape: Sequence[Any]) -> Any:
    """What stands for an argument like ``value`` while JAX traces."""
    return jax.ShapeDtypeStruct(tuple(shape), to_numpy(value.dtype))
