"""Time to the first finished training step of a GPT in fused mode, with a cold and a warm disk cache.

Each run is a process of its own, imports included. ``python benchmarks/warm_start.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

STEP = """
import torch, steps
torch.manual_seed(0)
ids = torch.randint(steps.VOCABULARY, (steps.BATCH, steps.LENGTH + 1))
steps.torch_step(steps.GPT(), "fused", ids[:, :-1], ids[:, 1:])()
"""


def seconds(folder: str) -> float:
    """Wall time of one process with its programs in ``folder``."""
    here = os.path.dirname(os.path.abspath(__file__))
    env = {**os.environ, "TORCHTPU_CACHE_DIR": folder, "TORCHTPU_PLATFORM": "cpu", "PYTHONPATH": here}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", STEP], env=env, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds(folder)
        warm = min(seconds(folder) for _ in range(3))
    print(f"cold {cold:.1f} s, warm {warm:.1f} s, ratio {warm / cold:.2f}")


if __name__ == "__main__":
    main()
