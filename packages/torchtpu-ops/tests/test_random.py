"""Draws have the right support, moments and dtype, and repeat under a seed."""

import pytest
import torch

N = 40_000
DRAWS = {
    "normal_": ((1.0, 2.0), 1.0, 4.0),
    "uniform_": ((-1.0, 3.0), 1.0, 16 / 12),
    "exponential_": ((2.0,), 0.5, 0.25),
    "geometric_": ((0.3,), 1 / 0.3, 0.7 / 0.09),
    "log_normal_": ((0.0, 0.5), 1.1331, 0.3647),
    "bernoulli_": ((0.3,), 0.3, 0.21),
}


def empty(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype, device="tpu")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(torch.seed() % 2**31)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", DRAWS)
def test_moments(name, dtype):
    args, mean, variance = DRAWS[name]
    x = getattr(empty(dtype), name)(*args)
    assert x.dtype == dtype
    x = x.cpu().double()
    assert abs(x.mean() - mean) < 6 * (variance / N) ** 0.5 + 0.01 * abs(mean)
    assert abs(x.var() - variance) < 0.15 * variance


def test_no_draw_is_beyond_what_its_bits_can_say():
    torch.manual_seed(17)  # one of the uniform numbers behind these is 0
    x = empty(n=400_000).exponential_().cpu()
    assert x.min() > 0 and x.max() < 17  # -log(2⁻²⁴)


def test_seed_repeats():
    def draw():
        torch.manual_seed(5)
        return torch.randn(10, device="tpu").cpu(), torch.rand(10, device="tpu").cpu()

    (a, b), (c, d) = draw(), draw()
    assert torch.equal(a, c) and torch.equal(b, d) and not torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.bfloat16])
def test_whole_numbers(dtype):
    x = empty(dtype).random_(3, 9).cpu()
    assert sorted(x.unique().tolist()) == [3, 4, 5, 6, 7, 8]
    assert empty(dtype).random_(7).cpu().max() == 6
    assert empty(dtype).random_().cpu().double().min() >= 0
    assert torch.randint(-3, 4, (N,), device="tpu").cpu().unique().numel() == 7


def test_uniform_bounds():
    for dtype in (torch.float32, torch.bfloat16):
        x = empty(dtype).uniform_(-1, 3).cpu()
        assert x.min() >= -1 and x.max() < 3


def test_bernoulli_tensor():
    p = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(N)
    x = torch.bernoulli(p.to("tpu")).cpu().view(3, N).mean(1)
    assert x[0] == 0 and x[2] == 1 and abs(x[1] - 0.25) < 0.02


def test_multinomial():
    p = torch.tensor([[0.1, 0.0, 0.9], [1.0, 1.0, 2.0]])
    x = torch.multinomial(p.to("tpu"), 8000, replacement=True).cpu()
    share = torch.stack([row.bincount(minlength=3) for row in x]) / 8000
    torch.testing.assert_close(share, p / p.sum(1, keepdim=True), atol=0.03, rtol=0)
    y = torch.multinomial(torch.ones(5, 4, device="tpu"), 4).cpu()
    assert torch.equal(y.sort(-1)[0], torch.arange(4).expand(5, 4))


def test_permutation():
    x = torch.randperm(1000, device="tpu").cpu()
    assert (
        x.dtype == torch.int64
        and torch.equal(x.sort()[0], torch.arange(1000))
        and x[0:9].ne(torch.arange(9)).any()
    )


def test_dropout():
    x = torch.rand(N, device="tpu") + 1
    y, mask = torch.native_dropout(x, 0.25, True)
    x, y, mask = x.cpu(), y.cpu(), mask.cpu()
    torch.testing.assert_close(y, torch.where(mask, x / 0.75, 0))
    assert abs(mask.double().mean() - 0.75) < 0.02
    for p, train in ((1.0, True), (0.5, False)):
        y, mask = torch.native_dropout(x.to("tpu"), p, train)
        assert torch.equal(y.cpu(), x * (not train)) and bool(mask.cpu().all()) is not train


def test_dropout_gradient():
    x = torch.ones(N, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def test_rates():
    mean = {
        "poisson": torch.poisson(torch.full((N,), 4.0, device="tpu")),
        "gamma": torch._standard_gamma(torch.full((N,), 4.0, device="tpu")),
        "normal": torch.normal(torch.full((N,), 4.0, device="tpu"), torch.ones(N, device="tpu")),
        "binomial": torch.binomial(torch.full((N,), 8.0, device="tpu"), torch.full((N,), 0.5, device="tpu")),
    }
    for name, x in mean.items():
        assert abs(x.cpu().mean() - 4) < 0.1, name


def test_uniform_complex_draws_both_parts():
    z = torch.empty(N, dtype=torch.complex64, device="tpu").uniform_(-1.0, 3.0).cpu()
    for part in (z.real, z.imag):
        assert part.min() >= -1 and part.max() < 3
        assert abs(part.mean() - 1) < 0.05 and abs(part.var() - 16 / 12) < 0.05
    assert abs(torch.corrcoef(torch.stack([z.real, z.imag]))[0, 1]) < 0.03


def test_gradient_of_gamma_draws():
    a, x = torch.rand(50) * 4 + 0.2, torch.rand(50) * 4 + 0.1
    got = torch._standard_gamma_grad(a.to("tpu"), x.to("tpu")).cpu()
    torch.testing.assert_close(got, torch._standard_gamma_grad(a, x), rtol=1e-3, atol=1e-5)
