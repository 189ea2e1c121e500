"""Small models of the usual kinds with inputs for them: what tests train on the device and on the CPU."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)), inplace=True)
        return F.relu(self.norm2(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18's stem, two blocks for each stage, of which it has four, and head, with few channels."""

    def __init__(self, channels=(4, 6, 8, 8)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        ends = (channels[0], *channels[:-1])
        self.stages = nn.Sequential(
            *[
                nn.Sequential(BasicBlock(i, o, 1 + (i != o)), BasicBlock(o, o, 1))
                for i, o in zip(ends, channels, strict=True)
            ]
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(channels[-1], 5)

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class Attention(nn.Module):
    """Self-attention from one projection to queries, keys and values."""

    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A transformer's block, norms first."""

    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token, places and two blocks (Dosovitskiy et al., 2021)."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Gpt(nn.Module):
    """GPT-2: learned places, causal attention, the head tied to the tokens."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.blocks = nn.Sequential(Block(16, 2, causal=True), Block(16, 2, causal=True))
        self.norm = nn.LayerNorm(16)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.norm(self.blocks(x)) @ self.tokens.weight.t()


class Bert(nn.Module):
    """BERT: tokens, places and kinds summed, torch's encoder with padding masked, a pooled head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.kinds = nn.Embedding(11, 16), nn.Embedding(6, 16), nn.Embedding(2, 16)
        self.norm = nn.LayerNorm(16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, ids, kinds):
        x = self.tokens(ids) + self.kinds(kinds) + self.places.weight[: ids.shape[1]]
        x = self.encoder(self.norm(x), src_key_padding_mask=ids == 0)
        return self.head(torch.tanh(self.pool(x[:, 0])))


def rotate(x):
    """Rotary places (Su et al., 2021) for (batch, heads, length, width)."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=x.dtype), rates)
    cos, sin, (a, b) = angles.cos(), angles.sin(), x.split(half, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class LlamaBlock(nn.Module):
    """RMSNorm, attention whose keys and values serve two heads each, SwiGLU."""

    def __init__(self, width=16, heads=4, shared=2):
        super().__init__()
        self.heads, self.shared = heads, shared
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * width // (heads // shared), bias=False)
        self.gate, self.up = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down = nn.Linear(24, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.shared, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Two of its blocks (Touvron et al., 2023) with a head of its own."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 16), nn.Linear(16, 11, bias=False)
        self.blocks, self.norm = nn.Sequential(LlamaBlock(), LlamaBlock()), nn.RMSNorm(16, eps=1e-5)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids))))


class Recurrent(nn.Module):
    """An LSTM or a GRU and a head."""

    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class TimedBlock(nn.Module):
    """GroupNorm, SiLU and convolution twice, with the time's embedding between."""

    def __init__(self, inside, outside):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inside), nn.GroupNorm(2, outside)
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.time, self.shortcut = nn.Linear(8, outside), nn.Conv2d(inside, outside, 1)

    def forward(self, x, time):
        y = self.first(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.second(F.silu(self.norm2(y))) + self.shortcut(x)


class UNet(nn.Module):
    """A denoiser (Ho et al., 2020): one level down and up again, attention where it is smallest."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.stem, self.down = nn.Conv2d(3, 4, 3, padding=1), TimedBlock(4, 8)
        self.middle, self.norm, self.attention = TimedBlock(8, 8), nn.GroupNorm(4, 8), Attention(8, 2)
        self.smaller, self.larger = nn.Conv2d(8, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.up, self.head = TimedBlock(16, 4), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x, steps):
        rates = torch.exp(-torch.arange(4, device=x.device) * 1.5)
        angles = steps[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        fine = self.down(self.stem(x), time)
        coarse = self.middle(self.smaller(fine), time)
        flat = self.norm(coarse).flatten(2).transpose(1, 2)
        coarse = coarse + self.attention(flat).transpose(1, 2).view(coarse.shape)
        wide = self.larger(coarse) + F.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.head(self.up(torch.cat([wide, fine], 1), time))


def mlp():
    """7 numbers to 5."""
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5))


def _ids():
    ids = torch.randint(1, 11, (2, 6))
    ids[1, 4:] = 0
    return ids


# the model, and arguments for it
MODELS = {
    "mlp": (mlp, lambda: (torch.randn(4, 7),)),
    "resnet": (ResNet, lambda: (torch.randn(2, 3, 32, 32),)),
    "resnet-2": (lambda: ResNet((4, 6)), lambda: (torch.randn(2, 3, 16, 16),)),
    "vit": (ViT, lambda: (torch.randn(2, 3, 8, 8),)),
    "gpt": (Gpt, lambda: (_ids(),)),
    "bert": (Bert, lambda: (_ids(), torch.randint(0, 2, (2, 6)))),
    "llama": (Llama, lambda: (_ids(),)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: (torch.randn(3, 5, 4),)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: (torch.randn(3, 5, 4),)),
    "unet": (UNet, lambda: (torch.randn(2, 3, 8, 8), torch.tensor([3, 50]))),
}


def make(name, seed=0):
    """A model in float32 on the CPU and its arguments."""
    torch.manual_seed(seed)
    model, arguments = MODELS[name]
    return model(), arguments()


def loss_of(model, *arguments):
    """Cross entropy of the last dimension against fixed classes."""
    out = model(*arguments).flatten(0, -2)
    return F.cross_entropy(out, torch.arange(out.shape[0], device=out.device) % out.shape[-1])


def moved(arguments):
    """Copies on the device."""
    return tuple(a.to("tpu") for a in arguments)
