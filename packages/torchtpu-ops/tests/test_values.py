"""Values of the lowerings against CPU torch, forward and backward, through the device."""

import pytest
import torch
import torch.nn.functional as F


def compare(fn, *tensors, tolerance=1e-5):
    """Forward and, for floats, backward of ``fn`` on both devices."""
    host = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    device = [t.detach().clone().to("tpu").requires_grad_(t.is_floating_point()) for t in tensors]
    want, got = fn(*host), fn(*device)
    assert got.dtype == want.dtype and got.shape == want.shape
    torch.testing.assert_close(
        got.detach().cpu(), want.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    if want.requires_grad:
        weight = torch.randn(want.shape, dtype=want.dtype)
        (want * weight).sum().backward()
        (got * weight.to("tpu")).sum().backward()
        for a, b in zip(device, host, strict=True):
            if b.grad is not None:
                torch.testing.assert_close(
                    a.grad.cpu(), b.grad, rtol=tolerance, atol=tolerance, equal_nan=True
                )


UNARY = [
    torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.sin, torch.tanh, torch.sigmoid, torch.abs, torch.erf,
    torch.relu, F.gelu, F.silu, F.elu, F.leaky_relu, F.hardtanh, F.hardswish, F.hardsigmoid, F.softplus, F.mish,
    F.logsigmoid, torch.reciprocal, torch.square, lambda x: x**3, lambda x: x**0.5, torch.lgamma, torch.log1p,
    lambda x: F.gelu(x, approximate="tanh"), lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, 0),
    lambda x: x.sum(1), lambda x: x.mean((0, 1), keepdim=True), lambda x: x.var(0), lambda x: x.std(),
    lambda x: x.max(1).values, lambda x: x.amin(0), lambda x: x.prod(1), lambda x: x.cumsum(1), lambda x: x.norm(),
    lambda x: x.logsumexp(1), lambda x: x.clamp(0.2, 0.8), lambda x: F.glu(x, 1), lambda x: F.softshrink(x, 0.3),
]  # fmt: skip


@pytest.mark.parametrize("fn", UNARY, ids=range(len(UNARY)))
def test_functions_of_one_tensor(fn):
    compare(fn, torch.rand(3, 4, dtype=torch.float64) + 0.1)


BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.atan2, torch.pow, torch.fmod,
    lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.lerp(a, b, 0.3), lambda a, b: a @ b.t(),
    lambda a, b: torch.addcmul(a, a, b, value=0.5), lambda a, b: torch.addcdiv(a, a, b, value=2),
    lambda a, b: torch.addmm(a @ b.t(), a, b.t(), beta=0.5, alpha=2), F.mse_loss, F.smooth_l1_loss, F.huber_loss,
    lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()), lambda a, b: F.kl_div(a, b),
    lambda a, b: torch.div(a, b, rounding_mode="floor").detach(), lambda a, b: torch.remainder(a, b),
]  # fmt: skip


@pytest.mark.parametrize("fn", BINARY, ids=range(len(BINARY)))
def test_functions_of_two_tensors(fn):
    compare(fn, torch.rand(3, 4, dtype=torch.float64) + 0.1, torch.rand(3, 4, dtype=torch.float64) + 0.1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers(dtype):
    a, b = torch.randint(0, 9, (4, 3)).to(dtype), torch.randint(1, 9, (4, 3)).to(dtype)
    for fn in (
        torch.add,
        torch.mul,
        torch.div,
        torch.bitwise_and,
        torch.eq,
        torch.remainder,
        torch.floor_divide,
    ):
        compare(fn, a, b)
    compare(lambda x: x.sum(), a)
    compare(lambda x: x.argmax(1), a)
    compare(lambda x: (x > 3).any(0), a)


def test_bfloat16_computes_in_float32():
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    for fn in (torch.add, torch.mul, lambda x, y: F.softmax(x * y, -1), lambda x, y: x @ y.t()):
        compare(fn, a, b, tolerance=1e-2)


CONVS = [
    (1, {}), (2, {"stride": 2, "padding": 1}), (2, {"dilation": 2, "padding": 2}), (3, {"padding": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("dims", "options"), CONVS)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(dims, options, groups):
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    x = torch.randn(2, 4, *[6] * dims, dtype=torch.float64)
    w = torch.randn(6, 4 // groups, *[3] * dims, dtype=torch.float64)
    compare(lambda *t: conv(*t, groups=groups, **options), x, w, torch.randn(6, dtype=torch.float64))


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(groups):
    x, w = torch.randn(2, 4, 5, 5, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    options = {"stride": 2, "padding": 1, "output_padding": 1, "groups": groups}
    compare(lambda *t: F.conv_transpose2d(*t, **options), x, w, torch.randn(3 * groups, dtype=torch.float64))


POOLS = [
    lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), lambda x: F.avg_pool2d(x, 2),
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), lambda x: F.avg_pool2d(x, 3, 2, 1),
    lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("fn", POOLS, ids=range(len(POOLS)))
def test_pooling(fn):
    compare(fn, torch.randn(2, 3, 7, 8, dtype=torch.float64))


def test_normalisation():
    x, w, b = torch.randn(4, 6, 5, dtype=torch.float64), torch.rand(6).double(), torch.rand(6).double()
    compare(lambda t, u, v: F.group_norm(t, 3, u, v), x, w, b)
    compare(lambda t, u, v: F.layer_norm(t.transpose(1, 2), (6,), u, v), x, w, b)
    compare(lambda t, u, v: F.batch_norm(t, None, None, u, v, training=True), x, w, b)


def test_batch_norm_moves_its_running_statistics():
    layers = [torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).to("tpu")]
    x = torch.randn(8, 3)
    for layer in layers:
        layer(x.to(layer.weight.device))
    torch.testing.assert_close(layers[1].running_mean.cpu(), layers[0].running_mean)
    torch.testing.assert_close(layers[1].running_var.cpu(), layers[0].running_var)
    for layer in layers:
        layer.eval()
    torch.testing.assert_close(layers[1](x.to("tpu")).cpu(), layers[0](x))


def test_classification_losses_and_embedding():
    target = torch.tensor([0, 2, -100, 1])
    x, w = torch.randn(4, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    compare(lambda t: F.cross_entropy(t, target.to(t.device)), x)
    compare(lambda t: F.cross_entropy(t, target.to(t.device), w.to(t.device), label_smoothing=0.1), x)
    compare(lambda t: F.embedding(target.clamp(0).to(t.device), t, padding_idx=1), torch.randn(5, 3).double())
