"""Batch, layer and group normalisation and their gradients agree with the CPU."""

import copy

import pytest
import torch

aten = torch.ops.aten
F = torch.nn.functional
F64 = torch.float64
SHAPES = [(5, 4), (3, 4, 6), (2, 4, 5, 3), (2, 4, 3, 2, 3)]


def both(op, *tensors, **tolerance):
    """Values and gradients of all tensors, on the CPU and on the device."""
    results, cotangent = [], None
    for device in ("cpu", "tpu"):
        leaves = [None if t is None else t.detach().to(device).requires_grad_() for t in tensors]
        out = op(*leaves)
        cotangent = torch.randn(out.shape, dtype=F64).to(out.dtype) if cotangent is None else cotangent
        out.backward(cotangent.to(device))
        results.append([out.detach().cpu(), *(t.grad.cpu() for t in leaves if t is not None)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, **tolerance)


def affine(on, *shape):
    return [torch.randn(shape, dtype=F64) if on else None for _ in range(2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_batch_norm(shape, on, training, tracked):
    if not (training or tracked):
        pytest.skip("without statistics there is nothing to evaluate with")
    start = (torch.randn(4, dtype=F64), torch.rand(4, dtype=F64) + 0.5) if tracked else (None, None)
    kept = []

    def op(x, weight, bias):
        running = [None if t is None else t.to(x.device, copy=True) for t in start]
        kept.append(running)
        return F.batch_norm(x, *running, weight, bias, training, 0.3, 1e-3)

    both(op, torch.randn(shape, dtype=F64) * 3 + 1, *affine(on, 4))
    if tracked:
        for want, got, before in zip(*kept, start, strict=True):
            torch.testing.assert_close(got.cpu(), want)
            assert torch.equal(want, before) is not training


@pytest.mark.parametrize("training", [False, True])
def test_saved_statistics(check, training):
    def op(x, *stats):
        results = aten.native_batch_norm(x, None, None, *(t.clone() for t in stats), training, 0.1, 1e-5)
        # in evaluation nothing is saved: empty on the CPU, of the meta kernel's shape on the device
        return results if training else results[0]

    check(op, torch.randn(3, 4, 5), torch.randn(4), torch.rand(4) + 1)


def test_module_follows_the_cpu():
    cpu = torch.nn.BatchNorm2d(4)
    tpu = copy.deepcopy(cpu).to("tpu")
    for _ in range(3):
        x = torch.randn(2, 4, 5, 5) * 2 + 1
        torch.testing.assert_close(tpu(x.to("tpu")).cpu(), cpu(x), rtol=1e-4, atol=1e-5)
    for name, want in cpu.state_dict().items():
        torch.testing.assert_close(tpu.state_dict()[name].cpu(), want)
    torch.testing.assert_close(tpu.eval()(x.to("tpu")).cpu(), cpu.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 4, 5)], ids=str)
def test_layer_norm(shape, on, dims):
    normal = list(shape[-dims:])
    both(
        lambda x, w, b: F.layer_norm(x, normal, w, b, 1e-3),
        torch.randn(shape, dtype=F64),
        *affine(on, *normal),
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_group_norm(shape, on, groups):
    both(lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3), torch.randn(shape, dtype=F64), *affine(on, 4))


def test_saved_moments(check):
    check(aten.native_layer_norm, torch.randn(2, 3, 5), [5], torch.randn(5), None, 1e-5)
    check(aten.native_group_norm, torch.randn(2, 4, 6), None, torch.randn(4), 2, 4, 6, 2, 1e-5)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32], ids=str)
def test_short_floats(parameters):
    # four nearly equal numbers would be divided by a deviation that bfloat16 hardly resolves, on the CPU too
    torch.manual_seed(0)
    x = torch.randn(4, 4, 6).bfloat16()
    w, b = torch.randn(4).to(parameters), torch.randn(4).to(parameters)
    close = {"rtol": 3e-2, "atol": 6e-2}
    stats = torch.zeros(4, dtype=parameters), torch.ones(4, dtype=parameters)

    def batch(*args):
        return F.batch_norm(args[0], *(t.to(args[0].device, copy=True) for t in stats), *args[1:], True)

    both(batch, x, w, b, **close)
    both(lambda *a: F.group_norm(a[0], 2, *a[1:]), x, w, b, **close)
    both(lambda *a: F.layer_norm(a[0].mT, [4], *a[1:]), x, w, b, **close)


def test_batch_norm_by_its_other_names():
    x, w, b = torch.randn(3, 4, 5, dtype=F64), *affine(True, 4)
    start = torch.randn(4, dtype=F64), torch.rand(4, dtype=F64) + 0.5

    def results(device):
        t, u, v = (a.to(device) for a in (x, w, b))
        kept = [a.to(device, copy=True) for a in start]
        out = [*aten._native_batch_norm_legit_functional(t, u, v, *kept, True, 0.3, 1e-3)]
        out += aten._native_batch_norm_legit_no_training(t, u, v, *kept, 0.3, 1e-3)[:1]
        out += aten._native_batch_norm_legit.no_stats(t, u, v, True, 0.3, 1e-3)
        out += aten._native_batch_norm_legit(t, u, v, *kept, True, 0.3, 1e-3)
        return [a.cpu() for a in (*out, *kept)]

    for got, want in zip(results("tpu"), results("cpu"), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 4, 5)], ids=str)
