"""What every pack tests: the kit, and one comparison with torch."""

import acme_tpu
import pytest
import torch

from torchtpu.testing import conformance


def test_pack():
    report = conformance("acme")
    assert {"operator acme::swiglu", "kernel tiled of acme::swiglu"} <= set(report.checked)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_values_and_gradients(device):
    gate, up = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    want = torch.nn.functional.silu(gate) * up
    want.backward(torch.ones(3, 5))
    mine = [t.detach().to(device).requires_grad_() for t in (gate, up)]
    got = acme_tpu.swiglu(*mine)
    got.backward(torch.ones(3, 5, device=device))
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    for ours, theirs in zip(mine, (gate, up), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
