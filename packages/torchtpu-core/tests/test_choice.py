"""A kernel takes the place of its lowering where it is suitable; one that fails leaves the call to the lowering."""

import importlib.util

import jax
import pytest
import torch

import torchtpu
from torchtpu.plugins import Pack, registry, selection
from torchtpu.runtime import topology
from torchtpu.testing import toy


def pack_with(fn, unsuitable=lambda call: None, **options):
    pack = Pack(api="1.0")
    pack.kernel("aten::relu", name="k", fn=fn, platforms=("cpu",), **options)(unsuitable)
    return pack


@pytest.fixture
def relu():
    """Call relu on a device tensor with the toy pack and another."""
    selection._failed.clear()

    def call(pack, x):
        with registry.use({"toy": toy.pack, "acme": pack}):
            return torch.relu(x.to("tpu")).cpu()

    yield call
    selection._failed.clear()


def only_wide(call):
    return None if call.args["self"].shape[-1] >= 8 else "narrow"


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_a_suitable_kernel_serves_the_call(relu, mode):
    pack = pack_with(lambda x: x * 0 + 7, only_wide)
    with torchtpu.mode(mode):
        assert relu(pack, torch.ones(2, 8)).unique().tolist() == [7.0]
        assert relu(pack, -torch.ones(2, 4)).unique().tolist() == [0.0]


def test_the_decision_and_its_reasons_are_kept(relu):
    relu(pack_with(lambda x: x, only_wide), torch.ones(3, 4))
    assert "acme.k: narrow" in str(selection._decisions[-1])
    assert selection._decisions[-1].chosen == "lowering"


@pytest.mark.parametrize(
    "kernel", [lambda x: 1 // 0, lambda x: x[..., :-1]], ids=["raises", "gives another shape"]
)
def test_the_lowering_serves_where_a_kernel_fails(relu, kernel):
    with pytest.warns(UserWarning, match=r"kernel acme\.k failed, the lowering serves aten::relu"):
        got = relu(pack_with(kernel), torch.tensor([-1.0, 2.0]))
    assert got.tolist() == [0.0, 2.0]


def test_a_failure_is_an_error_where_kernels_are_required(relu, monkeypatch):
    monkeypatch.setenv("TORCHTPU_KERNELS", "require")
    with pytest.raises(ZeroDivisionError):
        relu(pack_with(lambda x: 1 // 0), torch.ones(3))


def test_a_kernel_can_be_switched_off(relu, monkeypatch):
    monkeypatch.setenv("TORCHTPU_KERNELS", "-acme.k")
    assert relu(pack_with(lambda x: x * 0 + 7), torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_results_have_the_lowerings_dtype(relu):
    got = relu(pack_with(lambda x: x.astype("float32")), torch.ones(3, dtype=torch.bfloat16))
    assert got.dtype == torch.bfloat16


def test_a_key_is_decided_once(relu):
    pack = pack_with(lambda x: x * 0 + 7, only_wide)
    with registry.use({"toy": toy.pack, "acme": pack}):
        selection.forget()
        for _ in range(3):
            assert torch.relu(torch.ones(2, 8, device="tpu")).unique().tolist() == [7.0]
        assert [d.chosen for d in selection.decisions()] == ["acme.k"]


def doubled(x):
    from jax.experimental import pallas as pl

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    call = pl.pallas_call(body, grid=(x.shape[0],), in_specs=[block], out_specs=block, out_shape=x)
    return jax.lax.cond(x.shape[0] > 1, call, lambda x: x, x)  # a kernel within another program


@pytest.mark.parametrize("mode", ["strict", "debug", "fused"])
def test_a_pallas_kernel_is_interpreted_where_there_is_no_tpu(relu, mode, monkeypatch):
    monkeypatch.setenv("TORCHTPU_KERNELS", "require")
    x = torch.randn(2, 8)
    with torchtpu.mode(mode):
        assert relu(pack_with(doubled), x).equal(x * 2)


def test_torch_compile_chooses_as_well(relu):
    pack = pack_with(lambda x: x * 0 + 7, only_wide)
    with registry.use({"toy": toy.pack, "acme": pack}):
        fn = torch.compile(lambda x: torch.relu(x), backend="tpu")
        assert fn(torch.ones(2, 8, device="tpu")).unique().tolist() == [7.0]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_program_for_an_absent_device_holds_its_kernel():
    strict = torchtpu.mode("strict")  # its programs bear their operator's name
    with strict, registry.use({"toy": toy.pack}), topology.targeting("v5e:2x2"), topology.collect() as found:
        selection.forget()
        x = torch.randn(32, 128, device="tpu")
        # here the lowering runs
        torch.testing.assert_close(toy.softsign(x).cpu(), torch.nn.functional.softsign(x.cpu()))
    program = next(p for p in found if "softsign" in p.name)
    assert "tpu_custom_call" in program.compile_for("v5e:2x2").hlo
    chosen = [d.chosen for d in selection.decisions() if d.call.target == "tpu"]
    assert chosen == ["toy.tiled"]


def uncompilable(x):
    """It can be traced, and no compiler finds what it calls."""
    return jax.ffi.ffi_call("torchtpu_nowhere", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.mark.parametrize("how", ["strict", "fused", "compiled"])
def test_a_kernel_that_its_compiler_refuses_leaves_the_call_to_the_lowering(relu, how):
    selection.forget()
    calls = []

    def unsuitable(call):
        calls.append(call)

    with registry.use({"toy": toy.pack, "acme": pack_with(uncompilable, unsuitable)}):
        x = torch.tensor([-1.0, 2.0], device="tpu")
        fn = torch.compile(torch.relu, backend="tpu") if how == "compiled" else torch.relu
        with torchtpu.mode("strict" if how == "compiled" else how):
            with pytest.warns(UserWarning, match=r"kernel acme\.k failed, the lowering serves aten::relu"):
                assert fn(x).tolist() == [0.0, 2.0]
            # from now on nothing tries it
            assert torch.relu(torch.ones(3, 5, device="tpu")).tolist() == [[1.0] * 5] * 3
    assert len(calls) == 1
    selection.forget()
