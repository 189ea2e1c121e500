"""The flash kernels, in Pallas' interpreter, agree with attention written out in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from torchtpu.plugins import CallSpec, TensorSpec
from torchtpu_kernels import flash
from torchtpu_kernels.pack import no_flash, pack


def attention(q, k, v, causal, scale):
    """Output, largest scores and sums of attention, by JAX in the inputs' dtype."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (jnp.repeat(x, groups, -3) for x in (k, v))
    s = jnp.einsum("...le,...se->...ls", q, k) * scale
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf) if causal else s
    top = s.max(-1, keepdims=True)
    weights = jnp.exp(s - top)
    total = weights.sum(-1, keepdims=True)
    return jnp.einsum("...ls,...se->...le", weights / total, v), top[..., 0], total[..., 0]


CASES = {
    "causal": ((1, 1, 384, 64), (1, 1, 384, 64), True, "float32"),
    "longer keys": ((1, 1, 128, 16), (1, 1, 384, 16), False, "float32"),
    "grouped": ((1, 1, 2, 128, 16), (1, 1, 1, 128, 16), True, "float32"),
    "bfloat16": ((1, 1, 128, 128), (1, 1, 128, 128), True, "bfloat16"),
}


@pytest.mark.parametrize(("query", "key", "causal", "dtype"), CASES.values(), ids=CASES)
def test_forward_and_backward(query, key, causal, dtype):
    random = np.random.default_rng()
    given = [jnp.asarray(random.normal(size=s), dtype) for s in (query, key, key, query)]
    with jax.enable_x64(True):
        q, k, v, grad = (x.astype(jnp.float64) for x in given)
        want, pull = jax.vjp(lambda *t: attention(*t, causal, 0.1), q, k, v)
        grads = pull((grad, jnp.zeros_like(want[1]), jnp.zeros_like(want[2])))
    with pltpu.force_tpu_interpret_mode():
        got = flash.forward(*given[:3], None, None, 0.0, causal, 0.1)
        back = flash.backward(given[3], *given[:3], *got, None, None, 0.0, causal, 0.1, False)
    assert [x.dtype.name for x in (*got, *back)] == [dtype, "float32", "float32", dtype, dtype, dtype]
    close = {"rtol": 2e-4, "atol": 2e-4} if dtype == "float32" else {"rtol": 3e-2, "atol": 6e-2}
    for a, b in zip((*got, *back), (*want, *grads), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b), **close)


def spec(query=(1, 2, 256, 64), key=None, dtype="bfloat16", **options):
    shapes = {"query": query, "key": key or query, "value": options.pop("value", key or query)}
    tensors = {name: TensorSpec(shape=shape, dtype=dtype) for name, shape in shapes.items()}
    return CallSpec(op="torchtpu::sdpa", args={**tensors, **options}, target="tpu")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (spec(mask=TensorSpec(shape=(256, 256), dtype="bool")), "mask"),
        (spec(dropout_p=0.1), "drops"),
        (spec(dtype="float16"), "float16"),
        (spec((1, 2, 200, 64)), "200"),
        (spec((1, 2, 0, 64)), "multiples"),
        (spec(value=(1, 2, 256, 32)), "values 32"),
        (spec((1, 2, 256, 192)), "width 192"),
        (spec((1, 2, 256, 60)), "width 60"),
        (spec((1, 2, 128, 64), (1, 2, 256, 64), is_causal=True), "causal"),
        (spec((0, 2, 256, 64)), "empty"),
        (spec((1, 2, 256, 64), (1, 2, 128, 64)), "fewer"),
    ],
)
def test_calls_that_it_does_not_take(call, words):
    assert words in no_flash(call)


@pytest.mark.parametrize(
    "call", [spec(), spec(is_causal=True, mask=None, dropout_p=0.0), spec(dtype="float32")]
)
def test_calls_that_it_takes(call):
    assert no_flash(call) is None


def test_both_halves_have_a_kernel():
    assert {k.op for k in pack.kernels} == {"torchtpu::sdpa", "torchtpu::sdpa_backward"}
