"""Other ways to start the ranks than torchrun."""

import os
import subprocess
import sys
from pathlib import Path

from torchtpu_dist.coordinator import free_port

SCRIPT = Path(__file__).with_name("ranks_spawned.py")


def test_ranks_that_multiprocessing_starts(tmp_path):
    foreign = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in foreign}
    command = [sys.executable, str(SCRIPT), str(free_port()), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"sum{rank}").read_text() for rank in range(2)] == ["[3.0, 3.0, 3.0]"] * 2
