"""Debug mode: one operator at a time, waited for and checked, errors at the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from torchtpu import config
from torchtpu.dispatch import lower
from torchtpu.dispatch.schema import UNLOWERED, op_name
from torchtpu.errors import user_frame


def _shapes(args: Any, kwargs: Any) -> str:
    def show(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{str(value.dtype)[6:]}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(show(v) for v in value) + "]"
        return repr(value)

    return ", ".join([show(a) for a in args] + [f"{k}={show(v)}" for k, v in kwargs.items()])


def located(error: BaseException, family: Any, args: Any, kwargs: Any) -> BaseException:
    """The same kind of error with the operator, its argument shapes and the user's line added."""
    text = f"{error}\n  operator: {op_name(family.op)}({_shapes(args, kwargs)})\n  at {user_frame()}"
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return torch.OutOfMemoryError(text)
    try:
        return type(error)(text)
    except Exception:
        return RuntimeError(text)


def _bad(array: Any) -> tuple[bool, bool]:
    values = np.asarray(array)
    if values.dtype.kind not in "fcV" or not values.size:
        return False, False
    if values.dtype.kind == "V" or values.dtype.itemsize == 2 or values.dtype.itemsize == 1:
        values = values.astype(np.float32)
    return bool(np.isnan(values).any()), bool(np.isinf(values).any())


def _state(values: Any) -> tuple[bool, bool]:
    """Whether any tensor or number in ``values`` is NaN, is infinite."""
    nan = inf = False
    for leaf in tree_flatten(values)[0]:
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            found = _bad(
                leaf.detach().cpu().to(torch.complex128 if leaf.is_complex() else torch.float64).numpy()
            )
        elif isinstance(leaf, float):
            found = leaf != leaf, leaf in (float("inf"), float("-inf"))
        else:
            continue
        nan, inf = nan or found[0], inf or found[1]
    return nan, inf


def _validate(family: Any, args: Any, kwargs: Any) -> None:
    check = family.lowering.validate if family.lowering is not None else None
    if check is None or family.base is not None:
        return
    host = tree_map(lambda v: v.cpu().float().numpy() if isinstance(v, Tensor) and v.dtype == torch.bfloat16
                    else v.cpu().numpy() if isinstance(v, Tensor) else v, (args, kwargs))  # fmt: skip
    bound = lower.bind(family.op, *host)
    check(**{k: v for k, v in bound.items() if k not in UNLOWERED and k not in family.outs})


def run(family: Any, args: Any, kwargs: Any, launch: Callable[[], Any]) -> Any:
    """Check the indices, launch, wait, check the results for new NaN and Inf."""
    try:
        with torch.no_grad(), config.mode("strict"):
            _validate(family, args, kwargs)
            before = _state((args, kwargs))
        result = launch()
        with torch.no_grad(), config.mode("strict"):
            after = _state(result)
        for kind, was, now in zip(("NaN", "Inf"), before, after, strict=True):
            if now and not was and not (kind == "Inf" and before[0]) and not _fresh_memory(family):
                raise FloatingPointError(f"{kind} in the result of an operator whose inputs have none")
    except Exception as error:
        raise located(error, family, args, kwargs) from None
    return result


def _fresh_memory(family: Any) -> bool:
    """Copies and fills may bring what the user asked for."""
    name = family.op._schema.name.removeprefix("aten::").rstrip("_")
    return name in {"copy", "fill", "clone", "full", "masked_fill", "index_put", "scatter", "constant_pad_nd"}
