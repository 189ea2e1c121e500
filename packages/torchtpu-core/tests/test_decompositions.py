"""Decompositions of packs: instead of the CPU or of the lowering, eager and compiled, in every form of the operator."""

import pytest
import torch
import torch._dynamo

import torchtpu
from torchtpu.plugins import Pack, discovery, registry
from torchtpu.testing import toy


def pack_with(calls):
    """Decompositions that note their calls and give values that no lowering would."""
    pack = Pack(api="1.0")

    @pack.decomposition("aten::relu", when="always")
    def relu(self):
        """The positive part, times three so that it shows."""
        calls.append("relu")
        return self * (self.sign() + 1) * 1.5

    @pack.decomposition("aten::exp", when="always")
    def exp(self):
        """Ends in itself, and leaves matrices to the lowering."""
        calls.append("exp")
        return NotImplemented if self.dim() == 2 else self.exp() + 1

    @pack.decomposition("aten::mul.Tensor")
    def mul(self, other):
        """Never used: there is a lowering."""
        raise AssertionError

    @pack.decomposition("aten::sign")
    def sign(self):
        """By comparisons with itself, which the toy pack lacks otherwise."""
        calls.append("sign")
        return (self * 1e30).clamp(-1, 1)

    @pack.decomposition("aten::silu_and_more", when="always")
    def unknown(self):
        """No operator of this torch."""
        raise AssertionError

    @pack.decomposition("aten::vander", when="always")
    def vander(x, N=None, increasing=False):
        """One of torch's composites, which has gradients through its parts; vectors of three only."""
        calls.append("vander")
        return x * 2 if x.numel() == 3 else NotImplemented

    return pack


@pytest.fixture
def calls():
    seen = []
    torchtpu.reset_fallbacks()
    with registry.use({"toy": toy.pack, "other": pack_with(seen)}), pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *a, **k: None)
        yield seen
    torchtpu.reset_fallbacks()


@pytest.fixture
def x():
    return torch.tensor([-2.0, 0.5, 3.0])


def test_missing_comes_before_torchs_own_and_the_cpu():
    a, b = torch.randn(4), torch.randn(4)
    with registry.use({"toy": toy.pack}):
        torchtpu.reset_fallbacks()
        got = torch.dist(a.to("tpu"), b.to("tpu"), 1)
        assert "aten::dist" not in torchtpu.fallbacks()
        torch.testing.assert_close(got.cpu(), torch.dist(a, b, 1))
        with pytest.warns(UserWarning, match="aten::dist"):  # the toy pack leaves other norms to the CPU
            got = torch.dist(a.to("tpu"), b.to("tpu"), 2)
        assert torchtpu.fallbacks()["aten::dist"] == 1
        torch.testing.assert_close(got.cpu(), torch.dist(a, b, 2))


def test_a_lowering_wins_over_a_decomposition_for_what_is_missing(calls, x):
    assert (x.to("tpu") * 2).cpu().equal(x * 2)


@pytest.mark.parametrize("mode", torchtpu.config.MODES)
def test_always_comes_instead_of_the_lowering(calls, x, mode):
    with torchtpu.mode(mode):
        torch.testing.assert_close(torch.relu(x.to("tpu")).cpu(), 3 * x.relu())
    assert calls == ["relu", "sign"]


def test_forms_that_write_follow(calls, x):
    y = x.to("tpu")
    assert torch.relu_(y) is y
    torch.testing.assert_close(y.cpu(), 3 * x.relu())
    y, out = x.to("tpu"), torch.empty(3, device="tpu")
    assert torch.exp(y, out=out) is out
    torch.testing.assert_close(out.cpu(), x.exp() + 1)


def test_foreach_forms_follow(calls, x):
    got = torch._foreach_exp([x.to("tpu"), x.to("tpu")])
    torch.testing.assert_close(got[1].cpu(), x.exp() + 1)
    y = [x.to("tpu"), (2 * x).to("tpu")]
    torch._foreach_exp_(y)
    torch.testing.assert_close(y[1].cpu(), (2 * x).exp() + 1)
    assert calls.count("exp") == 4


def test_the_operator_inside_its_rule_and_what_it_refuses_go_to_the_lowering(calls, x):
    torch.testing.assert_close(x.to("tpu").exp().cpu(), x.exp() + 1)
    torch.testing.assert_close(x.to("tpu")[None].exp().cpu(), x[None].exp())
    assert "aten::exp" not in torchtpu.fallbacks()


def test_gradients_are_torchs_own(calls, x):
    y = x.to("tpu").requires_grad_()
    torch.relu(y).sum().backward()
    assert y.grad.cpu().tolist() == [0, 1, 1]


def test_compiled_graphs_use_them(calls, x):
    torch._dynamo.reset()

    @torch.compile(backend="tpu", fullgraph=True)
    def f(x, y):
        return torch.relu(x) + x.exp(), y.exp(), torch._foreach_exp([x])[0]

    first, second, third = f(x.to("tpu"), x.to("tpu")[None])
    torch.testing.assert_close(first.cpu(), 3 * x.relu() + x.exp() + 1)
    torch.testing.assert_close(second.cpu(), x[None].exp())
    torch.testing.assert_close(third.cpu(), x.exp() + 1)
    assert {"relu", "exp"} <= set(calls)
    torch._dynamo.reset()


def test_two_packs_may_not_decompose_one_operator(monkeypatch):
    monkeypatch.setenv("TORCHTPU_STRICT_PACKS", "0")
    with (
        pytest.warns(UserWarning, match="decomposition aten::dist collides with the one of toy"),
        registry.use({"toy": toy.pack, "zebra": _copy("aten::dist")}),
    ):
        assert [s.state for s in registry.statuses()] == ["loaded", "broken"]
        assert registry.registry().decompositions["aten::dist"].fn is toy.dist
    assert discovery.strict() is False


def _copy(op):
    pack = Pack(api="1.0")
    pack.decomposition(op)(toy.dist)
    return pack


def test_a_composite_operator_comes_to_the_pack_above_autograd(calls, x):
    leaf = x.to("tpu").requires_grad_()
    out = torch.vander(leaf)
    out.sum().backward()
    assert calls.count("vander") == 1
    assert out.detach().cpu().equal(2 * x) and leaf.grad.tolist() == [2.0] * 3
    with torch.inference_mode():
        assert torch.vander(leaf).cpu().equal(2 * x)
    with registry.use({"toy": toy.pack}):  # without the pack it is torch's own
        assert torch.vander(torch.ones(3)).equal(torch.ones(3, 3))
        assert torch.vander(leaf.detach()).shape == (3, 3)
    assert torch.vander(x).equal(x[:, None] ** torch.tensor([2, 1, 0]))
