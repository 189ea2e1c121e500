"""Fused recurrent cells: modules follow the CPU, forward and backward."""

import copy

import pytest
import torch

from torchtpu.dispatch.fallback import fallbacks, reset_fallbacks

CELLS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]


def run(module, x, device):
    leaf = x.detach().to(device).requires_grad_()
    out, state = module(leaf)
    hidden = state if isinstance(state, torch.Tensor) else state[0] + state[1]
    (out.sin().sum() + hidden.cos().sum()).backward()
    parts = [out, leaf.grad, *(p.grad for p in module.parameters())]
    return [t.detach().cpu() for t in parts]


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_layers(kind, bias, options):
    cpu = kind(3, 4, bias=bias, batch_first=True, dtype=torch.float64, **options)
    tpu, x = copy.deepcopy(cpu).to("tpu"), torch.randn(2, 5, 3, dtype=torch.float64)
    reset_fallbacks()
    for got, want in zip(run(tpu, x, "tpu"), run(cpu, x, "cpu"), strict=True):
        torch.testing.assert_close(got, want)
    assert not fallbacks()


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_single_steps(kind):
    cpu = kind(3, 4, dtype=torch.float64)
    tpu, x = copy.deepcopy(cpu).to("tpu"), torch.randn(2, 3, dtype=torch.float64)
    for layer in (cpu, tpu):
        out = layer(x.to(layer.weight_ih.device))
        (out if isinstance(out, torch.Tensor) else out[0] * out[1]).sum().backward()
    for got, want in zip(tpu.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad)
