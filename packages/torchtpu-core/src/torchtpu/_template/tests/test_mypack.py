"""What every pack tests: the kit, and one comparison with torch."""

import pytest
import torch

import mypack_tpu
from torchtpu.testing import conformance


def test_the_pack_conforms() -> None:
    report = conformance("mypack")
    assert {"operator mypack::softcap", "kernel tiled of mypack::softcap"} <= set(report.checked)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_values_and_gradients(device: str) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    want = 2 * torch.tanh(x / 2)
    want.sum().backward()
    mine = x.detach().to(device).requires_grad_()
    got = mypack_tpu.softcap(mine, 2.0)
    got.sum().backward()
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    torch.testing.assert_close(mine.grad.cpu(), x.grad)
