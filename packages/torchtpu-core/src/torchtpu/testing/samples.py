"""Arguments for operators, made from their schemas: samples that may run, and fuzzed calls that may not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from torchtpu.plugins import CallSpec, TensorSpec

SHAPES = ((16, 128), (128, 128), (4, 6), (2, 3, 128))
_SIZES = (0, 1, 3, 8, 100, 128, 1024, 4096)
_DTYPES = (
    "bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "float8_e4m3fn",
)  # fmt: skip
_GENERATIONS = (None, "v4", "v5e", "v6e", "tpu7x", "unheard-of")

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Fresh values, away from zero so that kinks and poles there are missed."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.25
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (values * signs).to(dtype)


def _argument(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Any:
    if kind == "List[Tensor]":
        return [tensor(shape, dtype, generator) for _ in range(2)]
    if "Tensor" in kind:
        return tensor(shape, dtype, generator)
    return {"int": 1, "float": 0.5, "number": 0.5, "bool": True, "str": "none"}.get(kind)


def samples(op: Any, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Iterator[Sample]:
    """One call for each shape, all tensors alike, defaults left out; it need not be a valid call."""
    for shape in shapes:
        generator = torch.Generator().manual_seed(7)
        needed = [a for a in op._schema.arguments if not a.has_default_value()]
        made = {a.name: _argument(str(a.type), shape, dtype, generator) for a in needed}
        args = tuple(made[a.name] for a in needed if not a.kwarg_only)
        yield args, {a.name: made[a.name] for a in needed if a.kwarg_only}


def _fuzzed(kind: str, rng: random.Random) -> Any:
    def spec() -> TensorSpec:
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.randrange(6)))
        return TensorSpec(shape=shape, dtype=rng.choice(_DTYPES))

    if kind.startswith("Optional") and rng.random() < 0.4:
        return None
    if "Tensor" in kind:
        return [spec() for _ in range(rng.randrange(4))] if "List" in kind else spec()
    if "List" in kind:
        return [rng.randrange(-3, 4) for _ in range(rng.randrange(4))]
    if "number" in kind or "float" in kind:  # such numbers are traced unless they are static
        return rng.choice([TensorSpec(shape=(), dtype="float64"), 0.0, 1.5, float("inf"), -1])
    chosen = {"int": rng.choice([-1, 0, 1, 128]), "bool": rng.random() < 0.5, "str": rng.choice(["", "mean"])}
    return next((v for k, v in chosen.items() if k in kind), None)


def fuzz(name: str, op: Any, count: int) -> Iterator[CallSpec]:
    """Calls of every rank, dtype, target and mode, sensible or not; the same ones every time."""
    rng = random.Random(count)
    for _ in range(count):
        args = {a.name: _fuzzed(str(a.type), rng) for a in op._schema.arguments}
        yield CallSpec(
            op=name,
            args=args,
            target=rng.choice(("cpu", "tpu", "cuda")),
            generation=rng.choice(_GENERATIONS),
            training=rng.random() < 0.5,
        )
