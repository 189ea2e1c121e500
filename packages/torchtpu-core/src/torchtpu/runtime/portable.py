"""Traced programs as bytes, to be compiled for a TPU by another process of this installation."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

from torchtpu.runtime import client, topology

# TPU's own custom calls without a promise of stability, which one installation does not need
_OWN = (
    "ApproxTopK", "Eigh", "Hessenberg", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr",
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "X64Combine", "X64SplitHigh", "X64SplitLow",
    "tpu_custom_call", "mhlo.erf", "mhlo.topk",
)  # fmt: skip


def dumps(name: str, closed: Any, avals: Sequence[Any], donate: Sequence[int]) -> bytes:
    """The program as StableHLO for a TPU; `topology.HostOnlyError` for what a TPU leaves to the host.

    Raises what JAX raises for a program that has no TPU lowering.
    """
    client.device()  # chooses JAX's platform, so JAX must not be there before
    from jax import export

    from torchtpu.runtime import legalize, program

    why = legalize.refused(closed)
    if why is not None:
        raise topology.HostOnlyError(f"{name}: {why} run on the host")
    kept = program.used(closed)
    donated = tuple(i for i, k in enumerate(kept) if k in donate)
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in _OWN]
    with program.lowering():
        jitted = program.pruned(name, legalize.legal(closed, "tpu"), avals, donate, kept, None)
        made = export.export(jitted, platforms=["tpu"], disabled_checks=checks)(*[avals[k] for k in kept])
    # the one field that cannot be pickled, and a program is not differentiated any more
    return pickle.dumps((name, dataclasses.replace(made, _get_vjp=None), donated))


# a training step compiles in a seventh of the time, with more temporaries and the same operations
QUICK: dict[str, Any] = {"exec_time_optimization_effort": -1.0}


def compile_for(data: bytes, where: topology.Topology | str, quick: bool = False) -> topology.Compiled:
    """Compile what `dumps` gave, for one device of ``where``; raises `topology.CompileError`.

    ``quick`` asks the compiler to try less hard.
    """
    client.device()  # before JAX is imported by the unpickling
    name, made, donated = pickle.loads(data)
    return compile_exported(name, made, donated, where, QUICK if quick else None)


def compile_exported(
    name: str,
    made: Any,
    donated: Sequence[int],
    where: topology.Topology | str,
    options: dict[str, Any] | None = None,
) -> topology.Compiled:
    """Compile a `jax.export.Exported` for one device of ``where``; raises as `compile_for`."""
    client.device()
    import jax

    from torchtpu.runtime import program

    where = topology.resolved(where)
    sharding = jax.sharding.SingleDeviceSharding(where.devices[0])
    with topology.refusals(name, where), program.lowering():
        jitted = jax.jit(made.call, donate_argnums=tuple(donated), keep_unused=True, out_shardings=sharding)
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in made.in_avals]
        done = jitted.lower(*avals).compile(options)
    return topology.report(name, where, done)
