"""Orders, selections and distinct values agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten


def ri(high, *shape):
    return torch.randint(0, high, shape)


NAN = float("nan")


def values(op):
    """Only the values: torch leaves open which of equal elements is taken."""
    return lambda *args, **kwargs: op(*args, **kwargs)[0]


def sample(dtype):
    x = (torch.randn(4, 50) * 3).to(dtype)
    if dtype.is_floating_point:
        x[0, 3] = x[0, 9] = NAN
    return x


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_orders(check, dtype, dim):
    x = sample(dtype)
    for descending in (False, True):
        check(lambda t, d=descending: torch.sort(t, dim=dim, descending=d, stable=True), x)
        check(values(aten.topk), x, 3, dim, descending)
    check(values(aten.kthvalue), x, 2, dim)
    check(values(aten.median), x, dim)
    check(values(aten.nanmedian), x, dim, True)


def test_positions(check):
    x = torch.randn(6, 31)
    for op, args in (
        (aten.topk, (4,)),
        (aten.topk, (4, 0, False)),
        (aten.kthvalue, (5,)),
        (aten.median, (1,)),
    ):
        check(op, x, *args)
    check(torch.argsort, x, 0)
    check(values(aten.mode), ri(5, 4, 50), 1)
    check(aten.mode, torch.tensor([[1, 2, 2, 1, 3], [4, 4, 4, 1, 1]]), 1)


def test_scalars_and_flat(check):
    check(aten.sort, torch.tensor(3.0))
    check(aten.topk, torch.tensor(3.0), 1)
    check(aten.median, sample(torch.float64))
    check(aten.nanmedian, sample(torch.float64))
    check(aten.median, ri(9, 20))


@pytest.mark.parametrize("invert", [False, True])
def test_membership(check, invert):
    x = ri(5, 4, 6)
    check(torch.isin, x, ri(3, 4), invert=invert)
    check(torch.isin, x, 2, invert=invert)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_distinct(check, dtype):
    x = sample(dtype)
    check(lambda t: torch.unique(t, return_inverse=True, return_counts=True), x)
    check(lambda t: torch.unique_consecutive(t, return_inverse=True, return_counts=True), x)
    check(lambda t: torch.unique(t, dim=0, return_inverse=True), x[1:] * 0)
    check(lambda t: torch.unique_consecutive(t, dim=0), x[1:] * 0)


@pytest.mark.parametrize("name", ["median", "nanmedian", "mode"])
def test_nothing_to_choose_from(name):
    op = getattr(torch, name)
    with pytest.raises(IndexError) as want:
        op(torch.zeros(2, 0), 1)
    with pytest.raises(IndexError) as got:
        op(torch.zeros(2, 0, device="tpu"), 1)
    assert str(got.value) == str(want.value)
    assert op(torch.zeros(2, 0, device="tpu"), 0).values.shape == (0,)
