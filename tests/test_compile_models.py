"""Whole models through torch.compile(backend="tpu", fullgraph=True): forward and training equal the CPU, unbroken."""

import copy

import pytest
import torch
import torch._dynamo
from tests.models import MODELS, loss_of, make, moved
from torch._dynamo.utils import counters

import torchtpu


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    # Dynamo has no rule for nn.LSTM unless asked; ATen's lstm is traced then
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def close(got, want, atol=1e-5):
    torch.testing.assert_close(got.detach().cpu(), want.detach().float(), atol=atol, rtol=1e-4)


def exact(name):
    """The model and its arguments in double precision, and both on the device in single."""
    model, arguments = make(name)
    device = copy.deepcopy(model).to("tpu")
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    return model.double(), wide, device, moved(arguments)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet-2"])
def test_forward(name):
    model, arguments, device, here = exact(name)
    torchtpu.reset_fallbacks()
    with torch.no_grad():
        want = model.eval()(*arguments)
        close(torch.compile(device.eval(), backend="tpu", fullgraph=True)(*here), want)
    assert not counters["graph_break"] and not torchtpu.fallbacks()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet-2"])
def test_training_step(name):
    model, arguments, device, here = exact(name)
    first, second = (torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, device))
    want = loss_of(model, *arguments)
    want.backward()
    torchtpu.reset_fallbacks()
    got = torch.compile(loss_of, backend="tpu", fullgraph=True)(device, *here)
    got.backward()
    close(got, want)
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    first.step()
    torch.compile(second.step, backend="tpu")()
    for (key, value), there in zip(device.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(value.cpu(), there.to(value.dtype), atol=1e-4, rtol=1e-3, msg=key)
    # Optimizer.step calls torch._dynamo.graph_break() around its one graph
    assert all("User-inserted graph break" in reason for reason in counters["graph_break"])
    assert not torchtpu.fallbacks()
