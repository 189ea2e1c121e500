"""Training steps in strict and fused mode beside the same step written by hand in JAX, in one run.

Prints medians in milliseconds and ratios: a 4-layer GPT with AdamW, an MLP with AdamW, and a chain of
element-wise operators. ``python benchmarks/steps.py [gpt] [mlp] [chain]``.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")

import jax
import jax.numpy as jnp
import torch
from gpt import (
    BATCH,
    BETA1,
    BETA2,
    DECAY,
    EPSILON,
    GPT,
    LENGTH,
    RATE,
    VOCABULARY,
    adamw,
    gpt_loss,
    linear,
)  # fmt: skip
from torch import nn
from torch.nn import functional as F

import torchtpu


def mlp_loss(p: dict[str, Any], x: Any, targets: Any) -> Any:
    """Two hidden layers."""
    for i in (0, 2):
        x = jax.nn.relu(linear(p, str(i), x))
    return -jnp.take_along_axis(jax.nn.log_softmax(linear(p, "4", x), -1), targets[..., None], -1).mean()


def medians(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each step, taken in turns so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(4):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(t) for name, t in times.items()}


def report(title: str, times: dict[str, float]) -> None:
    """One line for each way, with its ratio to JAX."""
    print(title)
    for name, value in times.items():
        print(f"  {name:8}{value:9.3f} ms   {value / times['jax']:6.2f}x jax")


def torch_step(model: nn.Module, mode: str, x: torch.Tensor, targets: torch.Tensor) -> Callable[[], None]:
    """The usual step, ended by reading the loss."""
    model = model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (BETA1, BETA2), EPSILON, DECAY, foreach=True)
    x, targets = x.to("tpu"), targets.to("tpu")

    def step() -> None:
        with torchtpu.mode(mode):
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
            loss.backward()
            optimizer.step()
            loss.item()
            torch.tpu.synchronize()  # the loss is ready before the optimizer is

    return step


def jax_step(model: nn.Module, loss: Callable[..., Any], x: Any, targets: Any) -> Callable[[], None]:
    """The step by hand: one jitted function that donates its state."""
    p = {k: jnp.array(t.detach().numpy()) for k, t in model.state_dict().items()}
    state = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.zeros(())]
    batch = jnp.array(x.numpy()), jnp.array(targets.numpy())
    jitted = jax.jit(functools.partial(adamw, loss), donate_argnums=(0, 1, 2, 3))

    def step() -> None:
        *state[:], value = jitted(*state, *batch)
        float(value)

    return step


def model_steps(
    make: Callable[[], nn.Module], loss: Callable[..., Any], x: Any, targets: Any
) -> dict[str, Any]:
    """The same model in JAX, fused and strict mode."""
    torch.manual_seed(0)
    first = make()
    steps: dict[str, Any] = {"jax": jax_step(first, loss, x, targets)}
    for mode in ("fused", "strict"):
        model = make()
        model.load_state_dict(first.state_dict())
        steps[mode] = torch_step(model, mode, x, targets)
    return steps


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def chain() -> dict[str, Any]:
    """Twenty element-wise operators on four million floats."""
    host = torch.rand(4_000_000)
    x, array = host.to("tpu"), jnp.array(host.numpy())

    def by_hand(a: Any) -> Any:
        for _ in range(5):
            a = jnp.tanh(a * 1.01) + 0.5 - a * a
        return a

    def ours(mode: str) -> None:
        with torchtpu.mode(mode), torch.no_grad():
            a = x
            for _ in range(5):
                a = torch.tanh(a * 1.01) + 0.5 - a * a
            torchtpu.to_jax(a).block_until_ready()

    jitted = jax.jit(by_hand)
    return {
        "jax": lambda: jitted(array).block_until_ready(),
        "fused": lambda: ours("fused"),
        "strict": lambda: ours("strict"),
    }


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    if not names or "gpt" in names:
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        report("GPT, 4 layers", medians(model_steps(GPT, gpt_loss, ids[:, :-1], ids[:, 1:]), 15))
    if not names or "mlp" in names:
        report(
            "MLP", medians(model_steps(mlp, mlp_loss, torch.rand(128, 784), torch.randint(10, (128,))), 15)
        )
    if not names or "chain" in names:
        report("20 element-wise operators, 4M floats", medians(chain(), 15))


if __name__ == "__main__":
    main(sys.argv[1:])
