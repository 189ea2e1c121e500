"""torchtpu.bucketing: few programs for many sizes, or a refusal."""

import copy

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import torchtpu
from torchtpu.compile.buckets import Buckets
from torchtpu.errors import BucketingError
from torchtpu.runtime import program


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 11)

    def forward(self, ids):
        x = self.norm(self.tokens(ids))
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_lengths_share_programs_and_keep_their_values():
    host = Tagger()
    device = copy.deepcopy(host).to("tpu")
    fn = torchtpu.bucketing(device, size=16)
    made = 0
    for length in (5, 9, 20, 16, 31):
        ids = torch.randint(0, 11, (2, length))
        moved = ids.to("tpu")
        device.zero_grad()
        torch.tpu.synchronize()
        before = program.compilations[0]
        loss = fn(moved)
        loss.backward()
        torch.tpu.synchronize()
        made += program.compilations[0] - before
        host.zero_grad()
        want = host(ids)
        want.backward()
        torch.testing.assert_close(loss.detach().cpu(), want.detach(), atol=1e-5, rtol=1e-4)
        for got, grad in zip(device.parameters(), host.parameters(), strict=True):
            torch.testing.assert_close(got.grad.cpu(), grad.grad, atol=1e-5, rtol=1e-4)
    # the first size, 16 and 32: each forward and backward; what is around them (zeros of gradients) adds a few
    assert made <= 10


def test_decorator_with_buckets():
    @torchtpu.bucketing(count=1)
    def total(x):
        return (x * 2).sum(0)

    for n in (4, 7, 8, 5):
        x = torch.randn(n, 3)
        torch.testing.assert_close(total(x.to("tpu")).cpu(), (x * 2).sum(0))


def test_refuses_what_no_rule_covers():
    @torchtpu.bucketing
    def root(x):
        return torch.linalg.cholesky_ex(x @ x.T + 9 * torch.eye(len(x), device=x.device))[0].sum()

    root(torch.randn(5, 5, device="tpu"))
    for n in (6, 7):
        with pytest.raises(BucketingError, match="cholesky of matrices whose size varies") as told:
            root(torch.randn(n, n, device="tpu"))
    assert "operator: aten::linalg_cholesky_ex" in str(told.value) and __file__ in str(told.value)
    root(torch.randn(5, 5, device="tpu"))  # what it has a program for still runs


def test_refuses_results_whose_size_depends_on_data():
    fn = torchtpu.bucketing(lambda x: x[x > 0].sum())
    with pytest.raises(BucketingError, match=r"aten\.index\.Tensor cannot be part of a program"):
        fn(torch.randn(8, device="tpu"))


@pytest.mark.parametrize("bad", [{"size": 0}, {"count": -1}, {"size": 1.5}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="must be a positive integer"):
        torchtpu.bucketing(lambda x: x, **bad)
    assert not Buckets().required
