"""Reductions and cumulative functions agree with the CPU: dimensions, dtypes, NaN, empty tensors."""

import pytest
import torch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
words = str.split  # tables of names read best as one string
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHORT = words("sum mean prod amax amin any all nansum count_nonzero argmax argmin max min")
LONG = words("var std logsumexp cumsum cumprod cummax cummin logcumsumexp")
FLOAT_ONLY = {"mean", "var", "std", "logcumsumexp"}


def data(dtype, *shape):
    """Random values with ties and, for floats, some NaN."""
    x = torch.randint(-3 if dtype.is_signed else 0, 4, shape).to(dtype)
    return x + torch.randint(0, 2, shape).to(dtype) / 2 if dtype.is_floating_point else x


def allowed(name, dtype):
    """Whether CPU serves the function for the dtype."""
    if name in FLOAT_ONLY:
        return dtype.is_floating_point
    if name == "logsumexp" and dtype == torch.bfloat16:
        return False  # CPU rounds exp, sum and log one by one
    no_bool = {"argmax", "argmin", "nansum", "logsumexp", "cumsum", "cumprod"}
    return dtype != torch.bool or name not in no_bool


@pytest.mark.parametrize("name", SHORT + LONG)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_along_a_dimension(check, name, dtype):
    if not allowed(name, dtype):
        return
    fn, x = getattr(torch, name), data(dtype, 3, 4, 5)
    for dim in (0, 1, -1):
        check(fn, x, dim)
        if name not in ("count_nonzero", *LONG[3:]):
            check(fn, x, dim, keepdim=True)
    check(fn, x.transpose(0, 2), 1)
    check(fn, x[0, 0, 0], 0)


@pytest.mark.parametrize("name", SHORT + ["var", "std"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_all_elements(check, name, dtype):
    if allowed(name, dtype):
        check(getattr(torch, name), data(dtype, 3, 4, 5))


@pytest.mark.parametrize("name", words("sum mean amax amin any all nansum count_nonzero var std logsumexp"))
@pytest.mark.parametrize("dims", [(0, 1), (0, -1), (0, 1, 2), ()], ids=str)
def test_along_several_dimensions(check, name, dims):
    if dims or name not in ("var", "std", "logsumexp", "any", "all", "nansum"):
        check(getattr(torch, name), data(torch.float64, 3, 4, 5), dims)


NAN_RULES = words("amax amin max min argmax argmin cummax cummin nansum logsumexp sum any aminmax")


@pytest.mark.parametrize("name", NAN_RULES)
def test_nan_and_infinity(check, name):
    x = torch.randn(6, 7, dtype=torch.float64)
    x[0, 3] = x[1, 0] = x[1, 5] = x[2, 6] = NAN
    x[3, 2], x[4, 4], x[5] = INF, -INF, -INF
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for dim in (0, 1):
            check(getattr(torch, name), x.to(dtype), dim=dim)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("correction", [0, 1, 2, 9, 0.5], ids=str)
def test_variance(check, name, correction):
    x = torch.randn(4, 5, dtype=torch.float64) + 100
    for dim in (0, (0, 1), None):
        for keepdim in (False, True):
            check(getattr(torch, name), x, dim=dim, correction=correction, keepdim=keepdim)
    check(getattr(torch, name), x.bfloat16(), dim=1, correction=correction)
    check(getattr(torch, name), torch.randn(3, 4, dtype=torch.complex128), dim=1, correction=correction)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, INF, -INF], ids=str)
def test_norms(check, order):
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    for dim in (0, (0, 2), None):
        check(torch.linalg.vector_norm, x, order, dim=dim)
        check(torch.linalg.vector_norm, x.float(), order, dim=dim, keepdim=True, dtype=torch.float64)
    check(torch.norm, x, order, dim=1)
    check(torch.norm, x.float(), order, dim=1, dtype=torch.float64)
    check(torch.linalg.vector_norm, torch.randn(9, dtype=torch.complex64), order)
    if order in (1, 2, 3):
        check(torch.renorm, x, order, 1, 1.5)
        check(torch.dist, x, x.flip(0), order)


def test_dtype_of_the_result(check):
    x = torch.randint(0, 9, (3, 4))
    for fn in (torch.sum, torch.mean, torch.prod):
        check(fn, x, dtype=torch.float64)
        check(fn, x, 1, dtype=torch.float32)
    for fn in (torch.cumsum, torch.cumprod):
        check(fn, x, 1, dtype=torch.float32)


def test_short_floats_accumulate_in_float32():
    x = torch.full((4096,), 0.1).bfloat16()
    for fn in (torch.sum, torch.mean, torch.var, torch.linalg.vector_norm):
        torch.testing.assert_close(fn(x.to("tpu")).cpu(), fn(x.double()).bfloat16(), rtol=1e-2, atol=1e-6)


def test_the_mean_of_equal_numbers_is_the_number():
    for n in range(1, 200):
        assert torch.full((n,), 0.5, dtype=torch.float64).to("tpu").mean().item() == 0.5


@pytest.mark.parametrize("name", words("sum mean prod any all nansum count_nonzero cumsum"))
def test_empty(check, name):
    for shape in ((0,), (0, 3), (3, 0)):
        check(getattr(torch, name), torch.zeros(shape), dim=0)
        check(getattr(torch, name), torch.zeros(shape), dim=-1)


@pytest.mark.parametrize("name", words("amax amin max min argmax argmin"))
def test_empty_has_no_extreme(name):
    for shape, options in (((0,), {"dim": 0}), ((3, 0), {"dim": 1}), ((0,), {})):
        with pytest.raises((IndexError, RuntimeError)) as cpu:
            getattr(torch, name)(torch.zeros(shape), **options)
        with pytest.raises(cpu.type) as device:
            getattr(torch, name)(torch.zeros(shape).to("tpu"), **options)
        assert str(device.value).splitlines()[0] == str(cpu.value).splitlines()[0]


def test_aminmax_and_arguments_of_all_elements(check):
    x = data(torch.float64, 4, 5)
    check(torch.aminmax, x)
    check(torch.aminmax, x, dim=1, keepdim=True)
    check(torch.argmax, x, keepdim=True)
    check(torch.argmin, data(torch.int32, 4, 5))


@pytest.mark.parametrize(
    "name", words("sum mean prod amax amin var std logsumexp cumsum cumprod cummax norm")
)
def test_gradients(name):
    x = torch.randn(4, 5, dtype=torch.float64)
    host, device = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
    for t in (host, device):
        out = getattr(torch, name)(t, dim=1)
        (out if isinstance(out, torch.Tensor) else out.values).square().sum().backward()
    torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_running_complex_sums_keep_the_angle():
    z = torch.randn(6, 4, dtype=torch.complex128) * 3
    for dim in (0, -1):
        got = torch.logcumsumexp(z.to("tpu"), dim).cpu()
        torch.testing.assert_close(got, torch.logcumsumexp(z, dim))
    # angles add up beyond one turn, and infinities stay
    x = torch.tensor([complex(-torch.inf, 0), complex(0, 3.0), complex(0.5, -3.0), complex(1, torch.nan)])
    torch.testing.assert_close(
        torch.logcumsumexp(x.to("tpu"), 0).cpu(), torch.logcumsumexp(x, 0), equal_nan=True
    )
