"""Padding, upsampling and grid sampling agree with the CPU, gradients too."""

import pytest
import torch

aten = torch.ops.aten


def r(*shape):
    return torch.randn(shape, dtype=torch.float64)


SIZES = [5, 6, 7]


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", [[1, 2, 0, 3, 2, 1], [1, -1, -1, 2, 0, 1]], ids=str)
def test_pads(check, kind, rank, padding):
    x, padding = r(2, 3, *SIZES[:rank]), padding[: 2 * rank]
    forward = getattr(aten, f"{kind}_pad{rank}d")
    check(forward, x, padding)
    check(forward, x[0], padding)
    check(getattr(aten, f"{kind}_pad{rank}d_backward"), torch.randn_like(forward(x, padding)), x, padding)


NEAREST = [(f"{name}{n}d", n) for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)]
SMOOTH = [
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_bicubic2d", 2),
    ("upsample_trilinear3d", 3),
    ("_upsample_bilinear2d_aa", 2),
    ("_upsample_bicubic2d_aa", 2),
    ("_upsample_lanczos2d_aa", 2),
]
OUTPUTS = [([10, 12, 14], None), ([3, 9, 7], None), ([1, 1, 1], None), ([11, 13, 16], 2.3)]


@pytest.mark.parametrize("output,scale", OUTPUTS, ids=str)
@pytest.mark.parametrize("name,rank", NEAREST)
def test_nearest(check, name, rank, output, scale):
    x, out, scales = r(2, 3, *SIZES[:rank]), output[:rank], [scale] * rank
    check(getattr(aten, name), x, out, *scales)
    check(getattr(aten, f"{name}_backward"), r(2, 3, *out), out, list(x.shape), *scales)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("output,scale", OUTPUTS, ids=str)
@pytest.mark.parametrize("name,rank", SMOOTH)
def test_smooth(check, name, rank, output, scale, align):
    x, out, scales = r(2, 3, *SIZES[:rank]), output[:rank], [scale] * rank
    check(getattr(aten, name), x, out, align, *scales)
    check(getattr(aten, f"{name}_backward"), r(2, 3, *out), out, list(x.shape), align, *scales)


def test_short_floats(check):
    check(aten.upsample_bilinear2d, torch.randn(1, 2, 5, 6).bfloat16(), [7, 9], False)
    check(aten.upsample_nearest2d, torch.randint(0, 255, (1, 2, 5, 6), dtype=torch.uint8), [10, 12])


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align", [False, True])
def test_grid(check, mode, padding, align):
    x, grid = r(2, 3, 5, 6), r(2, 4, 3, 2) * 1.3
    check(aten.grid_sampler_2d, x, grid, mode, padding, align)
    check(aten.grid_sampler_2d_backward, r(2, 3, 4, 3), x, grid, mode, padding, align, [True, True])
    if mode < 2:
        check(aten.grid_sampler_3d, r(2, 3, 4, 5, 6), r(2, 2, 3, 4, 3), mode, padding, align)
