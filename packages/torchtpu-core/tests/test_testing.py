"""The kit accepts the toy pack and names every fault of a bad one; core runs on the toy pack alone."""

import subprocess
import sys

import jax.numpy as jnp
import pytest
import torch

import torchtpu
from torchtpu.plugins import Pack, hookspecs, registry
from torchtpu.testing import conformance, toy


@pytest.fixture
def toys():
    with registry.use({"toy": toy.pack}):
        yield


def test_the_toy_pack_conforms_and_has_every_hook():
    report = conformance(toy.pack)
    assert len(toy.pack.lowerings) == 12
    assert "kernel tiled of toy::softsign" in report.checked
    assert "operator aten::mm" in report.checked
    assert not report.faults and set(report.unsampled) <= {"aten::index_select"}
    hooks = {name: getattr(toy.pack, name)() for name in hookspecs.RECORD_HOOKS}
    assert all(hooks.values()), [name for name, records in hooks.items() if not records]


@pytest.mark.parametrize("mode", torchtpu.config.MODES)
def test_core_runs_on_the_toy_pack(toys, mode):
    torch.manual_seed(3)
    w, x = torch.randn(4, 3), torch.randn(2, 4)
    rows = torch.tensor([1, 0, 1])

    def step(w, x, rows):
        h = (x.mm(w) + 0.5).relu().index_select(0, rows)
        return (-h.exp() * 2 + h).sum()

    host = w.clone().requires_grad_()
    want = step(host, x, rows)
    want.backward()
    torchtpu.reset_fallbacks()
    with torchtpu.mode(mode):
        device = w.to("tpu").requires_grad_()
        got = step(device, x.to("tpu"), rows.to("tpu"))
        got.backward()
        torch.testing.assert_close(got.detach().cpu(), want.detach())
        torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_random_numbers_follow_the_seed(toys):
    torch.tpu.manual_seed(5)
    first = torch.empty(64, device="tpu").normal_()
    torch.tpu.manual_seed(5)
    assert torch.empty(64, device="tpu").normal_().cpu().equal(first.cpu()) and first.cpu().std() > 0.5


def test_debug_mode_validates(toys):
    with torchtpu.mode("debug"), pytest.raises(IndexError, match="out of range"):
        torch.ones(2, device="tpu").index_select(0, torch.tensor([5], device="tpu"))


def bad_pack():
    pack = Pack(api="1.0")

    @pack.lowering("aten::exp")
    def wrong(self):
        """Not the exponential."""
        return self

    @pack.lowering("aten::nonsense")
    def nonsense(self):
        """No such operator."""

    @pack.op("bad::leaky(Tensor x) -> Tensor")
    def leaky(x):
        return jnp.where(x > 0, x, 0.1 * x)

    @pack.kernel("bad::leaky", name="off", fn=lambda x: x + 1)
    def never_wrong(call):
        """Suitable always."""

    @pack.kernel("bad::leaky", name="raises", fn=leaky.reference)
    def raises(call):
        """Looks at an axis that may be missing."""
        return None if call.args["x"].shape[1] else "empty"

    @pack.kernel("bad::leaky", name="boolean", fn=leaky.reference)
    def boolean(call):
        """Says yes or no."""
        return True

    @pack.kernel("aten::tanh", name="alone", fn="nowhere:gone")
    def alone(call):
        """Suitable always."""

    pack.namespace("gone", "no_such_module_at_all")
    return pack


def test_every_fault_is_listed():
    with pytest.raises(AssertionError) as caught:
        conformance(bad_pack())
    text = str(caught.value)
    for part in (
        "operator aten::exp: AssertionError: Tensor-likes are not close",
        "operator aten::nonsense: AssertionError: this torch has no such operator",
        "kernel off of bad::leaky: AssertionError: Tensor-likes are not close",
        "kernel raises of bad::leaky: AssertionError: unsuitable raised IndexError",
        "kernel boolean of bad::leaky: AssertionError: unsuitable gave True",
        "kernel alone of aten::tanh: AssertionError: there is no lowering",
        "lowerings bad::leaky: AssertionError: its fn has no docstring",
        "namespaces gone: ModuleNotFoundError",
    ):
        assert part in text, text


def test_a_wrong_gradient_is_a_fault():
    import jax

    pack = Pack(api="1.0")
    double = jax.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (2 * x, None), lambda _, g: (g,))

    @pack.op("bad::double(Tensor x) -> Tensor")
    def bad(x):
        """Twice x, with the gradient of x."""
        return double(x)

    with pytest.raises(AssertionError, match="GradcheckError"):
        conformance(pack)


def test_a_pack_that_is_not_installed_is_named():
    with pytest.raises(AssertionError, match="no pack is called 'nobody'"):
        conformance("nobody")


def test_pallas_is_imported_when_a_kernel_is_and_not_before():
    script = "import sys, torchtpu.testing.toy; assert 'jax.experimental.pallas' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
