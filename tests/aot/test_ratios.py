"""A compiled training step beside the same step written by hand in JAX, as the TPU's compiler sees them; no TPU.

What is compared is counted by the compiler, so it is the same in every run. In strict mode a step is three
programs, which hand activations and gradients to each other; fused mode makes one of them, as JAX does.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
from benchmarks import gpt
from torch.nn import functional as F

import torchtpu
from torchtpu.runtime import dry, topology

pytest.importorskip("libtpu")
LAYERS = 1  # more take longer and change the ratios little


def by_hand(where):
    """The step in JAX, jitted, with its state donated."""
    weights = {k: jax.ShapeDtypeStruct(t.shape, jnp.float32) for k, t in gpt.GPT(LAYERS).state_dict().items()}
    ids = jax.ShapeDtypeStruct((gpt.BATCH, gpt.LENGTH), jnp.int32)
    state = (weights, weights, weights, jax.ShapeDtypeStruct((), jnp.float32))
    place = jax.sharding.SingleDeviceSharding(where.devices[0])
    avals = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), (*state, ids, ids))
    step = jax.jit(functools.partial(gpt.adamw, gpt.gpt_loss), donate_argnums=(0, 1, 2, 3))
    with jax.default_matmul_precision("highest"):  # torch's default
        return topology.report("by hand", where, step.lower(*avals).compile())


def compiled(where):
    """The programs that a step of torch.compile launches when it has settled."""
    launched = []

    def register(name, closed, avals, donate):
        made = topology.Collected(name, closed, avals, tuple(donate))
        return lambda: launched.append(made)

    torch._dynamo.reset()
    with topology.targeting(where), dry.watching(register, run=False), torchtpu.mode("fused"):
        model = gpt.GPT(LAYERS).to("tpu")
        optimizer = torch.optim.AdamW(
            model.parameters(), gpt.RATE, (gpt.BETA1, gpt.BETA2), gpt.EPSILON, gpt.DECAY
        )
        ids = torch.zeros(gpt.BATCH, gpt.LENGTH, dtype=torch.int64, device="tpu")

        @torch.compile(backend="tpu", fullgraph=True)
        def loss_of(ids, targets):
            return F.cross_entropy(model(ids).reshape(-1, gpt.VOCABULARY), targets.reshape(-1))

        step = torch.compile(optimizer.step, backend="tpu")
        for _ in range(3):
            launched.clear()
            loss = loss_of(ids, ids)
            loss.backward()
            step()
            optimizer.zero_grad()
            loss.item()
        torch._dynamo.reset()
        return [made.compile_for(where) for made in launched]


@pytest.fixture(scope="module")
def pair():
    where = topology.topology("v5e:2x2")
    ours = compiled(where)
    assert len(ours) == 1
    return ours[0], by_hand(where)


def test_flops(pair):
    ours, hand = pair
    assert hand.flops > 3e9
    assert ours.flops / hand.flops <= 1.03


def test_arguments_and_results_are_those_of_the_step_by_hand(pair):
    """The state goes in and out once, in its own memory; gradients and counts of steps do not."""
    ours, hand = pair
    assert ours.arguments / hand.arguments <= 1.01
    assert ours.outputs / hand.outputs <= 1.01
    assert ours.executable.memory_analysis().alias_size_in_bytes >= 0.99 * hand.outputs


def test_bytes_accessed(pair):
    ours, hand = pair
    assert ours.bytes_accessed / hand.bytes_accessed <= 1.03


@pytest.mark.xfail(
    strict=True, reason="1.24: 6.2 MB of temporaries in HBM, of 36, where the step by hand has none"
)
def test_peak(pair):
    ours, hand = pair
    assert ours.peak / hand.peak <= 1.1


def test_peak_does_not_grow(pair):
    """What is not reached yet gets no worse."""
    ours, hand = pair
    assert ours.peak / hand.peak <= 1.27
