"""A pack of twelve operators that uses every hook: core's own tests run on it, and authors may read it."""

from __future__ import annotations

from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchtpu.plugins import CallSpec, Collective, Finding, Pack, Probe, ShardingRule

pack = Pack(api="1.0")
RELU = torch.ops.aten.relu.default
seen: list[Any] = []  # what the probe was told


@pack.lowering("aten::add.Tensor", promote="default")
def add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    """The sum; ``alpha`` scales the second operand."""
    return self + other * jnp.asarray(alpha).astype(self.dtype)


@pack.lowering("aten::mul.Tensor", promote="default")
def mul(self: Any, other: Any) -> Any:
    """The element-wise product."""
    return self * other


@pack.lowering("aten::neg", promote="default")
def neg(self: Any) -> Any:
    """The negative."""
    return -self


@pack.lowering("aten::exp", promote="int_to_float")
def exp(self: Any) -> Any:
    """The exponential."""
    return jnp.exp(self)


@pack.lowering("aten::relu", promote="default")
def relu(self: Any) -> Any:
    """The positive part."""
    return jnp.where(self > 0, self, jnp.zeros_like(self) * self)


@pack.lowering("aten::threshold_backward", promote="default")
def threshold_backward(grad_output: Any, self: Any, threshold: Any) -> Any:
    """The gradient of relu, whose threshold is 0."""
    return jnp.where(self <= threshold, jnp.zeros_like(grad_output), grad_output)


@pack.lowering("aten::mm")
def mm(self: Any, mat2: Any) -> Any:
    """The matrix product."""
    return jnp.matmul(self, mat2)


@pack.lowering("aten::sum.dim_IntList")
def sum_(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum along ``dim``, or of all elements: whole numbers as int64, 16-bit ones added up as float32."""
    whole = jnp.issubdtype(self.dtype, jnp.integer) or self.dtype == jnp.bool_
    result = dtype if dtype is not None else jnp.int64 if whole else self.dtype
    wide = jnp.float32 if result in (jnp.float16, jnp.bfloat16) else result
    axes = tuple(dim) if dim and self.ndim else None
    total = jnp.sum(self.astype(wide), axis=axes, keepdims=keepdim and self.ndim > 0)
    return total.astype(result)


@pack.lowering("aten::fill.Scalar")
def fill(self: Any, value: Any) -> Any:
    """A tensor of one value; `fill_` follows from it."""
    return jnp.full(self.shape, value, self.dtype)


@pack.lowering("aten::normal_functional", rng=True)
def normal(self: Any, mean: Any = 0.0, std: Any = 1.0, *, key: Any) -> Any:
    """Normal random numbers; `normal_` follows from it."""
    return (jax.random.normal(key, self.shape, self.dtype) * std + mean).astype(self.dtype)


def _index_in_range(self: np.ndarray, dim: int, index: np.ndarray) -> None:
    size = self.shape[dim] if self.ndim else 1
    if index.size and (index.min() < 0 or index.max() >= size):
        raise IndexError("index out of range in self")


@pack.lowering("aten::index_select", validate=_index_in_range)
def index_select(self: Any, dim: int, index: Any) -> Any:
    """Slices along ``dim``; debug mode checks the indices, which the device cannot."""
    return jnp.take(jnp.atleast_1d(self), jnp.atleast_1d(index), axis=dim, mode="clip")


@pack.op("toy::softsign(Tensor x, float scale=1.0) -> Tensor", sharding="b d -> b d")
def softsign(x: Any, scale: Any = 1.0) -> Any:
    """x / (1 + scale·|x|): a new operator, callable as ``toy.softsign`` and ``torch.ops.toy.softsign``."""
    return (x / (1 + scale * jnp.abs(x))).astype(x.dtype)


@pack.kernel(
    "toy::softsign",
    name="tiled",
    fn="torchtpu.testing.toy_kernel:softsign",
    platforms=("tpu",),
    priority=10,
)
def tiled(call: CallSpec) -> str | None:
    """Whole tiles of the matrix layout only."""
    x = call.args["x"]
    if x.dtype not in ("float32", "bfloat16"):
        return f"dtype {x.dtype}, needs float32 or bfloat16"
    if len(x.shape) != 2 or x.shape[0] % 16 or x.shape[1] % 128 or 0 in x.shape:
        return f"shape {x.shape} is not made of tiles of (16, 128)"
    return None


@pack.decomposition("aten::dist")
def dist(self: Any, other: Any, p: float = 2) -> Any:
    """The distance for p = 1, by other operators; the CPU's for other norms."""
    difference = self + other * -1
    magnitude = difference.relu() + (-difference).relu()
    return magnitude.sum(tuple(range(self.dim()))) if p == 1 else NotImplemented


@pack.graph_pass("toy.relus", after=("torchtpu.noops",))
def relus(module: Any) -> bool:
    """One relu for relu(relu(x))."""
    outer = [n for n in module.graph.nodes if n.target is RELU and getattr(n.args[0], "target", None) is RELU]
    for node in outer:
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    return bool(outer)


def _sum(spec: Any) -> Any:
    """JAX's own all-reduce."""
    return lambda x: jax.lax.psum(x, spec)


def _never(spec: Any) -> str | None:
    """Never chosen."""
    return "only an example"


@pack.check("toy")
def check() -> Finding:
    """Always well."""
    return Finding(level="ok", message="the toy pack is loaded")


@click.command("toy")
def command() -> None:
    """Say that the toy pack is there."""
    click.echo("toy")


pack.sharding_rules.append(ShardingRule(op="aten::mm", rule="i k, k j -> i j"))
pack.collectives.append(Collective(kind="all_reduce", name="toy.psum", build=_sum, unsuitable=_never))
pack.probes.append(Probe(events=frozenset({"choice", "fallback"}), handle=seen.append))
pack.namespace("toy", "torchtpu.testing.toy")
pack.commands.append(command)
