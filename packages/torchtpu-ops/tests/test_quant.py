"""Products of 8-bit numbers; fake quantisation and its mask, ties and all dtypes of the zero point."""

import pytest
import torch

aten = torch.ops.aten
# halves of the step are ties
VALUES = torch.cat([torch.linspace(-3, 3, 53), torch.arange(-20, 17) * 0.05])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("zero_point", [0, 1, 3])
def test_per_tensor(check, dtype, zero_point):
    check(aten.fake_quantize_per_tensor_affine_cachemask, VALUES.to(dtype), 0.1, zero_point, -8, 7)


@pytest.mark.parametrize("on", [0, 1])
def test_per_tensor_with_a_switch(check, on):
    scale, zero_point = torch.tensor([0.1]), torch.tensor([1], dtype=torch.int32)
    op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    check(op, VALUES, scale, zero_point, torch.tensor([on]), -8, 7)


@pytest.mark.parametrize(
    "zero_point", [torch.arange(-4, 5, dtype=torch.int32), torch.arange(9) * 0.3 - 2], ids=["int", "float"]
)
def test_per_channel(check, zero_point):
    scale = torch.rand(9) + 0.1
    check(aten.fake_quantize_per_channel_affine_cachemask, VALUES.reshape(9, 10), scale, zero_point, 0, -8, 7)


def test_gradient_passes_where_the_values_are_within_the_range():
    x = VALUES.to("tpu").requires_grad_()
    torch.fake_quantize_per_tensor_affine(x, 0.1, 1, -8, 7).sum().backward()
    inside = ((VALUES * 10).round() + 1 >= -8) & ((VALUES * 10).round() + 1 <= 7)
    assert torch.equal(x.grad.cpu(), inside.float())


def test_product_with_int8_weights(check):
    weights = torch.randint(-128, 128, (16, 32)).to(torch.int8)
    check(aten._weight_int8pack_mm, torch.randn(4, 32).bfloat16(), weights, torch.rand(16).bfloat16())


WHOLE = torch.tensor(0.05), torch.tensor(0.3)
BY_ROW = torch.linspace(0.5, 2, 16)[:, None], torch.linspace(1, 3, 16)[None]


@pytest.mark.parametrize(
    "scales,options",
    [
        (WHOLE, {"out_dtype": torch.float32}),
        (WHOLE, {"out_dtype": torch.bfloat16, "bias": torch.arange(16.0).bfloat16()}),
        (WHOLE, {}),
        (WHOLE, {"scale_result": torch.tensor(0.25)}),
        (BY_ROW, {"out_dtype": torch.bfloat16}),
    ],
    ids=["float32", "bias", "float8", "scaled result", "by row"],
)
def test_scaled_product_of_float8(scales, options):
    a, b = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))

    def run(device):
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        x, y, *s = (t.to(device) for t in (a, b, *scales))
        return torch._scaled_mm(x, y.t(), scale_a=s[0], scale_b=s[1], **moved)

    got, want = run("tpu").cpu(), run("cpu")
    assert got.dtype == want.dtype
    # one unit in the last place of the result
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float8_e4m3fn: 0.13}[want.dtype]
    torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance / 10)
