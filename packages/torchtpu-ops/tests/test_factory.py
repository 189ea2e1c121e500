"""Made tensors and counts agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten


def r(*shape):
    return torch.randn(shape, dtype=torch.float64)


def ri(high, *shape):
    return torch.randint(0, high, shape)


def same(make):
    want, got = make("cpu"), make("tpu").cpu()
    torch.testing.assert_close(got, want)


MAKERS = [
    lambda d: torch.full((2, 3), 2.5, device=d),
    lambda d: torch.full((2,), 7, device=d),
    lambda d: torch.zeros(3, dtype=torch.int32, device=d),
    lambda d: torch.ones(2, 2, dtype=torch.bfloat16, device=d),
    lambda d: torch.arange(7, device=d),
    lambda d: torch.arange(0, 1, 0.1, device=d),
    lambda d: torch.arange(5, -3, -2, dtype=torch.float64, device=d),
    lambda d: torch.linspace(0, 10, 7, device=d),
    lambda d: torch.linspace(0, 10, 5, dtype=torch.int64, device=d),
    lambda d: torch.linspace(3, 4, 1, device=d),
    lambda d: torch.logspace(0, 5, 6, dtype=torch.int64, device=d),
    lambda d: torch.logspace(-1, 2, 6, 2.0, dtype=torch.float64, device=d),
    lambda d: torch.eye(3, 4, device=d),
    lambda d: torch.eye(3, dtype=torch.int64, device=d),
    lambda d: torch.tril_indices(3, 4, 1, device=d),
    lambda d: torch.triu_indices(4, 3, -1, dtype=torch.int32, device=d),
    lambda d: torch.scalar_tensor(3, device=d),
    lambda d: torch.zeros_like(torch.ones(2, 3, device=d), dtype=torch.float64),
    lambda d: torch.full_like(torch.ones(2, 3, device=d), 4),
    lambda d: torch.empty(2, 3, device=d).fill_(3),
    lambda d: torch.empty(2, 3, dtype=torch.int64, device=d).zero_(),
    lambda d: torch.ones(3, device=d).fill_(torch.tensor(2, device=d)),
]


@pytest.mark.parametrize("case", range(len(MAKERS)))
def test_makers(case):
    same(MAKERS[case])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
def test_buckets(check, right, out_int32):
    bounds = torch.tensor([1.0, 2, 2, 5])
    values = torch.tensor([[0, 2, 6.0], [float("nan"), 5, 1]])
    check(aten.bucketize, values, bounds, right=right, out_int32=out_int32)
    rows = r(3, 5)
    check(aten.searchsorted, rows.sort(-1)[0], r(3, 4), right=right)
    check(aten.searchsorted, rows, r(3, 4), sorter=rows.argsort(-1), right=right)


def test_counts(check):
    x = torch.randn(100)
    check(aten.histc, x, 10)
    check(aten.histc, x, 10, -1, 1)
    check(aten.bincount, ri(6, 20), None, 10)
    check(aten.bincount, ri(6, 20), torch.rand(20))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
def test_ranges_of_whole_numbers_cut_their_ends(dtype):
    for op, args in (
        (torch.arange, (0.0, -8.000001, -4.0)), (torch.arange, (2.1, -2.9, -1.0)), (torch.arange, (3.1,)),
        (torch.linspace, (4.3, -3, 50)), (torch.linspace, (50, 1, 50)), (torch.logspace, (2, 1.2, 4)),
        (torch.logspace, (4.3, -3, 4, 2.0)),
    ):  # fmt: skip
        got = op(*args, dtype=dtype, device="tpu").cpu()
        torch.testing.assert_close(got, op(*args, dtype=dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:torchtpu. aten")
def test_complex_numbers_fit_only_without_an_imaginary_part():
    writes = (
        lambda x, v: x.fill_(v),
        lambda x, v: x.__setitem__(0, v),
        lambda x, v: torch.full_like(x, v),
        lambda x, v: torch.full((2,), v, dtype=x.dtype, device=x.device),
    )
    for write in writes:
        same(lambda d, write=write: (x := torch.zeros(3, device=d), write(x, 2 + 0j))[0])
        for device in ("cpu", "tpu"):
            with pytest.raises(RuntimeError, match="cannot be converted to type float without overflow"):
                write(torch.zeros(3, device=device), 1j)
