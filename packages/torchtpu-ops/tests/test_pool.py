"""Pooling and its gradients agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten
F64 = torch.float64
WINDOWS = [  # kernel, stride, padding
    ([2], [], [0]),
    ([3, 2], [2, 3], [1, 0]),
    ([3], [2], [1]),
    ([4, 5], [3, 4], [2, 1]),
]


def both(op, x, *args):
    """Values and the gradient of the first result, on the CPU and on the device."""
    results, cotangent = [], None
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_()
        out = op(leaf, *args)
        out = out if isinstance(out, tuple) else (out,)
        if cotangent is None:
            cotangent = torch.randn(out[0].shape, dtype=F64).to(x.dtype)
        out[0].backward(cotangent.to(device))
        results.append([*(t.detach().cpu() for t in out), leaf.grad.cpu()])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel,stride,padding", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 11, 12), (3, 10, 13)], ids=str)
def test_max(shape, kernel, stride, padding, dilation, ceil):
    args = kernel, stride, padding, [dilation], ceil
    both(aten.max_pool2d_with_indices, torch.randn(shape, dtype=F64), *args)
    ties = torch.randint(-1, 2, shape).to(torch.float32)
    both(aten.max_pool2d_with_indices, ties, *args)


def test_max_of_what_is_no_number(check):
    x = torch.randn(2, 6, 7)
    x[0, 2, 3] = x[0, 3, 3] = float("nan")
    x[1] = float("-inf")
    both(aten.max_pool2d_with_indices, x, [3], [2], [1])
    check(aten.max_pool2d_with_indices, torch.randint(-9, 9, (1, 6, 7)), [3], [2], [1])
    both(aten.max_pool2d_with_indices, torch.randn(1, 2, 8, 8).bfloat16(), [2])


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("kernel,stride,padding", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 11, 12), (3, 10, 13)], ids=str)
def test_average(shape, kernel, stride, padding, divisor, include, ceil):
    both(aten.avg_pool2d, torch.randn(shape, dtype=F64), kernel, stride, padding, ceil, include, divisor)


@pytest.mark.parametrize("size", [[1, 1], [2, 3], [5, 7], [8, 9], [11, 3]], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (3, 8, 9)], ids=str)
def test_adaptive(shape, size):
    both(aten._adaptive_avg_pool2d, torch.randn(shape, dtype=F64), size)


def test_infinity_stays_in_its_window():
    x = torch.randn(1, 1, 7, 7)
    x[..., 0, 0] = float("inf")
    both(aten._adaptive_avg_pool2d, x, [3, 3])
    both(aten.avg_pool2d, x, [3], [2], [1])


def test_short_floats():
    x = torch.randn(1, 2, 8, 8).bfloat16()
    both(aten.avg_pool2d, x, [2])
    both(aten._adaptive_avg_pool2d, x, [2, 4])


def test_overlapping_short_floats():
    x, g = torch.randn(1, 2, 8, 8).bfloat16(), torch.randn(1, 2, 3, 5).bfloat16()
    # the CPU adds up where windows overlap in bfloat16 itself, so its gradient is no measure
    want = aten._adaptive_avg_pool2d_backward(g.double(), x.double())
    got = aten._adaptive_avg_pool2d_backward(g.to("tpu"), x.to("tpu")).cpu()
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-6)


CUBES = [([2], [], [0]), ([3, 2, 2], [2, 3, 1], [1, 0, 1]), ([3], [2], [1])]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("kernel,stride,padding", CUBES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 6, 7, 5), (3, 5, 6, 7)], ids=str)
def test_three_dimensions(shape, kernel, stride, padding, ceil):
    x = torch.randn(shape, dtype=F64)
    for dilation in ([1], [1, 2, 1]):
        both(aten.max_pool3d_with_indices, x, kernel, stride, padding, dilation, ceil)
    both(
        aten.max_pool3d_with_indices, torch.randint(-1, 2, shape).float(), kernel, stride, padding, [1], ceil
    )
    for include, divisor in ((True, None), (False, None), (True, 3)):
        both(aten.avg_pool3d, x, kernel, stride, padding, ceil, include, divisor)


@pytest.mark.parametrize("size", [[1, 1, 1], [2, 3, 5], [4, 7, 2], [6, 7, 5]], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 6, 7, 5), (3, 6, 7, 5)], ids=str)
def test_adaptive_in_three_dimensions(shape, size):
    both(aten._adaptive_avg_pool3d, torch.randn(shape, dtype=F64), size)
    both(aten.adaptive_max_pool3d, torch.randn(shape, dtype=F64), size)


@pytest.mark.parametrize("size", [[1, 1], [2, 3], [5, 7], [8, 9]], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (3, 8, 9)], ids=str)
def test_adaptive_max(shape, size):
    both(aten.adaptive_max_pool2d, torch.randn(shape, dtype=F64), size)
    both(aten.adaptive_max_pool2d, torch.randint(-1, 2, shape).float(), size)
    x = torch.randn(shape)
    x[..., 2:4, 3] = float("nan")
    x[..., 0, :] = float("-inf")
    both(aten.adaptive_max_pool2d, x, size)
    both(aten.adaptive_max_pool2d, torch.randn(shape).bfloat16(), [1, 3])
