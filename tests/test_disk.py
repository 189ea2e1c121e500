"""A second process finds every program of the first on the disk: keys are alike in every process."""

import os
import subprocess
import sys

import pytest
import torch

import torchtpu.export

STEP = """
import torch
import torchtpu
from torch import nn

torch.manual_seed(0)
with torchtpu.explain() as report:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss_of = torch.compile(lambda x: model(x).square().mean(), backend="tpu")
    step = torch.compile(optimizer.step, backend="tpu")
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(torch.ones(3, 4, device="tpu"))
        loss.backward()
        step()
    print(loss.item())
"""
LOADED = """
import sys
import torch
import torchtpu

with torchtpu.explain() as report:
    print(torchtpu.export.load(sys.argv[1])(torch.ones(2, 3)).sum().item())
"""
COUNTS = """
sources = [made.source for made in report.compilations]
print(sources.count("compiler"), sources.count("disk"))
"""


def twice(code, folder, *args):
    """What a program prints in two processes, whose hashes differ, with one folder of compiled programs."""
    told = []
    for seed in ("1", "2"):
        env = {**os.environ, "TORCHTPU_CACHE_DIR": str(folder), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code + COUNTS, *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
        value, compiled, found = done.stdout.split()
        told.append((value, int(compiled), int(found)))
    return told


def test_a_second_process_compiles_no_step(tmp_path):
    first, second = twice(STEP, tmp_path / "disk")
    assert first[0] == second[0]
    assert first[1] >= 1
    assert second[1] == 0 and second[2] == first[1] + first[2]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_second_process_compiles_no_exported_program(tmp_path):
    torchtpu.export.save(torch.nn.BatchNorm1d(3), tmp_path / "norm", (torch.ones(2, 3),))
    first, second = twice(LOADED, tmp_path / "disk", str(tmp_path / "norm"))
    assert first[0] == second[0]
    assert first[1] >= 1 and second[1] == 0 and second[2] == first[1] + first[2]
