"""Facts about the TPU generations.

Numbers are of one chip and peak values: those of Google Cloud's pages on each version ("TPU v5e", "TPU7x
(Ironwood)", …) as JAX's `jax.experimental.pallas.tpu.get_tpu_info` states them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """One generation: memory in bytes, bandwidth in bytes per second, ``bf16`` operations per second.

    ``matrix_unit`` is the side of the square of products that a matrix unit makes in one cycle.
    """

    name: str
    cores: int
    matrix_unit: int
    hbm_bytes: int
    hbm_bandwidth: float
    bf16_flops: float

    def roofline(self, flops: float, bytes_accessed: float) -> float:
        """The seconds below which no chip of this kind can do the work in bfloat16."""
        return max(flops / self.bf16_flops, bytes_accessed / self.hbm_bandwidth)

    def part(self, share: float) -> Target:
        """What one of several devices of a chip has of it."""
        return Target(
            name=self.name,
            cores=max(1, round(self.cores * share)),
            matrix_unit=self.matrix_unit,
            hbm_bytes=int(self.hbm_bytes * share),
            hbm_bandwidth=self.hbm_bandwidth * share,
            bf16_flops=self.bf16_flops * share,
        )


def _target(name: str, cores: int, unit: int, memory: int, bandwidth: float, flops: float) -> Target:
    return Target(
        name=name,
        cores=cores,
        matrix_unit=unit,
        hbm_bytes=memory,
        hbm_bandwidth=bandwidth,
        bf16_flops=flops,
    )


TARGETS = {
    t.name: t
    for t in (
        _target("v4", 2, 128, 34_400_000_000, 1.23e12, 2.75e14),
        _target("v5e", 1, 128, 17_200_000_000, 8.2e11, 1.97e14),
        _target("v5p", 2, 128, 103_000_000_000, 2.46e12, 4.59e14),
        _target("v6e", 1, 256, 34_400_000_000, 1.64e12, 9.2e14),
        _target("tpu7x", 2, 256, 206_000_000_000, 7.4e12, 2.31e15),
    )
}
