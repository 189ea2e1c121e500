"""Gives each process of a host a TPU chip of its own, by the environment variables that libtpu reads when it starts."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torchtpu.errors import TorchTpuError

PORT = 8476  # of the first process, where libtpu listens for the others
GRIDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}  # how the chips of one host lie
_COUNT = "TORCHTPU_NPROC_PER_NODE"


def chips_here() -> int:
    """The TPU chips of this host, by their device files."""
    return len(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def variables(local_rank: int, processes: int, chips: int, port: int = PORT) -> dict[str, str]:
    """libtpu's variables for one of ``processes`` on a host with ``chips``; none for a process that is alone.

    TorchTpuError unless there is a process for every chip: each process has one device.
    """
    if processes == 1:
        return {}
    if processes != chips or chips not in GRIDS:
        raise TorchTpuError(
            f"torchtpu: {processes} processes on a host with {chips} TPU chips; start one for each chip "
            f"(torchrun --nproc-per-node {chips or 1}), or one in all"
        )
    return {
        "TPU_PROCESS_BOUNDS": ",".join(map(str, GRIDS[chips])),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port + i}" for i in range(processes)),
        "TPU_PROCESS_PORT": str(port + local_rank),
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "CLOUD_TPU_TASK_ID": str(local_rank),
    }


def set_tpu_launch_env(nproc_per_node: int | None = None) -> None:
    """Tell the processes that are started from here how many there are on this host; by default one for each chip.

    torchrun tells its own, so this is for other launchers, `torch.multiprocessing` among them: call it in the
    parent, before the processes start. ValueError for a count below 1.
    """
    count = max(1, chips_here()) if nproc_per_node is None else nproc_per_node
    if count < 1:
        raise ValueError(f"torchtpu: nproc_per_node must be at least 1, not {count}")
    os.environ[_COUNT] = str(count)


def own(rank: int, size: int, known: Mapping[str, str]) -> tuple[int, int] | None:
    """This process's number among those of its host, and their count; None where that cannot be told.

    libtpu must know the other hosts' addresses too, so a job of several hosts sets its variables itself.
    """
    count = int(known.get(_COUNT) or known.get("LOCAL_WORLD_SIZE") or 0)
    if count != size or "TPU_VISIBLE_CHIPS" in known or "TPU_VISIBLE_DEVICES" in known:
        return None
    return int(known.get("LOCAL_RANK", rank)), count


@contextmanager
def with_chip(rank: int, size: int, platform: str) -> Iterator[None]:
    """The context in which the client starts: on a TPU, with this process's chip alone."""
    place = own(rank, size, os.environ) if platform == "tpu" else None
    if place is not None:
        os.environ.update(variables(*place, chips_here()))  # libtpu reads them later too
    yield
