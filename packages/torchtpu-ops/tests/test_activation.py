"""Activation functions, softmax and their backward functions agree with the CPU."""

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
words = str.split  # tables of names read best as one string
POINTS = [0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 25.0, -25.0]
LIMITS = [INF, -INF, NAN]


def points(dtype, limits=True):
    """The points where activations bend, random ones, and the ends of the range."""
    return torch.tensor(POINTS + torch.randn(9).mul(3).tolist() + (LIMITS if limits else [])).to(dtype)


FORWARD = [
    ("relu", ()), ("gelu", ()), ("silu", ()), ("mish", ()), ("elu", ()), ("elu", (0.5, 1.2, 0.7)), ("hardtanh", ()),
    ("leaky_relu", (0.2,)), ("hardtanh", (-0.3, 0.4)), ("hardswish", ()), ("hardsigmoid", ()), ("softplus", ()),
    ("softplus", (2.0, 5.0)), ("softshrink", (0.4,)), ("hardshrink", (0.4,)), ("threshold", (0.5, -3.0)),
    ("log_sigmoid_forward", ()), ("celu", (0.7,)), ("selu", ()), ("relu6", ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), FORWARD)
def test_forward(check, name, options):
    check(getattr(aten, name), points(torch.float64), *options)
    check(getattr(aten, name), points(torch.float32, name != "gelu").clamp(-2, 25), *options)
    check(getattr(aten, name), points(torch.bfloat16, name != "gelu"), *options)


BACKWARD = [
    ("threshold_backward", (0.5,)), ("silu_backward", ()), ("mish_backward", ()), ("hardtanh_backward", (-1.0, 1.0)),
    ("leaky_relu_backward", (0.2, False)), ("hardswish_backward", ()), ("hardsigmoid_backward", ()),
    ("softplus_backward", (2.0, 5.0)), ("softshrink_backward", (0.5,)), ("hardshrink_backward", (0.5,)),
    ("sigmoid_backward", ()), ("tanh_backward", ()), ("gelu_backward", ()), ("logit_backward", (0.1,)),
    ("logit_backward", ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), BACKWARD)
def test_backward(check, name, options):
    x = points(torch.float64, limits=False)
    check(getattr(aten, name), torch.randn_like(x), x, *options)
    check(getattr(aten, name), torch.randn_like(x).float(), x.float().clamp(-2, 25), *options)


@pytest.mark.parametrize("name", words("hardtanh softshrink hardshrink threshold"))
def test_backward_of_nan(check, name):
    limits = (-1.0, 1.0) if name == "hardtanh" else (0.5,)
    check(
        getattr(aten, f"{name}_backward"), torch.randn(16).double(), torch.full((16,), NAN).double(), *limits
    )


def test_backward_with_other_arguments(check):
    x = points(torch.float64, limits=False)
    g, slope = torch.randn_like(x), torch.rand_like(x)
    for is_result in (False, True):
        check(aten.elu_backward, g, 0.5, 1.2, 0.7, is_result, x)
    check(aten.log_sigmoid_backward, g, x, aten.log_sigmoid_forward(x)[1])
    check(aten.gelu, x, approximate="tanh")
    check(aten.gelu_backward, g, x, approximate="tanh")
    check(aten._prelu_kernel, x, slope)
    check(aten._prelu_kernel_backward, g, x, slope)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gated_linear_unit(check, dim):
    x = torch.randn(4, 6, dtype=torch.float64)
    y = aten.glu(x, dim)
    check(aten.glu, x, dim)
    check(aten.glu_backward, torch.randn_like(y), x, dim)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(check, name, dim):
    forward = getattr(aten, name)
    for dtype in (torch.float64, torch.float32):
        x = (torch.randn(3, 4, 5) * 9).to(dtype)
        check(forward, x, dim, False)
        check(getattr(aten, f"{name}_backward_data"), torch.randn_like(x), forward(x, dim, False), dim, dtype)
    x = (torch.randn(3, 4, 5) * 9).bfloat16()  # CPU rounds the sum too, so it is no reference here
    want = forward(x.double(), dim, False).bfloat16()
    torch.testing.assert_close(forward(x.to("tpu"), dim, False).cpu(), want)
    rows = torch.tensor([[INF, 1.0, 2.0], [-INF, -INF, -INF], [-INF, 1.0, 2.0], [NAN, 1.0, 2.0]]).double()
    check(getattr(aten, name), rows, 1, False)
    check(getattr(aten, name), torch.tensor(2.0), 0, False)
    check(aten._safe_softmax, rows[1:3], 1)


def test_softmax_in_a_wider_dtype(check):
    check(F.softmax, torch.randn(3, 4).bfloat16(), 1, dtype=torch.float32)
    check(F.log_softmax, torch.randint(0, 5, (3, 4)), 1, dtype=torch.float64)


@pytest.mark.parametrize(
    "fn", [F.relu, F.silu, F.gelu, F.leaky_relu, F.elu, F.hardswish], ids=lambda f: f.__name__
)
def test_training_in_short_floats(fn):
    x = torch.randn(5, 7).bfloat16()
    host, device = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
    fn(host).sum().backward()
    fn(device).sum().backward()
    torch.testing.assert_close(device.grad.cpu(), host.grad, rtol=2e-2, atol=2e-2)


def test_forward_derivatives_of_glu(check):
    x, grad = torch.randn(4, 6), torch.randn(4, 3)
    aten = torch.ops.aten
    check(aten.glu_jvp, torch.nn.functional.glu(x, 1), x, torch.randn(4, 6), 1)
    first = aten.glu_backward(grad, x, 1)
    check(aten.glu_backward_jvp, first, grad, x, torch.randn(4, 3), torch.randn(4, 6), 1)


@pytest.mark.parametrize("dim,kind", [(None, None), (-1, 2), (1, 2), (-1, 0), (-1, 1)])
def test_masked_softmax(check, dim, kind):
    mask = torch.rand(2, 3, 5, 5) > 0.5
    mask[0, 0, 0] = True  # nothing is left of this row
    mask = {0: mask[0, 0], 1: mask[0, 0, :2]}.get(kind, mask)
    check(torch.ops.aten._masked_softmax, torch.randn(2, 3, 5, 5), mask, dim, kind)


def test_gradient_of_masked_softmax(check):
    mask = torch.rand(2, 5, 5) > 0.5
    y = torch.ops.aten._masked_softmax(torch.randn(2, 5, 5), mask, -1, 2).nan_to_num()
    check(torch.ops.aten._masked_softmax_backward, torch.randn(2, 5, 5), y, mask, -1)
