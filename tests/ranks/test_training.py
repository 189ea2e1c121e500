"""torch's parallel wrappers on two ranks of device "tpu"; the checks are in training.py."""

from pathlib import Path

import pytest

pytest.importorskip("torchtpu_dist")
from torchtpu_dist.testing import checks, run_checks

SCRIPT = Path(__file__).with_name("training.py")
RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run_checks(SCRIPT, folder, RANKS, 200), folder / "checkpoint"


@pytest.mark.parametrize("check", checks(SCRIPT))
def test_training(found, check):
    for rank, results in enumerate(found[0]):
        assert not results[check], f"rank {rank}: {results[check]}"


def test_a_checkpoint_of_two_ranks_loads_in_one_process(found):
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"model": {"0.weight": torch.zeros(32, 16).to("tpu"), "4.bias": torch.zeros(4).to("tpu")}}
    dcp.load(state, checkpoint_id=found[1])
    assert state["model"]["0.weight"].cpu().std() > 0 and state["model"]["4.bias"].cpu().std() > 0
