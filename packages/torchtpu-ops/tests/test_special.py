"""Special functions against SciPy in double precision."""

import numpy as np
import pytest
import torch
from scipy import special

REFERENCES = {
    "bessel_j0": special.j0, "bessel_j1": special.j1, "bessel_y0": special.y0, "bessel_y1": special.y1,
    "modified_bessel_i0": special.i0, "modified_bessel_i1": special.i1,
    "modified_bessel_k0": special.k0, "modified_bessel_k1": special.k1,
    "scaled_modified_bessel_k0": special.k0e, "scaled_modified_bessel_k1": special.k1e,
    "airy_ai": lambda x: special.airy(x)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("dtype,error", [(torch.float64, 3e-12), (torch.float32, 3e-6)], ids=str)
def test_bessel_functions(name, dtype, error):
    # the seams between the series and the waves are at 2 and 8
    x = torch.cat([torch.linspace(0.05, 30, 600), torch.tensor([2, 2.0001, 7.9999, 8.0])]).to(dtype)
    got = getattr(torch.special, name)(x.to("tpu")).cpu().double().numpy()
    want = REFERENCES[name](x.double().numpy())
    # relative where the function grows or decays, absolute near its zeros
    assert np.all(
        np.abs(got - want) <= error * np.maximum(np.abs(want), np.minimum(1, x.double().numpy() ** -0.5))
    )
