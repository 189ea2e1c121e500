"""Random chains of views and in-place writes give the same bytes as CPU."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = (
    "slice",
    "t",
    "select",
    "view",
    "add_",
    "mul_",
    "copy_",
    "zero_",
    "fill_",
    "masked_fill_",
    "index_put_",
)


def _apply(kind, numbers, tensors):
    """One step on a list of aliases; the same numbers choose the same thing on both devices."""
    x = tensors[numbers[0] % len(tensors)]
    a, b = numbers[1], numbers[2]
    if kind == "slice" and x.dim():
        size = x.shape[0]
        tensors.append(x[a % size : a % size + 1 + b % 3 : 1 + b % 2])
    elif kind == "t" and x.dim() >= 2:
        tensors.append(x.transpose(0, 1))
    elif kind == "select" and x.dim() >= 2:
        tensors.append(x.select(a % x.dim(), b % x.shape[a % x.dim()]))
    elif kind == "view" and x.is_contiguous():
        tensors.append(x.view(-1))
    elif kind == "add_":
        x.add_(a + 0.5)
    elif kind == "mul_":
        # small factors keep every value exact, as XLA may round a product and a sum together
        x.mul_(x.flatten()[:1].clone().clamp(max=3))
    elif kind == "copy_":
        x.copy_(torch.arange(x.numel(), dtype=torch.float32).reshape(x.shape))
    elif kind == "zero_":
        x.zero_()
    elif kind == "fill_":
        x.fill_(b)
    elif kind == "masked_fill_":
        x.masked_fill_(x > a, b)
    elif kind == "index_put_" and x.dim():
        x[torch.tensor([a % x.shape[0]])] = float(b)


steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 11), min_size=3, max_size=3)), max_size=7
)


@settings(max_examples=25, deadline=None)
@given(steps, st.sampled_from([(4, 6), (3, 4, 2), (8,)]))
def test_chains_equal_cpu(chain, shape):
    base = torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 7
    host, device = [base.clone()], [base.to("tpu")]
    for kind, numbers in chain:
        _apply(kind, numbers, host)
        _apply(kind, numbers, device)
    for want, got in zip(host, device, strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
        assert got.cpu().equal(want)
