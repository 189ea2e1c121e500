"""``all_reduce`` of device tensors beside a plain JAX psum program and torch's gloo, over the same processes in one run.

    python benchmarks/collectives.py --ranks 2

Prints the medians of rank 0 in milliseconds, and the ratio of ours to JAX's. The three take turns, so that whatever
else the machine does falls on all of them. Each call is waited for before the next.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torchtpu_dist.coordinator import free_port

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "32 MB": 32 << 20}
NAMES = ("torchtpu", "JAX psum", "gloo")


def psum(count: int) -> Callable[[], object]:
    """A JAX program that sums ``count`` float32 numbers over one device of each process."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    first = {d.process_index: d for d in reversed(jax.devices())}
    mesh = Mesh([first[i] for i in sorted(first)], ("ranks",))
    spec = PartitionSpec("ranks")
    summed = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=spec, out_specs=spec)
    )
    mine = jax.device_put(jax.numpy.ones(count), first[jax.process_index()])
    whole = jax.make_array_from_single_device_arrays((count * len(first),), NamedSharding(mesh, spec), [mine])
    return lambda: summed(whole).block_until_ready()


def once(call: Callable[[], object]) -> float:
    """The time of one call that all ranks begin together, in milliseconds."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def rank(number: int, ranks: int, rounds: int, port: int) -> None:
    """Measure on one rank; rank 0 prints."""
    dist.init_process_group("tpu", f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks)
    for name, size in SIZES.items():
        count = size // 4
        device, host = torch.zeros(count, device="tpu"), torch.zeros(count)
        calls = (lambda x=device: dist.all_reduce(x), psum(count), lambda x=host: dist.all_reduce(x))
        for call in calls:
            once(call)
            once(call)
        found = list(zip(*[[once(call) for call in calls] for _ in range(rounds)], strict=True))
        ours, plain, gloo = map(statistics.median, found)
        if number == 0:
            shown = " ".join(f"{n} {t:8.2f} ms" for n, t in zip(NAMES, (ours, plain, gloo), strict=True))
            print(f"all_reduce {name:>5}: {shown}   torchtpu / JAX {ours / plain:.2f}")
            sys.stdout.flush()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    mp.spawn(rank, (args.ranks, args.rounds, free_port()), nprocs=args.ranks)


if __name__ == "__main__":
    main()
