"""Train a small convnet and a small ViT on scikit-learn's handwritten digits.

Plain PyTorch: only the name of the device says where it runs. ::

    python examples/train_digits.py --device tpu --out runs/digits
    python examples/train_digits.py --device tpu --out runs/digits --resume
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

MODELS = ("convnet", "vit")
BATCH = 64
EVAL_BATCH = 120  # divides the 360 test images: every batch has the same shape
MAX_LR = {"convnet": 1e-3, "vit": 3e-3}
SPLIT_SEED = 0


class ConvNet(nn.Module):
    """Three convolutions, the first two normalised, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of (N, 1, 8, 8) images."""
        return self.head(self.features(images).flatten(1))


class ViT(nn.Module):
    """A vision transformer over the sixteen 2x2 patches, mean pooled."""

    def __init__(self, dim: int = 64, depth: int = 3, heads: int = 4, patch: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (8 // patch) ** 2, dim) * 0.5)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of (N, 1, 8, 8) images."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder(tokens + self.position).mean(1))


@dataclass
class Run:
    """Everything one training run needs; `history` has one entry per epoch."""

    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    train: DataLoader[Any]
    test: DataLoader[Any]
    generator: torch.Generator
    settings: dict[str, Any]
    history: dict[str, list[float]] = field(default_factory=lambda: {"loss": [], "accuracy": []})


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return the fixed, stratified 80/20 split, pixels scaled to [-1, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(
        torch.arange(len(labels)).numpy(), test_size=0.2, stratify=labels.numpy(), random_state=SPLIT_SEED
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move every image by at most one pixel in each direction, filling with background."""
    padded = F.pad(images, (1, 1, 1, 1), value=-1.0)
    corners = torch.randint(0, 3, (len(images), 2), generator=generator).tolist()
    height, width = images.shape[-2:]
    pairs = zip(padded, corners, strict=True)
    return torch.stack([image[:, y : y + height, x : x + width] for image, (y, x) in pairs])


def loaders(augment: str, generator: torch.Generator) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the train and test loaders; order and shifts are drawn from `generator` on the host."""

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        images, labels = default_collate(samples)
        return (shifted(images, generator) if augment == "shift" else images), labels

    train, test = datasets()
    return (
        DataLoader(train, BATCH, shuffle=True, drop_last=True, generator=generator, collate_fn=collate),
        DataLoader(test, EVAL_BATCH),
    )


def build(
    name: str, device: str, seed: int = 0, epochs: int = 30, augment: str = "none", steps: int | None = None
) -> Run:
    """Prepare a run; the schedule spans `steps`, or all `epochs`. Weights are drawn on the host."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    train, test = loaders(augment, generator)
    model = {"convnet": ConvNet, "vit": ViT}[name]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=MAX_LR[name], weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=MAX_LR[name], total_steps=steps or epochs * len(train)
    )
    return Run(
        device=torch.device(device),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        train=train,
        test=test,
        generator=generator,
        settings={"model": name, "seed": seed, "epochs": epochs, "augment": augment},
    )


def train_epoch(run: Run) -> Iterator[Tensor]:
    """Train for one epoch, yielding each step's loss as a tensor still on the device."""
    run.model.train()
    for images, labels in run.train:
        run.optimizer.zero_grad()
        loss = F.cross_entropy(run.model(images.to(run.device)), labels.to(run.device))
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        yield loss.detach()


@torch.no_grad()
def accuracy(run: Run) -> float:
    """Return the share of test images classified correctly."""
    run.model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=run.device)
    total = 0
    for images, labels in run.test:
        correct += (run.model(images.to(run.device)).argmax(1) == labels.to(run.device)).sum()
        total += len(labels)
    return correct.item() / total


def save(run: Run, path: Path) -> None:
    """Write a checkpoint; the old one stays whole until the new one is complete."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
        "generator": run.generator.get_state(),
        "settings": run.settings,
        "history": run.history,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def load(run: Run, path: Path) -> None:
    """Continue from a checkpoint, written on any device; its settings must be those of the run."""
    state = torch.load(path, map_location=run.device)
    if state["settings"] != run.settings:
        raise ValueError(f"{path} was trained with {state['settings']}, not with {run.settings}")
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])
    run.generator.set_state(state["generator"].cpu())
    run.history = state["history"]


def loss_curve(model: str, device: str, steps: int, seed: int = 0) -> list[float]:
    """Return the losses of the first `steps` steps, from the same weights and data on every device."""
    run = build(model, device, seed, steps=steps)
    losses: list[Tensor] = []
    while len(losses) < steps:
        for loss in train_epoch(run):
            losses.append(loss)
            if len(losses) == steps:
                break
    return torch.stack(losses).tolist()


def fit(run: Run, checkpoint: Path) -> None:
    """Train the epochs that are left, with a progress bar and a checkpoint after each."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    epochs, done = run.settings["epochs"], len(run.history["loss"])
    with Progress(*columns, TextColumn("{task.fields[status]}")) as progress:
        task = progress.add_task(
            run.settings["model"], total=epochs * len(run.train), completed=done * len(run.train), status=""
        )
        for _ in range(done, epochs):
            losses = []
            for loss in train_epoch(run):
                losses.append(loss)
                progress.advance(task)
            run.history["loss"].append(torch.stack(losses).mean().item())
            run.history["accuracy"].append(accuracy(run))
            save(run, checkpoint)
            last = {key: values[-1] for key, values in run.history.items()}
            progress.update(task, status=f"loss {last['loss']:.4f}, accuracy {100 * last['accuracy']:.1f} %")


def plot(histories: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw training loss and test accuracy of every model over the epochs."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, key, title in zip(
        figure.subplots(1, 2), ("loss", "accuracy"), ("training loss", "test accuracy"), strict=True
    ):
        for name, history in histories.items():
            axes.plot(range(1, len(history[key]) + 1), history[key], label=name)
        axes.set(xlabel="epoch", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
        if key == "loss":
            axes.set_yscale("log")
        else:
            axes.set_ylim(0.9, 1.0)
    figure.savefig(path, dpi=150)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train small models on the 8x8 digits of scikit-learn.")
    parser.add_argument("--device", choices=("cpu", "tpu"), default="tpu")
    parser.add_argument(
        "--mode", choices=("strict", "debug", "fused"), default="strict", help="only for the tpu"
    )
    parser.add_argument("--model", choices=(*MODELS, "both"), default="both")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--augment", choices=("none", "shift"), default="none")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoints in --out")
    parser.add_argument("--out", type=Path, default=Path("digits"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Train the chosen models, plot their curves and print their test accuracies."""
    args = arguments()
    if args.device == "tpu":
        import torchtpu

        torchtpu.set_mode(args.mode)
    args.out.mkdir(parents=True, exist_ok=True)
    histories = {}
    for name in MODELS if args.model == "both" else (args.model,):
        run = build(name, args.device, args.seed, args.epochs, args.augment)
        checkpoint = args.out / f"{name}.pt"
        if args.resume and checkpoint.exists():
            load(run, checkpoint)
        fit(run, checkpoint)
        histories[name] = run.history
    plot(histories, args.out / "curves.png")
    for name, history in histories.items():
        print(f"{name} test accuracy {100 * history['accuracy'][-1]:.1f} %")
    print(f"checkpoints and curves: {args.out.resolve()}")


if __name__ == "__main__":
    main()
