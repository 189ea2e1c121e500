"""Whole models: one training step on tpu equals CPU, without any fallback."""

import copy

import pytest
import torch
from tests.models import MODELS, loss_of, make, moved
from torch import nn

import torchtpu

# operator by operator these take long, and show nothing that the others and tests/test_digits.py do not
LARGE = ("resnet", "vit", "unet")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}


def _train(model, optimizer, arguments, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *arguments)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.detach().cpu()


def _compare(name, optimizer):
    host, arguments = make(name)
    device = copy.deepcopy(host).to("tpu")
    torchtpu.reset_fallbacks()
    want = _train(host, OPTIMIZERS[optimizer](host.parameters()), arguments)
    got = _train(device, OPTIMIZERS[optimizer](device.parameters()), moved(arguments))
    assert torchtpu.fallbacks() == {}
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for (key, a), b in zip(device.state_dict().items(), host.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-3, msg=key)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in LARGE])
def test_training_steps_equal_cpu(name):
    # Adam would blow up rounding where a gradient is zero in exact arithmetic (the bias of attention keys)
    _compare(name, "sgd")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_equal_cpu(optimizer):
    _compare("mlp", optimizer)


def test_grad_scaler():
    model = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=2.0**20, growth_interval=1)
    loss = model(torch.ones(4, 3, device="tpu")).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**21
    assert model.weight.grad.cpu().allclose(torch.full((2, 3), 4.0))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layer_inference(norm_first, masked):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    with torch.no_grad():
        want = layer(x, src_key_padding_mask=padding)
        device = copy.deepcopy(layer).to("tpu")
        got = device(x.to("tpu"), src_key_padding_mask=None if padding is None else padding.to("tpu"))
    kept = slice(None) if padding is None else ~padding
    torch.testing.assert_close(got.cpu()[kept], want[kept], rtol=1e-4, atol=1e-5)
