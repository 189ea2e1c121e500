"""Which chip each process of a host gets; by hand from libtpu's rules, as there is no TPU."""

import os

import pytest
import torch
import torch.distributed as dist

from torchtpu.errors import TorchTpuError
from torchtpu_dist import launch


def test_a_process_for_each_of_four_chips():
    assert launch.variables(2, 4, 4) == {
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477,localhost:8478,localhost:8479",
        "TPU_PROCESS_PORT": "8478",
        "TPU_VISIBLE_CHIPS": "2",
        "CLOUD_TPU_TASK_ID": "2",
    }
    assert launch.variables(0, 8, 8)["TPU_PROCESS_BOUNDS"] == "2,4,1"
    assert launch.variables(0, 1, 4) == {}


@pytest.mark.parametrize(("processes", "chips"), [(2, 4), (8, 4), (2, 0), (3, 3)])
def test_other_counts_are_refused(processes, chips):
    with pytest.raises(TorchTpuError, match=f"{processes} processes on a host with {chips} TPU chips"):
        launch.variables(0, processes, chips)


def test_who_is_where():
    assert launch.own(3, 4, {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == (1, 4)  # torchrun
    assert launch.own(3, 4, {"TORCHTPU_NPROC_PER_NODE": "4"}) == (3, 4)  # another launcher
    assert launch.own(3, 8, {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}) is None  # two hosts
    assert launch.own(3, 4, {}) is None
    assert launch.own(3, 4, {"LOCAL_WORLD_SIZE": "4", "TPU_VISIBLE_CHIPS": "0"}) is None  # the user's own


def test_the_count_is_told_to_children(monkeypatch):
    monkeypatch.setenv("TORCHTPU_NPROC_PER_NODE", "")
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=4)
    assert launch.own(2, 4, os.environ) == (2, 4)
    with pytest.raises(ValueError, match="at least 1"):
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=0)


def test_nothing_is_set_without_a_tpu(monkeypatch):
    monkeypatch.setenv("TORCHTPU_NPROC_PER_NODE", "4")
    before = dict(os.environ)
    with launch.with_chip(1, 4, "cpu"):
        assert dict(os.environ) == before


def test_a_tpu_process_gets_its_chip(monkeypatch):
    monkeypatch.setattr(launch, "chips_here", lambda: 4)
    monkeypatch.setenv("TORCHTPU_NPROC_PER_NODE", "4")
    for name in launch.variables(0, 4, 4):
        monkeypatch.setenv(name, "")  # put back at the end
        monkeypatch.delenv(name)
    with launch.with_chip(3, 4, "tpu"):
        assert os.environ["TPU_VISIBLE_CHIPS"] == "3"


def test_a_mesh_needs_a_group_and_fits_the_ranks():
    mesh_of = torch.tpu.distributed.topology_aware_mesh
    with pytest.raises(RuntimeError, match="init_process_group"):
        mesh_of((1,))
    dist.init_process_group("tpu", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert mesh_of((1, 1)).equal(torch.zeros(1, 1, dtype=torch.int64))
        with pytest.raises(ValueError, match="a mesh of 4 devices cannot hold the 1 ranks"):
            mesh_of((2, 2))
        with pytest.raises(ValueError, match="dcn_mesh_shape"):
            mesh_of((1,), topology="multi_slice")
        assert mesh_of(
            (1,), topology="multi_slice", dcn_mesh_shape=(1,), process_is_granule=True
        ).tolist() == [0]
    finally:
        dist.destroy_process_group()
