"""torchtpu.call_jax: JAX functions on tensors, with gradients to any order."""

import jax
import jax.numpy as jnp
import pytest
import torch

import torchtpu


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype).to("tpu").requires_grad_()


@pytest.mark.parametrize("jit", [False, True])
def test_values_and_gradients(jit):
    def fn(x, y):
        return jnp.sin(x) @ y

    x, y = leaf(3, 4, dtype=torch.float32), leaf(4, 2, dtype=torch.float32)
    got = torchtpu.call_jax(jax.jit(fn) if jit else fn, x, y)
    hx, hy = (t.detach().cpu().requires_grad_() for t in (x, y))
    want = hx.sin() @ hy
    torch.testing.assert_close(got.cpu(), want)
    weights = torch.randn(3, 2)
    got.backward(weights.to("tpu"))
    want.backward(weights)
    for device, host in ((x, hx), (y, hy)):
        torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_numerical_gradients_of_both_orders():
    def fn(x, y):
        return x**3 * y.sum(), jnp.exp(y)

    assert torch.autograd.gradcheck(lambda *t: torchtpu.call_jax(fn, *t), (leaf(3), leaf(2)))
    assert torch.autograd.gradgradcheck(lambda *t: torchtpu.call_jax(fn, *t), (leaf(3), leaf(2)))


def test_structures_whole_numbers_and_unused_results():
    def fn(batch, power, *, names):
        x = batch["x"]
        return {"power": x**power, "top": (jnp.argmax(x), None), names[0]: [batch["ids"] + 1, x.sum()]}

    x, ids = leaf(5), torch.arange(3, device="tpu")
    found = torchtpu.call_jax(fn, {"x": x, "ids": ids}, 2, names=["rest"])
    assert found["top"][1] is None and not found["top"][0].requires_grad
    assert found["rest"][0].tolist() == [1, 2, 3] and found["rest"][0].dtype == torch.int64
    (grad,) = torch.autograd.grad(found["power"].sum(), x)  # the sum has no gradient here
    torch.testing.assert_close(grad.cpu(), 2 * x.detach().cpu())


def test_views_bfloat16_and_the_users_types():
    wide = torch.randn(4, 6, device="tpu", dtype=torch.bfloat16)
    got = torchtpu.call_jax(lambda a: a.T * 2, wide[:, ::2])
    assert got.equal(wide[:, ::2].t() * 2)
    assert (
        torchtpu.call_jax(lambda a: jnp.arange(3) + a.astype(int), torch.ones(3, device="tpu")).dtype
        == torch.int32
    )
    assert not jax.config.jax_enable_x64


def test_errors():
    with pytest.raises(ValueError, match="needs a tpu tensor"):
        torchtpu.call_jax(jnp.sin, torch.ones(2))
    with pytest.raises(TypeError):
        torchtpu.call_jax(jnp.dot, torch.ones(2, device="tpu"), torch.ones(3, device="tpu"))
    with torch.no_grad():
        assert not torchtpu.call_jax(jnp.sin, leaf(2)).requires_grad
