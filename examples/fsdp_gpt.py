"""Train a small GPT on Python's own source with sharded parameters (FSDP2), and tensor parallel beside it.

::

    torchrun --nproc-per-node 2 examples/fsdp_gpt.py --out runs/gpt
    torchrun --nproc-per-node 2 examples/fsdp_gpt.py --out runs/gpt --steps 400 --resume
    torchrun --nproc-per-node 4 examples/fsdp_gpt.py --out runs/gpt2d --tensor-parallel 2
    python examples/fsdp_gpt.py --out runs/gpt --resume

A checkpoint of one number of ranks continues on any other, with the same losses: the batch is the global one.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpt
import ranks
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@dataclass
class Run:
    """One training run: ``part`` and ``parts`` say which share of every batch this rank has."""

    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    text: Tensor
    part: int
    parts: int
    settings: dict[str, int]
    step: int = 0


def mesh_of(device: str, size: int, tensor: int) -> DeviceMesh:
    """A mesh of (data, tensor) parallel ranks."""
    if size % tensor:
        raise SystemExit(f"--tensor-parallel {tensor} does not divide the {size} ranks")
    return init_device_mesh(device, (size // tensor, tensor), mesh_dim_names=("data", "tensor"))


def split_layers(model: gpt.GPT, mesh: DeviceMesh) -> None:
    """Divide the matrices among the ranks of ``mesh``: the first of a pair by columns, the second by rows.

    Between the two each rank works on its own heads or hidden units; the sum after the second is an all-reduce.
    """
    columns, rows, whole = ColwiseParallel(), RowwiseParallel(), Replicate()
    parallelize_module(model, mesh, {"bytes": RowwiseParallel(input_layouts=whole, output_layouts=whole)})
    for block in model.blocks:
        attention = {f"attention.{name}": columns for name in ("query", "key", "value")}
        plan = {**attention, "attention.out": rows, "up": columns, "down": rows}
        parallelize_module(block, mesh, plan)


def build(args: argparse.Namespace, rank: int, size: int) -> Run:
    """The model, drawn on the host with the same seed everywhere, then divided among the ranks."""
    if args.heads % args.tensor_parallel or args.dim % args.heads:
        raise SystemExit("--dim must be a multiple of --heads, and --heads one of --tensor-parallel")
    torch.manual_seed(args.seed)
    model = gpt.GPT(args.dim, args.depth, args.heads, args.context).to(args.device)
    mesh = mesh_of(args.device, size, args.tensor_parallel)
    if args.tensor_parallel > 1:
        split_layers(model, mesh["tensor"])
    for block in model.blocks:  # gathered and freed block by block, not as a whole
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    # norms live on one dimension of the mesh, matrices on two: torch's foreach kernels take no such mix
    foreach = False if args.tensor_parallel > 1 else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=foreach)
    return Run(
        device=torch.device(args.device),
        model=model,
        optimizer=optimizer,
        text=gpt.corpus(),
        part=rank // args.tensor_parallel,
        parts=size // args.tensor_parallel,
        settings={n: getattr(args, n) for n in ("dim", "depth", "heads", "context", "batch", "seed")},
    )


def train(run: Run, steps: int) -> Iterator[Tensor]:
    """Train up to step ``steps``, yielding each step's loss over the global batch, still on the device."""
    size, context = run.settings["batch"], run.settings["context"]
    mine = slice(run.part, None, run.parts)
    ranks.share(size, run.parts)
    while run.step < steps:
        tokens, targets = gpt.batch(run.text, run.step, run.settings["seed"], size, context)
        run.optimizer.zero_grad()
        loss = gpt.loss_of(run.model, tokens[mine].to(run.device), targets[mine].to(run.device))
        loss.backward()
        run.optimizer.step()
        run.step += 1
        yield ranks.averaged(loss)


def state(run: Run) -> dict[str, object]:
    """What a checkpoint holds beside weights and moments."""
    return {"settings": run.settings, "step": run.step}


def resume(run: Run, folder: Path) -> None:
    """Continue from the last checkpoint in ``folder``, if there is one."""
    checkpoint = ranks.newest(folder)
    if checkpoint is not None:
        run.step = ranks.load(checkpoint, run.model, run.optimizer, state(run))["step"]


def fit(run: Run, steps: int, every: int, folder: Path, quiet: bool) -> list[float]:
    """Train the steps that are left, with a checkpoint after each ``every`` and the last; returns the losses."""
    losses: list[float] = []
    with Progress(disable=quiet) as progress:
        task = progress.add_task("gpt", total=steps, completed=run.step)
        for loss in train(run, steps):
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"gpt loss {losses[-1]:.3f}")
            if run.step % every == 0 or run.step == steps:
                ranks.save(folder, run.step, run.model, run.optimizer, state(run))
    return losses


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT with sharded parameters.")
    parser.add_argument("--device", choices=tuple(ranks.BACKENDS), default="tpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="sequences of all ranks together")
    parser.add_argument("--context", type=int, default=64, help="bytes of a sequence")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share each matrix")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    parser.add_argument("--out", type=Path, default=Path("fsdp_gpt"), metavar="DIR")
    return parser.parse_args(given)


def main() -> None:
    """Join the ranks, train, and print the last loss and what the model continues a line with."""
    args = arguments()
    with ranks.joined(args.device) as (rank, size):
        run = build(args, rank, size)
        if args.resume:
            resume(run, args.out)
        losses = fit(run, args.steps, args.checkpoint_every, args.out, quiet=rank > 0)
        text = gpt.continued(run.model, b"    def ", 32, args.context)
        if rank == 0:
            last = f"loss {losses[-1]:.3f}" if losses else "nothing left to do"
            print(f"gpt, {size} rank(s): step {run.step}, {last}; continues {text!r}")
            print(f"checkpoints: {args.out.resolve()}")


if __name__ == "__main__":
    main()
