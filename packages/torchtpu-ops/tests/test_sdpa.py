"""scaled_dot_product_attention is one operator, forward and backward, and agrees with the CPU in double precision."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import torchtpu
from torchtpu.runtime import program

F = torch.nn.functional
attention = F.scaled_dot_product_attention
# by dtype: what rounding at each step may cost
CLOSE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2},
    torch.float16: {"rtol": 6e-3, "atol": 6e-3},
}


def agree(shapes, dtype=torch.float64, mask=None, **options):
    """Values and gradients on the device and on the CPU in double precision; gives the device's leaves."""
    host = [torch.randn(s).to(dtype) for s in shapes]
    weights, results = None, []
    for device, kind in (("cpu", torch.float64), ("tpu", dtype)):
        leaves = [t.to(device, kind, copy=True).requires_grad_() for t in host]
        given = None
        if mask is not None:
            given = mask.to(device) if mask.dtype is torch.bool else mask.to(device, kind, copy=True)
            if mask.dtype is not torch.bool:
                leaves.append(given.requires_grad_())
        out = attention(*leaves[:3], given, **options)
        weights = torch.randn(out.shape, dtype=torch.float64) if weights is None else weights
        out.backward(weights.to(device, kind))
        results.append([out.detach(), *(t.grad for t in leaves)])
    for want, got in zip(*results, strict=True):
        assert got.dtype == dtype and got.shape == want.shape
        torch.testing.assert_close(got.cpu().double(), want, **CLOSE[dtype])


SQUARE = [(2, 3, 5, 4)] * 3
SHAPES = {
    "plain": SQUARE,
    "longer keys": [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)],
    "three dimensions": [(3, 5, 4), (3, 7, 4), (3, 7, 4)],
    "two dimensions": [(5, 4), (7, 4), (7, 4)],
    "five dimensions": [(2, 2, 3, 5, 4), (2, 2, 3, 7, 4), (2, 2, 3, 7, 4)],
    "one head of keys": [(2, 4, 5, 4), (2, 1, 7, 4), (2, 1, 7, 4)],
    "broadcast batch": [(2, 4, 5, 4), (1, 4, 7, 4), (4, 7, 4)],
    "no keys": [(2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 4)],
    "no queries": [(2, 3, 0, 4), (2, 3, 7, 4), (2, 3, 7, 4)],
    "no batch": [(0, 3, 5, 4), (0, 3, 7, 4), (0, 3, 7, 4)],
    "no width": [(2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 4)],
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_shapes(shapes, causal):
    agree(shapes, is_causal=causal)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_dtypes(dtype):
    agree(SQUARE, dtype, is_causal=True)
    agree(SQUARE, dtype, mask=torch.rand(2, 1, 5, 5) > 0.4, scale=0.3)


MASKS = [(5, 7), (1, 7), (5, 1), (4, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7), (1, 4, 5, 7)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape):
    shapes = [(2, 4, 5, 3), (2, 4, 7, 3), (2, 4, 7, 3)]
    agree(shapes, mask=torch.rand(shape) > 0.3)
    agree(shapes, mask=torch.randn(shape, dtype=torch.float64))
    grouped = [shapes[0], (2, 2, 7, 3), (2, 2, 7, 3)]
    agree(grouped, mask=torch.randn(shape, dtype=torch.float64), enable_gqa=True)


def test_rows_that_see_no_key_are_zero():
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[0, :, 2], mask[1] = False, False
    agree(SQUARE, mask=mask)
    agree(SQUARE, mask=torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf))


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(causal):
    agree([(2, 6, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)], is_causal=causal, enable_gqa=True, scale=0.7)
    x = torch.randn(2, 6, 5, 4, device="tpu")
    with pytest.raises(RuntimeError):
        attention(x, x[:, :3], x[:, :3])


def test_where_one_key_has_all_the_weight_the_scores_have_no_gradient():
    q = (400 * torch.eye(8)).to("tpu").requires_grad_()
    k, v = torch.eye(8, device="tpu"), torch.randn(8, 8, device="tpu")
    attention(q, k, v, scale=1.0).backward(torch.randn(8, 8, device="tpu"))
    assert not q.grad.any()


def test_a_negative_scale():
    agree(SQUARE, scale=-0.5)


def test_second_derivatives():
    inputs = [
        torch.randn(1, 2, 3, 2, dtype=torch.float64, device="tpu", requires_grad=True) for _ in range(3)
    ]
    mask = torch.randn(3, 3, dtype=torch.float64, device="tpu", requires_grad=True)
    with torchtpu.mode("strict"):  # hundreds of small calls, each waited for
        assert torch.autograd.gradgradcheck(lambda *t: attention(*t), (*inputs, mask))


def launched(fn):
    before = program.launches[0]
    result = fn()
    return program.launches[0] - before, result


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "added", "grouped"])
def test_one_launch_forward_and_one_backward(kind):
    length = torch.randint(100, 10**4, ()).item() if kind == "plain" else 9  # once known, calls go uncounted
    q, k, v = (torch.randn(1, 4, n, 2, device="tpu", requires_grad=True) for n in (length % 89 + 2, 9, 9))
    mask = {"mask": torch.rand(q.shape[2], 9) > 0.2, "added": torch.randn(q.shape[2], 9)}.get(kind)
    k, v = (t[:, :2].detach().requires_grad_() if kind == "grouped" else t for t in (k, v))
    options = {"is_causal": kind == "causal", "enable_gqa": kind == "grouped"}
    mask = mask if mask is None else mask.to("tpu")
    with torchtpu.mode("strict"):
        count, out = launched(lambda: attention(q, k, v, mask, **options))
        assert count == 1
        grad = torch.ones_like(out)
        assert launched(lambda: torch.autograd.grad(out, (q, k, v), grad))[0] == 1
        with torch.inference_mode():
            assert launched(lambda: attention(q, k, v, mask, **options))[0] == 1


