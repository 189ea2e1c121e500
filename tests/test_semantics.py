"""What PyTorch users expect beyond values: errors, promotion, strides, out=, scalars, threads, memory."""

import os
import threading
import warnings
from functools import partial

import pytest
import torch

import torchtpu
from torchtpu.runtime import program


def both(fn, *tensors):
    """The result on CPU and on tpu."""
    return fn(*tensors), fn(*[t.to("tpu") for t in tensors])


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: a + torch.ones(5, device=a.device),
        lambda a: a @ torch.ones(5, 2, device=a.device),
        lambda a: a.view(7),
        lambda a: torch.cat([a, torch.ones(2, 2, 2, device=a.device)]),
        lambda a: a.add_(torch.ones(2, 3, 4, device=a.device)),
    ],
)
def test_shape_errors_have_torchs_words(fn):
    a = torch.ones(3, 4)
    with pytest.raises(RuntimeError) as want:
        fn(a)
    with pytest.raises(RuntimeError) as got:
        fn(a.to("tpu"))
    assert str(got.value) == str(want.value)


PROMOTED = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("right", PROMOTED, ids=str)
@pytest.mark.parametrize("left", PROMOTED, ids=str)
def test_promotion_of_add(left, right):
    a, b = torch.ones(2).to(left), torch.ones(2).to(right)
    want, got = both(torch.add, a, b)
    assert got.dtype == want.dtype and got.cpu().equal(want)


@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("dtype", PROMOTED, ids=str)
def test_promotion_with_numbers_and_zero_dim(dtype, number):
    x = torch.ones(3).to(dtype)
    want, got = both(lambda t: t * number, x)
    assert got.dtype == want.dtype and got.cpu().equal(want)
    want, got = both(lambda t: t * torch.tensor(number), x)
    assert got.dtype == want.dtype and got.cpu().equal(want)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.t() + 1,
        lambda x: x.t().exp(),
        lambda x: x.t() @ x,
        lambda x: x.sum(0, keepdim=True),
        lambda x: torch.empty_like(x.t()),
        lambda x: x.unsqueeze(0).unsqueeze(0).to(memory_format=torch.channels_last).relu(),
        lambda x: x[:, ::2].clone(),
    ],
)
def test_strides_equal_cpu(fn):
    want, got = both(fn, torch.randn(4, 6))
    assert got.stride() == want.stride() and got.shape == want.shape


def test_out_resizes_and_writes():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    out = torch.empty(0, device="tpu")
    result = torch.add(a.to("tpu"), b.to("tpu"), out=out)
    assert result is out and out.cpu().equal(a + b)
    strided = torch.zeros(4, 3, device="tpu").t()
    torch.mul(a.to("tpu"), b.to("tpu"), out=strided)
    assert strided.cpu().equal(a * b)


def test_varying_scalars_do_not_compile():
    x = torch.ones(11, device="tpu")
    y = torch.add(x, x, alpha=0.25) * 1.5
    before = program.compilations[0]
    for i in range(5):
        y = torch.add(x, x, alpha=0.5 + i) * (2.5 + i)
        x.add_(0.0)
    assert y.cpu().equal(torch.full((11,), (1 + 4.5) * 6.5))
    assert program.compilations[0] - before <= 1, "a new scalar made a new program"


def test_view_inputs_cost_no_launch():
    x = torch.randn(6, 8, device="tpu")
    with torchtpu.mode("strict"):
        x.t() + x.t()
        before = program.launches[0]
        x.t() + x.t()
        x[1:3].add_(1)
        assert program.launches[0] - before == 2


def test_mixed_devices_is_an_error():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3, device="tpu") + torch.ones(3)


def test_autograd_through_inplace_on_views():
    x = torch.randn(4, 4)
    grads = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().clone().to(device).requires_grad_()
        y = leaf * 2
        y[1:3].mul_(3)
        y.t()[0] = 1.0
        (y * y).sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(*grads)


def test_saved_tensor_overwritten_is_an_error():
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_random_is_reproducible_and_forkable():
    torch.manual_seed(5)
    a = torch.randn(4, device="tpu").cpu()
    state = torch.tpu.get_rng_state()
    b = torch.rand(4, device="tpu").cpu()
    torch.tpu.set_rng_state(state)
    assert torch.rand(4, device="tpu").cpu().equal(b)
    torch.manual_seed(5)
    assert torch.randn(4, device="tpu").cpu().equal(a)
    generator = torch.tpu.Generator().manual_seed(1)
    c = torch.randn(4, device="tpu", generator=generator).cpu()
    assert torch.randn(4, device="tpu", generator=generator.manual_seed(1)).cpu().equal(c)


def test_autocast():
    a, b = torch.randn(4, 4, device="tpu"), torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
        assert torch.nn.functional.softmax(a @ b, -1).dtype == torch.float32


