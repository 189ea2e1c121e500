"""Segment reductions, their gradients and tensor hashes agree with the CPU."""

import pytest
import torch

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]
LENGTHS = torch.tensor([3, 0, 1, 4])
OFFSETS = torch.tensor([0, 3, 3, 4, 8])


@pytest.mark.parametrize("initial", [None, 1.5])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_values(check, reduce, initial):
    x = torch.randn(8, 3, dtype=torch.float64)
    check(torch.segment_reduce, x, reduce, lengths=LENGTHS, initial=initial)
    check(torch.segment_reduce, x, reduce, offsets=OFFSETS, initial=initial)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_batches_and_half(check, reduce):
    lengths = torch.tensor([[2, 3], [5, 0]])
    check(torch.segment_reduce, torch.randn(2, 5, 2, dtype=torch.float64), reduce, lengths=lengths, axis=1)
    check(torch.segment_reduce, torch.ones(4, dtype=torch.bfloat16), reduce, lengths=torch.tensor([1, 3]))


@pytest.mark.parametrize("values", ["different", "equal", "with zeros"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients(reduce, values):
    x = torch.randn(8, 2, dtype=torch.float64)
    if values == "equal":
        x = x.round()
    if values == "with zeros":
        x[[0, 3, 5, 6]] = 0
    grads = []
    for device in ("cpu", "tpu"):
        leaf = x.clone().to(device).requires_grad_()
        lengths = torch.tensor([3, 1, 4]).to(device)
        out = torch.segment_reduce(leaf, reduce, lengths=lengths, initial=0.5)
        out.backward(torch.arange(1.0, 7, dtype=torch.float64).reshape(3, 2).to(device))
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str
)
def test_hash(dtype):
    x = (torch.randn(4, 5) * 9).to(dtype)
    for dims, keep in (((), False), ((1,), True), ((0, 1), False)):
        got = torch.hash_tensor(x.to("tpu"), dims, keepdim=keep)
        assert got.cpu().equal(torch.hash_tensor(x, dims, keepdim=keep))
