"""Programs on disk: used again by the next process, and never trusted when damaged."""

import os
import subprocess
import sys

CODE = """
import warnings; warnings.simplefilter('ignore')
import torch
x = torch.arange(6.0).reshape(2, 3).to('tpu')
assert x.t().clone(memory_format=torch.contiguous_format).cpu().tolist() == [[0, 3], [1, 4], [2, 5]]
from torchtpu.runtime import cache
print(cache.hits[0])
"""


def _hits(folder, value=None):
    env = {**os.environ, "TORCHTPU_PLATFORM": "cpu", "TORCHTPU_CACHE_DIR": value or str(folder)}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_second_process_compiles_nothing_and_damage_is_a_miss(tmp_path):
    assert _hits(tmp_path) == 0
    assert _hits(tmp_path) == 1
    for file in (tmp_path / "programs").iterdir():
        file.write_bytes(b"not a program")
    assert _hits(tmp_path) == 0
    assert _hits(tmp_path) == 1


def test_cache_can_be_off(tmp_path):
    assert _hits(tmp_path, "off") == 0 and not list(tmp_path.iterdir())
