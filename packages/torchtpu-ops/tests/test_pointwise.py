"""Element-wise functions agree with the CPU, at special values too."""

import pytest
import torch

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
words = str.split  # tables of names read best as one string
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 7.3, -7.3, 100.0, INF, -INF, NAN]
FLOATS = (torch.float64, torch.float32, torch.bfloat16)


def values(dtype):
    """Special values and random ones."""
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL + torch.randn(6).tolist()).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False])
    return torch.cat([torch.tensor([0, 1, 2, 3, 7, 12]), torch.randint(0, 20, (6,))]).to(dtype)


ANY = words("""acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
    reciprocal erf erfc erfinv digamma i0 sigmoid sinc sign sgn isnan isinf isfinite isposinf isneginf signbit
    logical_not angle deg2rad nan_to_num logit""")
FLOAT_ONLY = words(
    "frac special_entr special_i0e special_i1 special_i1e special_erfcx special_log_ndtr lgamma"
)
NUMBER = words("neg abs ceil floor round trunc square positive conj_physical")


@pytest.mark.parametrize("name", ANY + FLOAT_ONLY + NUMBER)
def test_one_tensor(check, name):
    dtypes = FLOATS + ((torch.int64, torch.uint8) if name not in FLOAT_ONLY else ())
    for dtype in dtypes + ((torch.bool,) if name in ANY else ()):
        x = values(dtype)
        # the first two have no such CPU kernel, logit's rounds 1 - x on the way
        if dtype != torch.bfloat16 or name not in ("special_log_ndtr", "special_erfcx", "logit"):
            check(getattr(aten, name), x)


@pytest.mark.parametrize("name", words("exp sin sqrt tanh sigmoid abs angle sgn neg reciprocal log square"))
def test_complex(check, name):
    check(getattr(torch, name), torch.randn(9, dtype=torch.complex128))


PAIRS = words("""add sub mul div floor_divide remainder fmod maximum minimum fmax fmin atan2 copysign xlogy eq ne lt le gt
    ge logical_and logical_or logical_xor heaviside hypot nextafter logaddexp logaddexp2""")
INTEGER_PAIRS = words("bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift")
NO_INTEGERS = ("hypot", "nextafter", "logaddexp", "logaddexp2")


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.uint8), ids=str)
def test_two_tensors(check, name, dtype):
    if name in NO_INTEGERS and not dtype.is_floating_point:
        return
    a, b = values(dtype)[:, None], values(dtype)[None, :]
    if not dtype.is_floating_point and name in ("floor_divide", "remainder", "fmod"):
        b = b.clamp(min=1)
    check(getattr(torch, name), a, b)
    if name != "heaviside":
        check(getattr(torch, name), a[0], b.int())


@pytest.mark.parametrize("name", INTEGER_PAIRS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_two_integer_tensors(check, name, dtype):
    a, b = values(dtype)[:, None], values(dtype)[None, :]
    check(getattr(torch, name), a, b % 8 if "shift" in name else b)
    if name not in ("gcd", "lcm"):
        check(getattr(torch, name), a, 3)
        check(getattr(torch, name), 3, b % 8)


def test_shift_operators(check):
    x = values(torch.int64)
    check(lambda t: t << 2, x)
    check(lambda t: t >> 1, x)
    check(lambda t: 1 << t % 8, x)
    check(lambda t: (t & 5) | 8 ^ t, x)


@pytest.mark.parametrize("number", [2, -3, 2.5, 0.5, NAN, True], ids=str)
@pytest.mark.parametrize(
    "name", words("add sub mul div floor_divide remainder fmod pow eq lt ge xlogy clamp_min")
)
def test_tensor_and_number(check, name, number):
    for dtype in (*FLOATS, torch.int64):
        if number is True and name == "sub":
            continue
        if isinstance(number, int) and number < 0 and name == "pow" and not dtype.is_floating_point:
            continue
        check(getattr(torch, name), values(dtype), number)
    if name in ("add", "sub", "mul", "div", "remainder", "pow", "xlogy") and number is not True:
        check(getattr(torch, name), number, values(torch.float64))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_rounded_division(check, mode):
    for dtype in (*FLOATS, torch.int64, torch.int32):
        a, b = values(dtype)[:, None], values(dtype)[None, :]
        check(torch.div, a, b if dtype.is_floating_point else b.clamp(min=1), rounding_mode=mode)
        check(torch.div, a if dtype.is_floating_point else -a, 3, rounding_mode=mode)


def test_a_broadcast_divisor_gives_correctly_rounded_quotients():
    a, b = torch.randn(50, 1), torch.randn(1, 50)
    assert (a.to("tpu") / b.to("tpu")).cpu().equal(a / b)
    assert (a.to("tpu") / 3).cpu().equal(a / 3)
    n = torch.arange(1.0, 300)
    assert torch.div(n.to("tpu")[:, None], n.to("tpu"), rounding_mode="trunc").diagonal().cpu().eq(1).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_whole_powers_wrap_as_on_the_cpu(check, dtype):
    base, exponent = torch.arange(0, 12).to(dtype), torch.tensor([0, 1, 2, 5, 63, 64, 100, 127]).to(dtype)
    check(torch.pow, base[:, None], exponent)
    check(torch.pow, 3, exponent)
    for number in (0, 1, 2, 3, 9, 40):
        check(torch.pow, base, number)
    if dtype != torch.uint8:
        check(torch.pow, -base[:, None], exponent)
        check(torch.pow, base[1:, None] - 4, torch.tensor([-1, -2, 3]).to(dtype))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 11, NAN], ids=str)
