"""Compiled training steps beside the same step written by hand in JAX, in one run.

Prints medians in milliseconds and ratios for the GPT and the MLP of ``steps.py``: the whole step under
``torch.compile``, model and optimizer compiled apart, and both in fused mode, which makes one program of
the compiled graphs. ``python benchmarks/compile.py [gpt] [mlp]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from gpt import BATCH, BETA1, BETA2, DECAY, EPSILON, GPT, LENGTH, RATE, VOCABULARY, gpt_loss
from steps import jax_step, medians, mlp_loss, report
from torch import nn
from torch.nn import functional as F

import torchtpu


def _loss(model: nn.Module, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def mlp() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def compiled_step(model: nn.Module, x: Any, targets: Any, whole: bool, mode: str) -> Callable[[], None]:
    """A training step that ends by reading the loss."""
    model = model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (BETA1, BETA2), EPSILON, DECAY)
    x, targets = x.to("tpu"), targets.to("tpu")
    loss_of, update = _loss, optimizer.step
    if not whole:
        loss_of, update = torch.compile(_loss, backend="tpu"), torch.compile(optimizer.step, backend="tpu")

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, targets)
        loss.backward()
        update()
        return loss.detach()

    run = torch.compile(train, backend="tpu") if whole else train

    def step() -> None:
        with torchtpu.mode(mode):
            run().item()
            torch.tpu.synchronize()

    return step


def steps(make: Callable[[], nn.Module], loss: Callable[..., Any], x: Any, targets: Any) -> dict[str, Any]:
    """The same model by hand in JAX, compiled in parts, whole, and whole in fused mode (one program)."""
    torch.manual_seed(0)
    first = make()
    found: dict[str, Any] = {"jax": jax_step(first, loss, x, targets)}
    for name, whole, mode in (
        ("parts", False, "strict"),
        ("whole", True, "strict"),
        ("fused", True, "fused"),
    ):
        model = make()
        model.load_state_dict(first.state_dict())
        found[name] = compiled_step(model, x, targets, whole, mode)
    return found


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    if not names or "gpt" in names:
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        report("GPT, 4 layers", medians(steps(GPT, gpt_loss, ids[:, :-1], ids[:, 1:]), 15))
    if not names or "mlp" in names:
        report("MLP", medians(steps(mlp, mlp_loss, torch.rand(128, 784), torch.randint(10, (128,))), 15))


if __name__ == "__main__":
    main(sys.argv[1:])
