"""`Precision`: how exactly float32 matrix products are computed, under the names of torch.tpu scripts."""

from __future__ import annotations

import enum

from torchtpu.runtime import precision as _precision


class Precision(enum.Enum):
    """One pass of bfloat16, three passes, or all of float32."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"


class _Switch:
    """Sets a precision at once; as a context it restores the one before."""

    def __init__(self, value: Precision) -> None:
        self._before = _precision.chosen()
        _precision.choose(Precision(value).value)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        _precision.choose(self._before)


def precision(value: Precision) -> _Switch:
    """Select the calling thread's precision of float32 products; usable as a call and as a context.

    It stands over ``torch.set_float32_matmul_precision``. bfloat16 products are exact at any precision.
    """
    return _Switch(value)
