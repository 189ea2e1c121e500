"""Host time of one strict operator beside the bare ``jax.jit`` call, in one run.

Prints microseconds (best of 7 rounds of 20,000 calls, 64 float32 elements, no_grad) and the ratio.
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

import jax
import torch

from torchtpu.tensors.layout import buffer_layout
from torchtpu.tensors.storage import new_tensor


def micros(call: Callable[[], object], count: int = 20_000) -> float:
    """Best time of one call, µs."""
    return min(timeit.repeat(call, number=count, repeat=7)) / count * 1e6


def main() -> None:
    """Measure and print."""
    a, b = torch.ones(64, device="tpu"), torch.ones(64, device="tpu")
    x = torch.ones(8, 8, device="tpu")
    (a + b).cpu()
    jitted = jax.jit(lambda p, q: p + q)
    p = jax.numpy.ones(64)
    layout = buffer_layout((64,), torch.float32)
    with torch.no_grad():
        rows = {
            "jax.jit add": micros(lambda: jitted(p, p)),
            "torch.add": micros(lambda: torch.add(a, b)),
            "add_ in place": micros(lambda: a.add_(b)),
            "mul by a number": micros(lambda: a * 2.0),
            "new tensor (inside a kernel)": micros(lambda: new_tensor(layout)),
            "torch.empty": micros(lambda: torch.empty(64, device="tpu")),
            "view": micros(lambda: x.view(64)),
            "transpose": micros(lambda: x.t()),
            "slice": micros(lambda: x[1:3]),
        }
    for name, value in rows.items():
        print(f"{name:32}{value:8.2f} µs")
    print(f"torch.add / jax.jit: {rows['torch.add'] / rows['jax.jit add']:.2f}")


if __name__ == "__main__":
    main()
