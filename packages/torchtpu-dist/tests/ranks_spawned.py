"""Run by test_launch.py: ranks that torch.multiprocessing starts, without torchrun's variables."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number, size, port, folder):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("tpu", address, world_size=size, rank=number, timeout=timedelta(seconds=30))
    x = torch.full((3,), float(number + 1)).to("tpu")
    dist.all_reduce(x)
    with open(f"{folder}/sum{number}", "w") as file:
        file.write(str(x.cpu().tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, (2, *sys.argv[1:]), nprocs=2)
