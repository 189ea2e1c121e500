"""Where torch's meta kernels tell or allow something else than its CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
Args = tuple[Any, ...]
Named = Mapping[str, Any]


def _power(result: Tensor, metas: Sequence[Tensor], args: Args, kwargs: Named) -> Tensor:
    """A bool exponent is no whole number."""
    return result.to(torch.result_type(metas[0], args[1]))


def _one_dtype(result: Any, metas: Sequence[Tensor], args: Args, kwargs: Named) -> Any:
    """Operands of products do not promote."""
    if len({m.dtype for m in metas}) > 1:
        raise RuntimeError(f"expected one dtype, got {', '.join(str(m.dtype) for m in metas)}")
    return result


def _inexact(result: Any, metas: Sequence[Tensor], args: Args, kwargs: Named) -> Any:
    """Only numbers with a fraction have it."""
    if not (metas[0].is_floating_point() or metas[0].is_complex()):
        raise RuntimeError(f"expected a floating point tensor, got {metas[0].dtype}")
    return result


def _sorted(result: Any, metas: Sequence[Tensor], args: Args, kwargs: Named) -> Any:
    """The dimension must exist."""
    dim = kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else -1
    bound = max(metas[0].dim(), 1)
    if not -bound <= dim < bound:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})"
        )
    return result


# an error raised here is replaced by CPU's own for the same call
CORRECTIONS: dict[Any, Callable[..., Any]] = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.sort.default: _sorted,
    _aten.sort.stable: _sorted,
    **dict.fromkeys(
        (_aten.mm.default, _aten.mv.default, _aten.addmm.default, _aten.addmv.default), _one_dtype
    ),
    **dict.fromkeys((_aten.std.correction, _aten.var.correction, _aten._softmax.default), _inexact),
}
# their meta kernels want a number's tensor beside the others, where CUDA takes it from the CPU
ONE_DEVICE = {_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor}
