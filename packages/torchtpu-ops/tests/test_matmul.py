"""Matrix products and distances agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten
F64 = torch.float64


def r(*shape, dtype=F64):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    return torch.randint(-9, 9, shape).to(dtype)


PRODUCTS = [
    (aten.mm, (3, 4), (4, 5)), (aten.bmm, (2, 3, 4), (2, 4, 5)), (aten.mv, (3, 4), (4,)),
    (aten.dot, (6,), (6,)), (aten.vdot, (6,), (6,)), (aten.mm, (3, 0), (0, 5)),
]  # fmt: skip
SUMS = [
    (aten.addmm, (3, 5), (3, 4), (4, 5)), (aten.addmm, (5,), (3, 4), (4, 5)), (aten.addmm, (), (3, 4), (4, 5)),
    (aten.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)), (aten.baddbmm, (5,), (2, 3, 4), (2, 4, 5)),
    (aten.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)), (aten.addmv, (3,), (3, 4), (4,)), (aten.addr, (3, 4), (3,), (4,)),
]  # fmt: skip
DTYPES = [F64, torch.int64, torch.int32]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128], ids=str)
@pytest.mark.parametrize("op,a,b", PRODUCTS, ids=str)
def test_product(check, op, a, b, dtype):
    check(op, r(*a, dtype=dtype), r(*b, dtype=dtype))


@pytest.mark.parametrize("factors", [{}, {"beta": 2}, {"alpha": 3}, {"beta": 0, "alpha": -2}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op,bias,a,b", SUMS, ids=str)
def test_sum_with_product(check, op, bias, a, b, dtype, factors):
    check(op, *(r(*s, dtype=dtype) for s in (bias, a, b)), **factors)


@pytest.mark.parametrize("op,bias,a,b", SUMS, ids=str)
def test_beta_of_zero_hides_the_bias(check, op, bias, a, b):
    check(op, torch.full(bias, float("nan"), dtype=F64), r(*a), r(*b), beta=0, alpha=0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_floats_accumulate_in_float32(dtype):
    a, b = r(8, 4096, dtype=dtype), r(4096, 8, dtype=dtype)
    got = (a.to("tpu") @ b.to("tpu")).cpu()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2)


def test_int8_product(check):
    check(aten._int_mm, *(torch.randint(-128, 128, s, dtype=torch.int8) for s in ((32, 64), (64, 16))))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_cdist(check, batch, p):
    a, b = r(*batch, 5, 3), r(*batch, 4, 3)
    b[..., 0, :] = a[..., 0, :]
    b[..., 1, 0] = a[..., 1, 0]
    check(torch.cdist, a, b, p, "donot_use_mm_for_euclid_dist")
    d = aten._cdist_forward(a, b, p, 2)
    check(aten._cdist_backward, r(*d.shape), a, b, p, d)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, float("inf")])
def test_pdist(check, p):
    check(torch.pdist, r(5, 3), p)


@pytest.mark.parametrize("op,bias,a,b", SUMS[:-1], ids=str)  # addr refuses them
def test_whole_numbers_take_whole_factors(check, op, bias, a, b):
    x, y, z = (r(*s, dtype=torch.int64) for s in (bias, a, b))
    check(op, x, y, z, beta=0.6, alpha=2.7)


@pytest.mark.parametrize("op,bias,a,b", SUMS, ids=str)
def test_half_types_round_once(op, bias, a, b):
    parts = [r(*s, dtype=torch.bfloat16) for s in (bias, a, b)]
    got = op(*(p.to("tpu") for p in parts), beta=0.3, alpha=0.7).cpu()
    exact = op(*(p.double() for p in parts), beta=0.3, alpha=0.7)
    torch.testing.assert_close(got, exact.bfloat16(), rtol=2**-7, atol=1e-4)
