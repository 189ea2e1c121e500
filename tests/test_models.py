"""Whole models: one training step on tpu equals CPU, without any fallback."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchtpu


class Residual(nn.Module):
    """A small residual convnet with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(x + self.block(x), 2), 1).flatten(1))


class Gpt(nn.Module):
    """A decoder block with causal attention and tied weights."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(*x.shape))
        return (x + self.mlp(x)) @ self.tokens.weight.t()


class Recurrent(nn.Module):
    """An LSTM or a GRU and a head."""

    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def _bert():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(11, 16), layer, nn.Linear(16, 5))


IDS = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)), lambda: torch.randn(4, 7)),
    "resnet": (Residual, lambda: torch.randn(2, 3, 8, 8)),
    "gpt": (Gpt, lambda: IDS),
    "bert": (_bert, lambda: IDS),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(3, 5, 4)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(3, 5, 4)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}


def _train(model, optimizer, x, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        target = torch.arange(out.flatten(0, -2).shape[0], device=out.device) % out.shape[-1]
        loss = F.cross_entropy(out.flatten(0, -2), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.detach().cpu()


def _compare(name, optimizer):
    torch.manual_seed(0)
    make, data = MODELS[name]
    host = make()
    device = copy.deepcopy(host).to("tpu")
    x = data()
    torchtpu.reset_fallbacks()
    want = _train(host, OPTIMIZERS[optimizer](host.parameters()), x)
    got = _train(device, OPTIMIZERS[optimizer](device.parameters()), x.to("tpu"))
    assert torchtpu.fallbacks() == {}
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for (key, a), b in zip(device.state_dict().items(), host.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-3, msg=key)


@pytest.mark.parametrize("name", MODELS)
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
