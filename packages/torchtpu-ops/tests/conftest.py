"""What the tests of lowerings share: the CPU client and the comparison with torch's CPU."""

import os

import pytest
import torch

os.environ.setdefault("TORCHTPU_PLATFORM", "cpu")


def _to(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [_to(v, device) for v in value] if isinstance(value, list) else value


def _check(op, *args, **kwargs):
    want = op(*args, **kwargs)
    got = op(*_to(list(args), "tpu"), **{k: _to(v, "tpu") for k, v in kwargs.items()})
    for w, g in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (want, got)), strict=True):
        torch.testing.assert_close(g.cpu(), w, equal_nan=True)


@pytest.fixture
def check():
    """The same call on the CPU and on the device gives the same values and dtypes."""
    return _check
