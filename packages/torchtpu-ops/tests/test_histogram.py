"""Histograms agree with the CPU."""

import pytest
import torch

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_even_bins(check, dtype, weighted, density):
    x = torch.randn(4, 25, dtype=dtype)
    weight = torch.rand(4, 25, dtype=dtype) if weighted else None
    for bounds in (None, (-1.0, 0.5)):
        check(torch.histogram, x, 7, range=bounds, weight=weight, density=density)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_given_edges(check, dtype):
    # elements on every edge, the last of which is closed, and outside
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 0.5, 2.0, 3.0, torch.nan], dtype=dtype)
    check(torch.histogram, x, torch.tensor([-1.0, 0.5, 2.0], dtype=dtype))


def test_data_without_extent(check):
    check(torch.histogram, torch.full((5,), 2.5), 4)
    check(torch.histogram, torch.zeros(0), 3)
    check(torch.histogram, torch.randn(6), 3, range=(1.0, 1.0))


@pytest.mark.parametrize("weighted", [False, True])
def test_several_coordinates(weighted):
    x = torch.randn(40, 2)
    weight = torch.rand(40) if weighted else None
    for bins in ([3, 4], [torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-2.0, 1.0])]):
        there = [b.to("tpu") if isinstance(b, torch.Tensor) else b for b in bins]
        want = torch.histogramdd(x, bins, weight=weight, density=True)
        got = torch.histogramdd(
            x.to("tpu"), there, weight=weight if weight is None else weight.to("tpu"), density=True
        )
        torch.testing.assert_close(got.hist.cpu(), want.hist)
        torch.testing.assert_close([e.cpu() for e in got.bin_edges], list(want.bin_edges))


def test_out_is_resized():
    x = torch.randn(30)
    outs = torch.zeros(1, device="tpu"), torch.zeros(0, device="tpu")
    torch.histogram(x.to("tpu"), 5, out=outs)
    for got, want in zip(outs, torch.histogram(x, 5), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_histc_and_bincount(check):
    check(torch.histc, torch.randn(50), 6)
    check(torch.histc, torch.randn(50), 6, -1.0, 1.0)
    check(torch.bincount, torch.randint(0, 5, (30,)))
    check(torch.bincount, torch.randint(0, 5, (30,)), torch.rand(30, dtype=torch.float64), 8)
