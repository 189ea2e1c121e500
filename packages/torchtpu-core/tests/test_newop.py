"""`pack.op`: one JAX function becomes a torch operator with shapes, gradients and every device."""

import subprocess
import sys
import uuid

import jax
import jax.numpy as jnp
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchtpu
from torchtpu.errors import PackError
from torchtpu.plugins import Definition, Pack, add_operator, newop, opschema, registry

pack = Pack(api="1.0")


@pack.op("newop::swiglu(Tensor gate, Tensor up, *, float scale=1.0) -> Tensor")
def swiglu(gate, up, scale=1.0):
    """The gated unit of Shazeer's "GLU variants improve transformer"."""
    return jax.nn.silu(gate) * up * scale


@pack.op("newop::many(Tensor[] xs, Tensor index) -> (Tensor, Tensor)")
def many(xs, index):
    """The rows of the sum that ``index`` names, and ``index`` again."""
    return sum(xs)[index], index


@pack.op("newop::own(Tensor x, Tensor y, int n=2) -> (Tensor, Tensor)", backward=lambda g, out, x, y, n: (
    g[0] * out[0] * n, None
))  # fmt: skip
def own(x, y, n=2):
    """An exponential whose gradient is not the true one, so that it is seen who gave it."""
    return jnp.exp(x) * y, jnp.arange(n)


@pack.op("newop::flat(Tensor x) -> Tensor", backward=None)
def flat(x):
    """The sign."""
    return jnp.sign(x)


@pytest.fixture(autouse=True)
def _installed():
    with registry.use({"newop": pack}):
        yield


def truth(gate, up, scale=1.0):
    return torch.nn.functional.silu(gate) * up * scale


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values_on_both_devices(device, dtype):
    gate, up = torch.randn(3, 5).to(dtype), torch.randn(3, 5).to(dtype)
    out = swiglu(gate.to(device), up.t().contiguous().t().to(device), scale=2.0)
    assert out.device.type == device and out.dtype == dtype
    torch.testing.assert_close(out.cpu(), truth(gate, up, 2.0))
    assert torch.ops.newop.swiglu(gate, up).equal(swiglu(gate, up))


def test_a_fallback_is_not_what_serves_it(recwarn):
    swiglu(torch.ones(2, device="tpu"), torch.ones(2, device="tpu"))
    assert not [w for w in recwarn if "newop::" in str(w.message)]


def test_shapes_without_data():
    with FakeTensorMode():
        x = torch.empty(4, 6, dtype=torch.bfloat16)
        out = swiglu(x, x)
    assert out.shape == (4, 6) and out.dtype == torch.bfloat16 and out.device.type == "cpu"
    rows, index = many([torch.empty(5, 2, device="meta")], torch.empty(3, dtype=torch.int64, device="meta"))
    assert rows.shape == (3, 2) and index.dtype == torch.int64 and rows.is_meta


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_gradients_are_torchs(device):
    gate, up = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    truth(gate, up, 0.5).square().sum().backward()
    mine = [t.detach().to(device).requires_grad_() for t in (gate, up)]
    swiglu(*mine, scale=0.5).square().sum().backward()
    for got, want in zip(mine, (gate, up), strict=True):
        assert got.grad.device.type == device
        torch.testing.assert_close(got.grad.cpu(), want.grad)


def test_gradients_against_finite_differences():
    inputs = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(swiglu, inputs)
    assert torch.autograd.gradgradcheck(swiglu, inputs)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_lists_whole_numbers_and_unused_results(device):
    xs = [torch.randn(4, 2, device=device, requires_grad=True) for _ in range(2)]
    rows, index = many(xs, torch.tensor([2, 0, 2], device=device))
    assert not index.requires_grad and index.tolist() == [2, 0, 2]
    rows.sum().backward()
    for x in xs:
        assert x.grad.cpu().equal(torch.tensor([[1.0], [0.0], [2.0], [0.0]]).expand(4, 2))


def test_one_input_without_gradient():
    gate = torch.randn(3, device="tpu", requires_grad=True)
    up = torch.randn(3, device="tpu")
    (grad,) = torch.autograd.grad(swiglu(gate, up).sum(), gate)
    host = gate.detach().cpu().requires_grad_()
    (want,) = torch.autograd.grad(truth(host, up.cpu()).sum(), host)
    torch.testing.assert_close(grad.cpu(), want)


def _halves(grads, outputs, needed, x, y):
    """The derivative by hand, noted with what it was told."""
    seen.append((needed, [o.shape for o in outputs], grads[1] is None))
    return {"x": grads[0] * y}


seen = []
rules = Pack(api="1.0")


