"""One compiled program per collective over a group's devices, and its launch on this rank's block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torchtpu_dist.reductions import AXIS

Body = Callable[..., list[Any]]


class Programs:
    """The programs of one group: each rank gives and gets its own blocks, which need a dimension.

    While a program runs on the group's devices, the ranks may run other local programs.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.size = len(devices)
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self._compiled: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def launch(self, key: Any, body: Body, blocks: Sequence[Any]) -> list[Any]:
        """Run ``body`` (found again under ``key`` and the blocks' shapes) on every rank; asynchronous."""
        full = (key, tuple((b.shape, b.dtype) for b in blocks))
        execute = self._compiled.get(full)
        if execute is None:
            with self._lock:
                execute = self._compiled.get(full) or self._compiled.setdefault(
                    full, self._build(key, body, blocks)
                )
        outputs = execute(blocks).disassemble_into_single_device_arrays()
        return [shards[0] for shards in outputs]

    def _build(self, key: Any, body: Body, blocks: Sequence[Any]) -> Any:
        spec = PartitionSpec(AXIS)

        def program(*args: Any) -> list[Any]:
            return body(*args)

        program.__name__ = str(key[0])
        with jax.enable_x64(True):
            over_ranks = jax.shard_map(
                program, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False
            )
            avals = [
                jax.ShapeDtypeStruct((self.size * b.shape[0], *b.shape[1:]), b.dtype, sharding=self.sharding)
                for b in blocks
            ]
            compiled = jax.jit(over_ranks, keep_unused=True).lower(*avals).compile()
        executable: Any = compiled._executable
        return executable.unsafe_call.xla_executable.execute_sharded
