"""Ten thousand training steps: nothing is compiled and nothing grows."""

import gc
import resource

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu.runtime import client, program

STEPS = 10_000


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_ten_thousand_steps(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("tpu")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.9)  # a number that varies
    x, y = torch.randn(16, 4).to("tpu"), torch.randint(2, (16,)).to("tpu")

    def train(steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 100 == 0:
                loss.item()
        torch.tpu.synchronize()
        gc.collect()
        arrays = [
            a for a in client.device().client.live_arrays() if a.size > 1
        ]  # numbers have a bounded cache
        return program.compilations[0], len(arrays), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with torchtpu.mode(mode):
        train(300)
        before = train(300)
        after = train(STEPS)
    assert after[0] == before[0]
    assert after[1] <= before[1] + 8  # packed numbers of the last steps
    assert after[2] < before[2] + 50_000  # KiB
