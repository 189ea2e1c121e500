"""torchtpu.parity names the first layer whose values on the device are not those of the CPU."""

import pytest
import torch
from torch import nn

import torchtpu


class Off(nn.Module):
    """Wrong by one part in a thousand on the device, forward or backward, or not a number there."""

    def __init__(self, forward=1.0, backward=1.0):
        super().__init__()
        self.factors = forward, backward

    def forward(self, x):
        return Scaled.apply(x, *self.factors)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.factor = backward
        return x * forward if x.is_tpu else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor if grad.is_tpu else grad.clone(), None, None


def model(*middle):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), *middle, nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(64, 3),
    )  # fmt: skip


IMAGES = (3, 2, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_models_agree(dtype):
    report = torchtpu.parity(model().to(dtype), torch.randn(IMAGES, dtype=dtype, requires_grad=True))
    assert report.ok and report.first is None, str(report)
    kinds = [row.kind for row in report.rows]
    assert kinds.count("forward") == 7 and kinds.count("backward") == 7  # six layers and the model
    assert [row.name for row in report.rows if row.kind == "gradient"] == [
        "0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias", "argument 0",
    ]  # fmt: skip


def test_attention_and_integers_agree():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    stack = nn.Sequential(nn.Embedding(11, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    report = torchtpu.parity(stack, torch.randint(0, 11, (2, 5)))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("bad", "kind", "name"),
    [
        (Off(forward=1.001), "forward", "3"),
        (Off(backward=1.001), "backward", "2"),
        (Off(float("nan")), "forward", "3"),
    ],
)
def test_the_first_layer_that_differs(bad, kind, name):
    report = torchtpu.parity(model(bad), torch.randn(IMAGES))
    assert (report.first.kind, report.first.name) == (kind, name), str(report)
    assert report.first.finite == (bad.factors[0] == bad.factors[0])
    assert not report.ok and f"first: {kind} of {name}" in str(report)
    assert torchtpu.parity(model(Off(1.001, 1.001)), torch.randn(IMAGES), tolerance=0.1).ok


def test_the_model_stays_as_it_is():
    own, x = model(), torch.randn(IMAGES, requires_grad=True)
    state = {name: value.clone() for name, value in own.state_dict().items()}
    torchtpu.parity(own, x)
    assert all(torch.equal(value, state[name]) for name, value in own.state_dict().items())
    assert x.grad is None and all(p.grad is None for p in own.parameters())
    assert own[4].training and not own._forward_hooks and not own[0]._forward_hooks


def test_functions_shared_layers_and_keywords():
    report = torchtpu.parity(lambda x, *, power: {"a": x**power, "b": x.argmax()}, torch.rand(5), power=3)
    assert report.ok and [row.name for row in report.rows] == ["result", "result[1]"]

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    report = torchtpu.parity(Twice(), torch.randn(2, 4), backward=False)
    assert [row.name for row in report.rows] == ["layer", "layer#2", "Twice"] and report.ok


def test_a_model_that_float64_does_not_fit():
    class Fixed(nn.Module):
        def forward(self, x):
            return x @ torch.ones(4, 4, device=x.device)

    report = torchtpu.parity(Fixed(), torch.randn(2, 4))
    assert report.ok and "compared with the CPU" in str(report)


def test_an_error_names_the_layer():
    class Broken(nn.Module):
        def forward(self, x):
            if x.is_tpu:
                raise ValueError("here")
            return x

    with pytest.raises(ValueError, match="here") as told:
        torchtpu.parity(nn.Sequential(nn.Identity(), Broken()), torch.ones(2))
    assert told.value.__notes__ == ["torchtpu.parity: on tpu, in 1"]