def test_dropout():
    q, k = (torch.randn(2, 3, n, 4, device="tpu") for n in (50, 60))
    v = torch.eye(60, device="tpu").expand(2, 3, 60, 60).requires_grad_()
    weights = attention(q, k, v)
    torch.tpu.manual_seed(3)
    dropped = attention(q, k, v, dropout_p=0.25)
    kept = dropped.detach().cpu() != 0
    assert 0.22 < 1 - kept.float().mean() < 0.28
    want = torch.where(kept, weights.detach().cpu() / 0.75, 0)
    torch.testing.assert_close(dropped.detach().cpu(), want)
    torch.tpu.manual_seed(3)
    assert attention(q, k, v, dropout_p=0.25).equal(dropped)
    assert not attention(q, k, v, dropout_p=0.25).equal(dropped)
    # the backward drops the same weights: the derivative by the values is the weights' transpose
    (grad,) = torch.autograd.grad(
        dropped, v, torch.eye(50, device="tpu").expand(2, 3, 50, 50) @ torch.ones(50, 60, device="tpu")
    )
    torch.testing.assert_close(grad.cpu()[..., 0], dropped.detach().cpu().sum(-2), rtol=1e-5, atol=1e-5)
    assert not attention(q, k, v, dropout_p=1.0).any()


def test_dropout_in_the_gradient_of_queries():
    q, k, v = (
        torch.randn(1, 1, 4, 3, dtype=torch.float64, device="tpu", requires_grad=True) for _ in range(3)
    )

    def op(*t):
        torch.tpu.manual_seed(5)
        return attention(*t, dropout_p=0.4)

    with torchtpu.mode("strict"):
        assert torch.autograd.gradcheck(op, (q, k, v))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v, m: attention(q, k, v, m, enable_gqa=True),
        backend="tpu",
        fullgraph=True,
        dynamic=dynamic,
    )
    for length in (5, 9):
        q, k, v = (torch.randn(2, h, n, 4) for h, n in ((4, length), (2, 7), (2, 7)))
        mask, grads = torch.rand(length, 7) > 0.2, []
        for device, op in (
            ("cpu", lambda q, k, v, m: attention(q, k, v, m, enable_gqa=True)),
            ("tpu", compiled),
        ):
            leaves = [t.to(device, copy=True).requires_grad_() for t in (q, k, v)]
            out = op(*leaves, mask.to(device))
            out.square().sum().backward()
            grads.append([out.detach().cpu(), *(t.grad.cpu() for t in leaves)])
        for want, got in zip(*grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_debug_mode_and_autocast():
    q = torch.randn(2, 2, 4, 4, device="tpu", requires_grad=True)
    with torchtpu.mode("debug"):
        out = attention(q, q, q)
        out.sum().backward()
    torch.testing.assert_close(out.detach().cpu(), attention(*[q.detach().cpu()] * 3))
    with torch.autocast("tpu", torch.bfloat16):
        assert attention(q, q, q).dtype is torch.bfloat16


def test_transforms_and_dual_numbers_see_torchs_own_parts():
    q, k, v, t = torch.randn(4, 2, 3, 5, 4, dtype=torch.float64)
    mine = [x.to("tpu") for x in (q, k, v, t)]
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's others have no forward derivative
        want = torch.func.jvp(lambda x: attention(x, k, v, is_causal=True), (q,), (t,))
    got = torch.func.jvp(lambda x: attention(x, mine[1], mine[2], is_causal=True), (mine[0],), (mine[3],))
    each = torch.func.vmap(torch.func.grad(lambda x, y: attention(x, y, y).sum()))
    for a, b in zip((*want, each(q, k)), (*got, each(mine[0], mine[1])), strict=True):
        torch.testing.assert_close(b.cpu(), a)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: attention(x, x, y.double()),
        lambda x, y: attention(x, x[..., 1:], x),
        lambda x, y: attention(x, x, x, torch.ones(3, 3, device=x.device)),
        lambda x, y: attention(x, x, x, torch.ones(5, 5, device=x.device, dtype=torch.int64)),
        lambda x, y: attention(x[0, 0, 0], x, x),
        lambda x, y: attention(x, x, x, dropout_p=1.5),
    ],
)
def test_errors_are_torchs(call):
    x = torch.randn(2, 3, 5, 4)
    with pytest.raises(Exception) as want:
        call(x, x)
    with pytest.raises(type(want.value)):
        call(x.to("tpu"), x.to("tpu"))


def test_a_causal_bias_of_torch():
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 6, 4)
    want = attention(q, k, k, causal_lower_right(3, 6))
    mask = torch.ones(3, 6, dtype=torch.bool, device="tpu").tril(3)
    torch.testing.assert_close(attention(q.to("tpu"), k.to("tpu"), k.to("tpu"), mask).cpu(), want)
