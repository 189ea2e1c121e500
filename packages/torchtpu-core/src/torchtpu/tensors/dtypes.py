"""torch dtypes and their JAX counterparts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_PAIRS = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}
TO_NUMPY = {t: np.dtype(n) for t, n in _PAIRS.items()}
TO_TORCH = {n: t for t, n in TO_NUMPY.items()}


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The NumPy (and JAX) dtype of a torch dtype; TypeError where XLA has none."""
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"torchtpu: dtype {dtype} is not supported on device 'tpu'") from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of a NumPy dtype; TypeError where torch has none."""
    try:
        return TO_TORCH[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"torchtpu: torch has no dtype for {dtype}") from None
