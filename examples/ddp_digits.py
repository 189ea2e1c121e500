"""Train the models of train_digits.py on several ranks: DistributedDataParallel, each rank a part of every batch.

::

    torchrun --nproc-per-node 2 examples/ddp_digits.py --out runs/ddp
    torchrun --nproc-per-node 4 examples/ddp_digits.py --out runs/ddp --resume
    python examples/ddp_digits.py --out runs/alone

The batch is the global one, so the number of ranks changes the speed and not the ViT's losses. The convnet's batch
norms see one rank's part of it.
"""

import argparse
from pathlib import Path

import ranks
import torch
import train_digits as digits
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def build(args: argparse.Namespace, rank: int, size: int) -> digits.Run:
    """The run of train_digits.py, its model wrapped and its training data divided among the ranks."""
    run = digits.build(args.model, args.device, args.seed, args.epochs)
    data = run.train.dataset
    sampler = DistributedSampler(data, size, rank, shuffle=True, seed=args.seed, drop_last=True)
    run.train = DataLoader(data, ranks.share(args.batch, size), sampler=sampler, drop_last=True)
    run.model = DistributedDataParallel(run.model)
    peak = digits.MAX_LR[args.model]
    steps = args.epochs * len(run.train)
    run.scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=peak, total_steps=steps)
    run.settings["batch"] = args.batch
    return run


def train_epoch(run: digits.Run, epoch: int) -> list[float]:
    """Train for one epoch; returns each step's loss over the global batch."""
    run.model.train()
    run.train.sampler.set_epoch(epoch)  # or every epoch would have the same order
    losses: list[Tensor] = []
    for images, labels in run.train:
        run.optimizer.zero_grad()
        loss = F.cross_entropy(run.model(images.to(run.device)), labels.to(run.device))
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        losses.append(ranks.averaged(loss))
    return torch.stack(losses).tolist()


def fit(run: digits.Run, folder: Path, resume: bool, quiet: bool) -> None:
    """Train the epochs that are left, with a checkpoint after each; `run.history` has each epoch's results."""
    extra = {"settings": run.settings, "history": run.history, "scheduler": run.scheduler.state_dict()}
    checkpoint = ranks.newest(folder) if resume else None
    if checkpoint is not None:
        extra = ranks.load(checkpoint, run.model, run.optimizer, extra)
        run.scheduler.load_state_dict(extra["scheduler"])
        run.history = extra["history"]
    epochs, done = run.settings["epochs"], len(run.history["loss"])
    with Progress(disable=quiet) as progress:
        task = progress.add_task(run.settings["model"], total=epochs, completed=done)
        for epoch in range(done, epochs):
            losses = train_epoch(run, epoch)
            run.history["loss"].append(sum(losses) / len(losses))
            run.history["accuracy"].append(digits.accuracy(run))  # every rank has the whole model
            extra = {
                "settings": run.settings,
                "history": run.history,
                "scheduler": run.scheduler.state_dict(),
            }
            ranks.save(folder, epoch + 1, run.model, run.optimizer, extra)
            last = f"loss {run.history['loss'][-1]:.4f}, accuracy {100 * run.history['accuracy'][-1]:.1f} %"
            progress.update(task, advance=1, description=f"{run.settings['model']} {last}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train on the 8x8 digits with DistributedDataParallel.")
    parser.add_argument("--device", choices=tuple(ranks.BACKENDS), default="tpu")
    parser.add_argument("--model", choices=digits.MODELS, default="vit")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=digits.BATCH, help="of all ranks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    parser.add_argument("--out", type=Path, default=Path("ddp_digits"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Join the ranks, train and print the test accuracy."""
    args = arguments()
    with ranks.joined(args.device) as (rank, size):
        run = build(args, rank, size)
        fit(run, args.out / args.model, args.resume, quiet=rank > 0)
        if rank == 0:
            print(f"{args.model}, {size} rank(s): test accuracy {100 * run.history['accuracy'][-1]:.1f} %")
            print(f"checkpoints: {(args.out / args.model).resolve()}")


if __name__ == "__main__":
    main()
