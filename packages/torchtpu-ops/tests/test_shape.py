"""Copies, joins, pads and embeddings agree with the CPU."""

import pytest
import torch

aten = torch.ops.aten
F64 = torch.float64


def r(*shape):
    return torch.randn(shape, dtype=F64)


@pytest.mark.parametrize("dtype", [F64, torch.bfloat16, torch.int64, torch.bool])
def test_dtypes(check, dtype):
    x = (r(3, 4, 5) * 5).to(dtype)
    check(aten.cat, [x, torch.empty(0, dtype=dtype), x[:, :2]], 1)
    check(aten.stack, [x, x], -1)
    check(aten.repeat, x, [2, 1, 1, 3])
    check(aten.flip, x, [0, -1])
    check(aten.roll, x, [1, -2], [0, 2])
    check(aten.roll, x, [3])
    check(aten.tril, x, 1)
    check(aten.triu, x, -1)
    check(aten.constant_pad_nd, x, [1, -1, 2, 0], 1)


def test_small(check):
    check(aten.trace, r(3, 4))
    check(aten.trace, torch.arange(9).view(3, 3))
    check(aten.cat, [torch.arange(6).view(2, 3), r(1, 3).float()], -2)


@pytest.mark.parametrize("source", [F64, torch.bfloat16, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
def test_casts(check, source, target):
    if source.is_complex and not target.is_complex:
        pytest.skip("the CPU warns about the lost part")
    check(lambda x: x.to(target), (r(3, 4) * 3).to(source))


@pytest.mark.parametrize("offset", [-2, 0, 1])
@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (2, 0)])
def test_diagonals(check, offset, dims):
    x = r(4, 5, 3)
    part = torch.randn_like(x.diagonal(offset, *dims))
    check(aten.diagonal_scatter, x, part, offset, *dims)
    check(aten.diagonal_backward, part, [4, 5, 3], offset, *dims)
    check(aten.diag_embed, r(2, 3), offset, *dims)


@pytest.mark.parametrize("start,end,step", [(1, 7, 1), (0, 2**63 - 1, 2), (-5, -1, 3), (8, 3, 1)])
def test_slices(check, start, end, step):
    x = r(9, 2)
    part = torch.randn_like(x[start:end:step])
    check(aten.slice_scatter, x, part, 0, start, end, step)
    check(aten.slice_backward, part, [9, 2], 0, start, end, step)


def test_single_places(check):
    check(aten.select_scatter, r(3, 4), r(3), 1, -1)
    check(aten.select_backward, r(3), [3, 4], -1, 2)
    check(aten.as_strided_scatter, r(4, 4), r(2, 2), [2, 2], [8, 2], 1)


@pytest.mark.parametrize("size,step", [(3, 1), (2, 3), (4, 2), (5, 5)])
def test_unfold_backward(check, size, step):
    x = r(2, 13, 3)
    check(aten.unfold_backward, torch.randn_like(x.unfold(1, size, step)), [2, 13, 3], 1, size, step)


def test_image_blocks(check):
    check(aten.channel_shuffle, r(2, 6, 3, 3), 3)
    check(aten.pixel_shuffle, r(2, 8, 3, 3), 2)
    check(aten.pixel_unshuffle, r(2, 2, 6, 4), 2)
    geometry = ([2, 3], [1, 2], [1, 1], [2, 1])
    columns = aten.im2col(r(2, 3, 7, 8), *geometry)
    check(aten.im2col, r(3, 7, 8), *geometry)
    check(aten.col2im, columns, [7, 8], *geometry)


@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_fourier(check, normalization):
    z = torch.randn(3, 4, 5, 6, dtype=torch.complex128)
    for forward in (True, False):
        check(aten._fft_c2c, z, [0, 1, 2, 3], normalization, forward)
    check(aten._fft_r2c, r(3, 4, 6), [0, 2], normalization, True)
    check(aten._fft_c2r, z, [0, 3], normalization, 11)


@pytest.mark.parametrize("order", [0, 1, 2, 3, float("inf")])
def test_foreach(check, order):
    check(lambda *x: torch._foreach_norm(list(x), order), r(3, 4), r(2))


def test_jagged_rows_to_padded(check):
    offsets = torch.tensor([0, 2, 2, 7])
    check(torch.ops.aten._jagged_to_padded_dense_forward, torch.randn(7, 3), [offsets], [4], 1.5)