@rules.op(
    "newop::ruled(Tensor x, Tensor y) -> (Tensor, Tensor)",
    fake=lambda x, y: (x.new_empty(x.shape), y.new_empty(y.shape)), gradient=_halves,
)  # fmt: skip
def ruled(x, y):
    """x times y, and y plus one."""
    return x * y, y + 1


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_shapes_and_gradients_by_rules_of_the_pack(device):
    seen.clear()
    x, y = torch.randn(2, 3, device=device, requires_grad=True), torch.full((2, 3), 4.0, device=device)
    with registry.use({"ruled": rules}):
        ruled(x, y)[0].sum().backward()
        assert "newop::ruled_backward" not in registry.registry().lowerings
    assert x.grad.cpu().eq(4).all()
    assert seen == [({"x"}, [x.shape] * 2, True)]
    with FakeTensorMode():
        assert ruled(torch.empty(4), torch.empty(4))[1].shape == (4,)


def test_the_third_derivative_is_refused():
    x = torch.randn(2, dtype=torch.float64, requires_grad=True)
    g = torch.autograd.grad(swiglu(x, x).sum(), x, create_graph=True)[0]
    g = torch.autograd.grad(g.sum(), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="has no derivative"):
        torch.autograd.grad(g.sum(), x)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_gradient_that_the_pack_gives(device):
    x = torch.randn(3, device=device, requires_grad=True)
    y = torch.ones(3, device=device, requires_grad=True)
    out, steps = own(x, y)
    assert steps.tolist() == [0, 1]
    out.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu().exp())
    assert y.grad.tolist() == [0.0] * 3
    again = torch.autograd.grad(own(x, y)[0].sum(), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="own_backward has no derivative"):
        again.sum().backward()


def test_no_gradient():
    out = flat(torch.ones(2, requires_grad=True))
    with pytest.raises(
        NotImplementedError, match="flat has no derivative: it was defined with backward=None"
    ):
        out.sum().backward()


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_an_operator_that_no_pack_has(mode, recwarn):
    name = f"newop::t{uuid.uuid4().hex}"
    definition = Definition(schema=f"{name}(Tensor x) -> Tensor", fn=lambda x: x**3)
    cube = add_operator(definition)
    with torchtpu.mode(mode), registry.use({}):  # other packs leave it in place
        x = torch.tensor([1.0, -2.0], device="tpu", requires_grad=True)
        for _ in range(3):  # the first call makes the program, the others find it
            out = cube(x)
            assert out.tolist() == [1.0, -8.0]
            assert torch.autograd.grad(out, x, torch.ones_like(out.detach()))[0].tolist() == [3.0, 12.0]
    assert not [w for w in recwarn if name in str(w.message)]
    with pytest.raises(ValueError, match="is defined already; choose another name"):
        add_operator(definition)


def test_a_pack_that_comes_with_an_operator_of_the_same_name(monkeypatch):
    monkeypatch.setenv("TORCHTPU_STRICT_PACKS", "1")
    name = f"newop::t{uuid.uuid4().hex}"
    add_operator(Definition(schema=f"{name}(Tensor x) -> Tensor", fn=lambda x: x + 1))
    late = Pack(api="1.0")
    late.op(f"{name}(Tensor x) -> Tensor")(lambda x: x - 1)
    words = f"{name} of late 0 cannot be defined: a program has defined it"
    with pytest.raises(PackError, match=words), registry.use({"late": late}):
        pass


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("newop::bad_(Tensor(a!) x) -> Tensor(a!)", "fresh"),
        ("nothing", "not a schema"),
        ("newop::none(int n) -> Tensor", "needs a Tensor"),
    ],
)
def test_schemas_that_cannot_be_served(schema, words):
    with pytest.raises(ValueError, match=words):
        opschema.check(schema)


def test_a_name_has_one_schema():
    name = f"newop::t{uuid.uuid4().hex}"
    newop.define(newop.Definition(schema=f"{name}(Tensor x) -> Tensor", fn=jnp.sin))
    with pytest.raises(ValueError, match="defined already"):
        newop.define(newop.Definition(schema=f"{name}(Tensor x, Tensor y) -> Tensor", fn=jnp.sin))


SCRIPT = """
import jax, torch
from torchtpu.plugins import Pack
pack = Pack(api="1.0")
@pack.op("early::double(Tensor x) -> Tensor")
def double(x):
    return x * 2
x = torch.ones(3, requires_grad=True)
y = double(x)
y.sum().backward()
assert y.tolist() == [2.0] * 3 and x.grad.tolist() == [2.0] * 3
assert double.reference(4) == 8
"""


def test_it_works_before_any_tpu_tensor_was_made():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)