def test_rms_norm(shape, dims, eps):
    normal = list(shape[-dims:])
    for weight in (None, torch.randn(normal, dtype=F64)):
        both(lambda x, w: F.rms_norm(x, normal, w, eps), torch.randn(shape, dtype=F64), weight)
    both(lambda x, w: F.rms_norm(x, normal, w, eps), torch.randn(shape), torch.randn(normal))
    # inputs near the epsilon show which one is taken
    # XLA may round the product and the sum in front of the root together: two units in the last place
    both(lambda x: F.rms_norm(x, normal, None, eps), torch.randn(shape) * 1e-4, rtol=5e-6, atol=1e-5)
    short = torch.randn(shape).bfloat16(), torch.randn(normal).bfloat16()
    both(lambda x, w: F.rms_norm(x, normal, w, eps), *short, rtol=3e-2, atol=6e-2)


def test_batch_norm_with_update(check):
    x, w = torch.randn(4, 3, 5), torch.rand(3)
    out = []
    for device in ("cpu", "tpu"):
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        results = torch.ops.aten._batch_norm_with_update(
            x.to(device), w.to(device), w.to(device), mean, var, 0.3, 1e-5
        )
        out.append([t.cpu() for t in (*results, mean, var)])
    torch.testing.assert_close(*out)


@pytest.mark.parametrize("dim", [0, 2])
def test_gradient_of_weight_norm(check, dim):
    v = torch.randn(4, 3, 2)
    norms = v.norm(2, [i for i in range(3) if i != dim], keepdim=True)
    g = torch.rand_like(norms)
    check(torch.ops.aten._weight_norm_interface_backward, torch.randn(4, 3, 2), v, g, norms, dim)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_parts_of_normalisation_over_ranks(dtype, affine):
    """Three parts of a batch, put together as `SyncBatchNorm` does, are the whole batch on the CPU in float64."""
    whole = torch.randn(9, 4, 3).to(dtype)
    parts = [p.to("tpu") for p in whole.split([2, 3, 4])]
    weight, bias = (torch.rand(4).to(dtype) + 0.5 if affine else None for _ in range(2))
    running = [torch.zeros(4), torch.ones(4)]
    x = whole.double().requires_grad_()
    leaves = [None if t is None else t.double().requires_grad_() for t in (weight, bias)]
    want_running = [t.double() for t in running]
    want = torch.nn.functional.batch_norm(x, *want_running, *leaves, training=True, momentum=0.3, eps=1e-3)
    grads = torch.randn(9, 4, 3).to(dtype)
    want.backward(grads.double())
    device = [None if t is None else t.to("tpu") for t in (weight, bias)]
    new_running = [t.to("tpu") for t in running]
    mean, invstd = (
        torch.stack(t) for t in zip(*[torch.batch_norm_stats(p, 1e-3) for p in parts], strict=True)
    )
    counts = torch.tensor([6.0, 9.0, 12.0], device="tpu", dtype=mean.dtype)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0], mean, invstd, *new_running, 0.3, 1e-3, counts
    )
    out = torch.cat([torch.batch_norm_elemt(p, *device, mean, invstd, 1e-3) for p in parts])
    pieces = list(zip([g.to("tpu") for g in grads.split([2, 3, 4])], parts, strict=True))
    sums = [
        torch.batch_norm_backward_reduce(g, p, mean, invstd, device[0], True, affine, affine)
        for g, p in pieces
    ]
    total = [torch.stack([s[i] for s in sums]).sum(0) for i in (0, 1)]
    back = torch.cat(
        [
            torch.batch_norm_backward_elemt(g, p, mean, invstd, device[0], *total, counts.int())
            for g, p in pieces
        ]
    )
    pairs = [(out, want), (back, x.grad), *zip(new_running, want_running, strict=True)]
    if affine:
        pairs += [(torch.stack([s[2 + i] for s in sums]).sum(0), leaf.grad) for i, leaf in enumerate(leaves)]
    close = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]  # running ones are float32
    for got, truth in pairs:
        torch.testing.assert_close(got.cpu().double(), truth.detach(), rtol=close, atol=close)
    assert out.dtype == back.dtype == dtype


@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_statistics_alone(momentum):
    x, running = torch.randn(5, 3, 2), [torch.rand(3), torch.rand(3)]
    device = [t.to("tpu") for t in running]
    want = torch.batch_norm_update_stats(x, *running, momentum)
    got = torch.batch_norm_update_stats(x.to("tpu"), *device, momentum)
    for a, b in zip((*got, *device), (*want, *running), strict=True):
        torch.testing.assert_close(a.cpu(), b)
    assert len(torch.batch_norm_update_stats(x.to("tpu"), None, None, momentum)) == 2