def test_debug_mode_names_operator_and_line():
    x = torch.tensor([1.0, -1.0], device="tpu")
    with torchtpu.mode("debug"):
        assert (x + 1).cpu().tolist() == [2, 0]
        with pytest.raises(
            FloatingPointError, match=r"(?s)NaN.*aten::log\(float32\[2\]\).*test_semantics.py"
        ):
            torch.log(x)
        with pytest.raises(RuntimeError, match=r"(?s)must match.*aten::add.*test_semantics.py"):
            x + torch.ones(3, device="tpu")
        with pytest.raises(IndexError, match=r"(?s)out of (range|bounds).*test_semantics.py"):
            x[torch.tensor([5], device="tpu")]
    assert torch.log(x).isnan().any()


def test_out_of_memory_is_torchs_error():
    with torchtpu.mode("debug"), pytest.raises((torch.OutOfMemoryError, RuntimeError), match="(?i)memory"):
        torch.empty(2**50, device="tpu").add_(1)


def test_modes_nest_and_reject():
    assert torchtpu.get_mode() == os.environ.get("TORCHTPU_MODE", "strict")
    with torchtpu.mode("debug"):
        with torchtpu.mode("strict"):
            assert torchtpu.get_mode() == "strict"
        assert torch.tpu.eager_mode() is torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    with pytest.raises(ValueError, match="unknown mode"):
        torchtpu.set_mode("fast")


def test_two_threads():
    results = {}

    def work(seed):
        x = torch.full((8, 8), float(seed)).to("tpu")
        for _ in range(50):
            x = x + x.t() * 0.5
            x.mul_(0.5)
        results[seed] = x.cpu()

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert torch.allclose(results[1] * 2, results[2]) and len(results) == 2


def test_interop_with_jax():
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    array = torchtpu.to_jax(x)
    x.add_(1)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    y = torchtpu.from_jax(array)
    y.mul_(2)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and y.cpu()[1].tolist() == [6, 8, 10]


def test_steps_compile_nothing_and_keep_memory():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 8, device="tpu"), torch.tensor([0, 1, 0, 1], device="tpu")

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    compiled, live = program.compilations[0], len(torchtpu.to_jax(x).device.client.live_arrays())
    for _ in range(200):
        step()
    assert program.compilations[0] == compiled
    assert len(torchtpu.to_jax(x).device.client.live_arrays()) <= live + 12000  # the scalar cache is bounded


def test_dataloader_with_fork_workers():
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    torch.ones(1, device="tpu").cpu()
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    assert sum(batch.to("tpu").sum().item() for (batch,) in loader) == 66


@pytest.mark.parametrize(
    "make", [torch.ones, torch.randn, torch.empty, torch.arange], ids=lambda f: f.__name__
)
def test_another_device_is_an_error_for_every_factory(make):
    with pytest.raises(RuntimeError, match="invalid device tpu:1"):
        make(3, device="tpu:1")


def test_pinned_memory_is_asked_for_in_vain_and_without_an_error():
    x = torch.randn(3, 4)
    pinned = x.pin_memory()
    assert pinned.equal(x) and pinned.data_ptr() != x.data_ptr()
    loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=3, pin_memory=True, num_workers=1)
    assert [b.to("tpu", non_blocking=True).sum().item() for b in loader] == [3.0, 12.0]


def test_a_host_copy_that_need_not_block_has_its_values_on_return():
    x = torch.arange(6.0).reshape(2, 3)
    moved = x.to("tpu").t().to("cpu", torch.float64, non_blocking=True)
    assert torch.equal(moved, x.t().double()) and moved.stride() == (1, 3)
    layer = torch.nn.Linear(2, 2).to("tpu")
    assert layer.to("cpu", non_blocking=True).weight.device.type == "cpu"


@pytest.mark.parametrize("mode", ["strict", "fused", "debug"])
def test_a_factory_like_a_tensor_goes_where_it_is_told(mode):
    x = torch.ones(2, 3, device="tpu")
    with torchtpu.mode(mode):
        for make in (torch.zeros_like, torch.ones_like, partial(torch.full_like, fill_value=4)):
            assert make(x).device.type == make(x, device="tpu").device.type == "tpu"
            assert make(x, device="meta").device.type == "meta"
            got = make(x, device="cpu", dtype=torch.float64)
            assert got.device.type == "cpu"
            assert got.equal(make(torch.ones(2, 3), dtype=torch.float64))


def test_a_padded_batch_in_a_transformer():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        want = model(x, src_key_padding_mask=padding)
        got = model.to("tpu")(x.to("tpu"), src_key_padding_mask=padding.to("tpu"))
    torch.testing.assert_close(got.cpu()[~padding], want[~padding], rtol=1e-4, atol=1e-5)