def test_powers_of_floats(check, exponent):
    for dtype in FLOATS:
        check(torch.pow, values(dtype), exponent)
        check(torch.pow, values(dtype).abs()[:, None], torch.randn(5).to(dtype))


def test_choices_and_limits(check):
    for dtype in (*FLOATS, torch.int64):
        x, y = values(dtype)[:, None], values(dtype)[None, :]
        check(torch.where, x > 1, x, y)
        check(torch.where, x > 1, x, 2)
        check(torch.clamp, x, y, y + 2)
        for low, high in ((0, 1), (2, -1), (None, 3), (-1, None)):
            check(torch.clamp, x, low, high)
        check(torch.clamp_max, x, y)
    check(torch.clamp, values(torch.float64), NAN, 1.0)
    check(torch.nan_to_num, values(torch.float64), 1.0, 2.0, -3.0)
    check(torch.logit, torch.rand(9).double(), 0.2)
    for decimals in (-1, 0, 2):
        check(torch.round, torch.randn(9).double() * 30, decimals=decimals)


@pytest.mark.parametrize("number", [1, 2, 0.5], ids=str)
def test_three_tensors(check, number):
    a, b, c = torch.randn(3, 4, 5, dtype=torch.float64)
    check(torch.addcmul, a, b, c, value=number)
    check(torch.addcdiv, a, b, c, value=number)
    check(torch.lerp, a, b, number)
    check(torch.lerp, a, b, c)
    check(torch.add, a, b, alpha=number)
    check(torch.rsub, a, b, alpha=number)
    if isinstance(number, int):
        check(torch.addcmul, *(torch.randint(0, 9, (3, 4)) for _ in range(3)), value=number)


def test_special_functions(check):
    x, y = torch.randn(30, dtype=torch.float64) * 5, torch.rand(30, dtype=torch.float64) * 9 + 0.1
    for n in range(4):
        check(torch.polygamma, n, x - 4)
        check(torch.polygamma, n, y)
    check(torch.special.zeta, 1 + y, y)
    check(torch.special.zeta, 3.0, x)
    check(torch.special.xlog1py, x, y)
    check(torch.special.xlog1py, values(torch.float64)[:, None], values(torch.float64))
    check(torch.igamma, y, y.flip(0))
    check(torch.igammac, y, y.flip(0))
    check(torch.special.erfcx, torch.linspace(-3, 60, 80, dtype=torch.float64))
    check(torch.special.erfcx, torch.linspace(-3, 60, 80))
    check(torch.frexp, x)
    check(torch.ldexp, x, torch.arange(30))


def test_complex_parts(check):
    a, b = torch.randn(5, 1, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    check(torch.complex, a, b.expand(5, 4))
    check(torch.polar, a.abs(), b)
    z = torch.complex(a, b.expand(5, 4))
    for fn in (torch.add, torch.mul, torch.div, torch.logaddexp, torch.eq):
        check(fn, z, z.flip(0))


def test_a_neighbour_is_that_of_the_narrow_type(check):
    check(torch.nextafter, torch.tensor([1.0, 0.5, INF]).bfloat16(), torch.tensor([2.0, 0.0, 0.0]).bfloat16())


def test_debug_mode_raises_for_division_by_zero():
    import torchtpu

    x, zero = torch.tensor([3, 4]), torch.tensor([1, 0])
    for fn in (torch.floor_divide, torch.remainder, torch.fmod):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(x, zero)
        with torchtpu.mode("debug"), pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(x.to("tpu"), zero.to("tpu"))


def test_erfinv_near_the_ends():
    y = 1 - torch.logspace(-7, 0, 60, dtype=torch.float64).float()
    y = torch.cat([y, -y, torch.tensor([1.0, -1.0, 0.0, 1.5, torch.nan])])
    want = torch.erfinv(y.double()).float()
    torch.testing.assert_close(torch.erfinv(y.to("tpu")).cpu(), want, rtol=4e-7, atol=0, equal_nan=True)


def test_in_place_forms_with_another_order_or_name():
    x = torch.rand(5) + 1
    for write in (
        lambda t: t.polygamma_(2), lambda t: t.pow_(torch.full_like(t, 1.5)), lambda t: t.pow_(3), lambda t: t.mvlgamma_(2),
    ):  # fmt: skip
        torch.testing.assert_close(write(x.to("tpu")).cpu(), write(x.clone()))
    assert torch.tensor([1, -8], device="tpu").__irshift__(1).tolist() == [0, -4]
