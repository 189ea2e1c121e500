"""Reads and writes by positions and masks agree with the CPU."""

import pytest
import torch

import torchtpu

aten = torch.ops.aten


def r(*shape):
    return torch.randn(shape, dtype=torch.float64)


def ri(high, *shape):
    return torch.randint(0, high, shape)


ROW = torch.tensor([0, -1, 2])
COLUMN = torch.tensor([[1], [2]])
PLACES = [
    [ROW],
    [None, ROW],
    [ROW, None, ROW],
    [COLUMN, ROW],
    [None, COLUMN, ROW],
    [torch.tensor(2)],
    [ROW[:0]],
]


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_index(check, places, dtype):
    x = (r(4, 5, 6) * 9).to(dtype)
    check(aten.index, x, places)
    values = torch.randn(aten.index(x, places).shape).to(dtype)
    check(aten.index_put, x, places, values.new_ones(()))
    check(aten.index_put, x, places, values, True)


def test_masks(check):
    x = r(4, 5, 6)
    mask = x > 0
    mask[0, 0] = True  # no mask below is empty
    count = int(mask.sum())
    for accumulate in (False, True):
        check(aten.index_put, x, [mask], r(), accumulate)
        check(aten.index_put, x, [mask], r(count), accumulate)
        check(aten.index_put, x, [mask[..., 0]], r(6), accumulate)
        check(aten.index_put, x, [None, mask[0, :, 0]], r(4, int(mask[0, :, 0].sum()), 6), accumulate)
    check(lambda t, m: t[m], x, mask)
    check(lambda t, m: t[m], x, mask[:, 0, 0])
    check(aten.masked_fill, x, mask, float("-inf"))
    check(aten.masked_scatter, x, mask, r(200))
    check(aten.masked_scatter_backward, r(4, 5), mask[..., 0], [4, 6])
    check(aten.masked_select, x, mask[0])
    check(aten.nonzero, mask)
    check(lambda t: aten.nonzero_static(t, size=5), mask)


def test_gather(check):
    x = r(4, 5, 6)
    check(aten.gather, x, 1, ri(5, 3, 4, 2))
    check(aten.gather, x, -1, ri(6, 4, 5, 6))
    check(aten.gather, r(), 0, torch.tensor(0))
    check(aten.index_select, x, 1, ri(5, 7))
    check(aten.index_select, r(5), 0, torch.tensor(3))
    check(aten.take, x, torch.tensor([[0, -1], [5, 119]]))


def test_gather_gradient(check):
    x, at, g = r(4, 6), ri(6, 4, 9), r(4, 9)

    def gradient(x, at, g):
        x = x.detach().requires_grad_()
        x.gather(1, at).backward(g)
        return x.grad

    check(gradient, x, at, g)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(check, reduce, include_self):
    for dim, x, at, src in (
        (1, r(4, 5, 6), ri(5, 3, 4, 2), r(4, 5, 6)),
        (1, ri(9, 4, 5), ri(5, 4, 1), ri(50, 4, 1)),
        (0, r(3, 2), ri(3, 7, 2), r(7, 2)),
    ):
        check(aten.scatter_reduce, x, dim, at, src, reduce, include_self=include_self)
    if reduce != "sum":
        check(aten.index_reduce, r(4, 5), 1, ri(5, 7), r(4, 7), reduce, include_self=include_self)


def test_scatter(check):
    x = r(3, 5)
    for wide in (1, 2):
        at = torch.stack([torch.randperm(5)[:wide] for _ in range(3)])
        check(aten.scatter, x, 1, at, r(3, 4))
        check(aten.scatter, x, 1, at, 2.5)
        check(aten.scatter, x, 1, at, r(3, 4), reduce="multiply")
        check(aten.scatter_add, x, 1, at, r(3, 4))
    check(aten.scatter_add, r(), 0, torch.tensor(0), r())


def test_slices_at_positions(check):
    x, at = r(4, 5, 6), ri(5, 7)
    check(aten.index_add, x, 1, at, r(4, 7, 6), alpha=2)
    check(aten.index_add, ri(9, 5), 0, at, ri(9, 7))
    check(aten.index_copy, x, 1, torch.tensor([3, 0]), r(4, 2, 6))
    check(aten.index_fill, x, 1, torch.tensor([3, -1]), 2.0)
    check(aten.put, x, torch.tensor([[0, -1]]), r(1, 2))
    check(aten.put, x, torch.tensor([[0, 0]]), r(1, 2), True)
    check(lambda t: t.repeat_interleave(torch.tensor([2, 0, 1, 3], device=t.device), 0), x)


def test_in_place(check):
    def write(x, at, v):
        y = x.clone()
        y[:, at] = v
        y[0, 1:3] += 1
        y.scatter_add_(0, at[None].expand(1, 3) * 0, v[:1, :3])
        return y

    check(write, r(4, 5), torch.tensor([0, 2, 4]), r(4, 3))


BAD = [
    lambda x, i: x.gather(0, i[:, None]),
    lambda x, i: x.scatter_add(0, i[:, None], x),
    lambda x, i: x.index_select(0, i),
    lambda x, i: x[i],
    lambda x, i: x[:, i],
    lambda x, i: x.index_put((i,), x.new_ones(())),
    lambda x, i: x.index_add(0, i, x.new_ones(2, 4)),
    lambda x, i: x.index_copy(0, i, x.new_ones(2, 4)),
    lambda x, i: x.index_fill(0, i, 1.0),
    lambda x, i: x.take(i * 5),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bounds(case):
    x, at = r(3, 4), torch.tensor([0, 7])
    with pytest.raises((IndexError, RuntimeError)) as cpu:
        BAD[case](x, at)
    words = str(cpu.value).splitlines()[0]
    with torchtpu.mode("debug"), pytest.raises(cpu.type) as device:
        BAD[case](x.to("tpu"), at.to("tpu"))
    assert words in str(device.value)


@pytest.mark.parametrize("alpha", [False, True])
def test_bool_index_add_heeds_alpha(check, alpha):
    x, values = torch.rand(5, 3) > 0.7, torch.rand(4, 3) > 0.5
    check(aten.index_add, x, 0, torch.tensor([0, 3, 0, 4]), values, alpha=alpha)


@pytest.mark.parametrize("mask", [torch.zeros(2, dtype=torch.bool), torch.zeros(2, 4, dtype=torch.bool)])
def test_a_mask_that_selects_nothing_takes_no_values(check, mask):
    values = torch.ones(0, *(4,) * (2 - mask.ndim))
    check(aten.index_put, torch.zeros(2, 4), [mask], values)


def test_byte_masks_read(check):
    check(aten.index, torch.arange(8.0).view(2, 4), [torch.tensor([1, 0], dtype=torch.uint8)])


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_more_values_than_a_mask_has_places(mode):
    x, mask = torch.zeros(2, 4, device="tpu"), torch.ones(2, dtype=torch.bool, device="tpu")
    with torchtpu.mode(mode), pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
        x[mask] = torch.ones(3, 4, device="tpu")


def test_debug_mode_counts_what_a_mask_selects():
    x, mask = torch.zeros(4, device="tpu"), torch.tensor([True, False, True, True], device="tpu")
    want = (
        r"shape mismatch: value tensor of shape \[2\] cannot be broadcast to indexing result of shape \[3\]"
    )
    with torchtpu.mode("debug"), pytest.raises(RuntimeError, match=want):
        x[mask] = torch.ones(2, device="tpu")
