"""What the distributed examples share: joining the ranks, and checkpoints that any number of ranks can read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

BACKENDS = {"cpu": "gloo", "tpu": "tpu"}
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def joined(device: str, seconds: float = 300) -> Iterator[tuple[int, int]]:
    """Join the other ranks; gives this one's number and how many there are.

    torchrun says who takes part. Without it the script is a world of one. A collective that is not complete
    after ``seconds`` is an error.
    """
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing and len(missing) < len(VARIABLES):
        raise SystemExit(
            f"{', '.join(missing)} not set although others of {', '.join(VARIABLES)} are: "
            f"start this with torchrun --nproc-per-node 2 SCRIPT, or unset all of them"
        )
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if missing else {}
    dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=seconds), **alone)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def share(batch: int, parts: int) -> int:
    """How many samples of each global batch one of ``parts`` gets."""
    if batch % parts:
        raise SystemExit(f"--batch {batch} is not a multiple of the {parts} ranks that share it")
    return batch // parts


def averaged(loss: Tensor) -> Tensor:
    """The mean over the ranks: the loss of the whole batch, as each rank has an equal part of it."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def from_first(value: Any) -> Any:
    """Rank 0's value on every rank."""
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def newest(folder: Path) -> Path | None:
    """The last complete checkpoint below ``folder``, as rank 0 sees it: all ranks must read the same one."""
    complete = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    return from_first(complete[-1] if complete else None)


def save(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any]
) -> None:
    """Write a checkpoint; each rank writes what it holds, and ``.metadata`` comes last."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "extra": extra}
    dcp.save(state, checkpoint_id=folder / f"step-{step:06}")


def load(
    checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any]
) -> dict[str, Any]:
    """Fill model and optimizer from a checkpoint of any number of ranks; returns what was saved as ``extra``.

    ``extra`` has the same names as the saved one; its ``settings``, if any, must be equal to the saved ones.
    """
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "extra": deepcopy(extra)}  # filled in place
    dcp.load(state, checkpoint_id=checkpoint)
    found = state["extra"]
    if found.get("settings") != extra.get("settings"):
        raise SystemExit(
            f"{checkpoint} was trained with {found['settings']}, this run has {extra['settings']}"
        )
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return found
