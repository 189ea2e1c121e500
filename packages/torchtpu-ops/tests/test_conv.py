"""Convolutions and their gradients agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten
CASES = [  # stride, padding, dilation, output padding, groups
    (1, 0, 1, 0, 1),
    (2, 1, 1, 1, 1),
    (2, 1, 2, 0, 2),
    (3, 2, 1, 2, 4),
]


def gradients(device, x, weight, bias, cotangent, *args):
    leaves = [None if t is None else t.detach().to(device).requires_grad_() for t in (x, weight, bias)]
    out = aten.convolution(*leaves, *args)
    out.backward(cotangent(out.shape).to(device))
    return [out.detach().cpu(), *(t.grad.cpu() for t in leaves if t is not None)]


def compare(x, weight, bias, *args, **tolerance):
    seed = torch.randint(1 << 30, ()).item()

    def cotangent(shape):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
            x.dtype
        )

    want, got = (gradients(d, x, weight, bias, cotangent, *args) for d in ("cpu", "tpu"))
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, **tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank, transposed, case):
    stride, padding, dilation, extra, groups = case
    x = torch.randn(2, 4, *[7, 8, 6][:rank], dtype=torch.float64)
    channels = (4, 8 // groups) if transposed else (8, 4 // groups)
    weight = torch.randn(*channels, *[3, 2, 3][:rank], dtype=torch.float64)
    sizes = [[v] * rank for v in (stride, padding, dilation)]
    extra = [extra if transposed else 0] * rank
    compare(x, weight, torch.randn(8, dtype=torch.float64), *sizes, transposed, extra, groups)
    compare(x, weight, None, *sizes, transposed, extra, groups)


@pytest.mark.parametrize("transposed", [False, True])
def test_sizes_per_axis(transposed):
    x, weight = torch.randn(1, 3, 9, 10, dtype=torch.float64), torch.randn(3, 3, 3, 2, dtype=torch.float64)
    compare(x, weight, None, [3, 2], [2, 0], [1, 2], transposed, [1, 1] if transposed else [0, 0], 1)
    compare(x, weight, None, [2], [1], [1], transposed, [0], 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_short_floats(dtype, transposed):
    x, weight, bias = (torch.randn(s).to(dtype) for s in ((2, 4, 8, 8), (4, 4, 3, 3), (4,)))
    args = [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1
    compare(x, weight, bias, *args, rtol=3e-2, atol=1e-1)


def test_without_batch():
    x, weight = torch.randn(3, 8, 8), torch.randn(5, 3, 3, 3)

    def run(device):
        return torch.nn.functional.conv2d(x.to(device), weight.to(device), padding="same").cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_only_the_wanted_gradients(mask):
    g, x, weight = (torch.randn(s, dtype=torch.float64) for s in ((2, 4, 6, 6), (2, 3, 8, 8), (4, 3, 3, 3)))
    args = [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask
    want = aten.convolution_backward(g, x, weight, *args)
    got = aten.convolution_backward(g.to("tpu"), x.to("tpu"), weight.to("tpu"), *args)
    for w, t, wanted in zip(want, got, mask, strict=True):
        if wanted:
            torch.testing.assert_close(t.cpu(), w)
        else:
            assert t is None
