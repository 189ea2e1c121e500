"""Varying sizes in few programs: `bucketing` pads where that is proved exact, and refuses elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def bucketing(
    fn: Callable[..., Any] | None = None, /, *, size: int | None = None, count: int | None = None
) -> Any:
    """Let the calls of a function or module share programs between tensor sizes that vary.

    Usable as a decorator. A size that varies from call to call is padded, up to the next multiple of ``size``
    elements, by default the next power of two; after ``count`` buckets (4) a size goes into a larger one that
    is there. The first size, and sizes 0 and 1, have programs of their own. What padding would reach is
    masked, so results are those of the unpadded call; gradients flow as ever.
    Python code that branches on a size makes torch trace again, as with every compiled function.

    Raises:
        BucketingError: in the call where a size first varies, if no rule proves that; it names the operator
            and the line. Nothing has run then.
        ValueError: ``size`` or ``count`` is not a positive integer.
        torch._dynamo.exc.Unsupported: ``fn`` is not one graph (see ``torch.compile``'s ``fullgraph``).
    """
    if fn is None:
        return partial(bucketing, size=size, count=count)
    for name, value in (("size", size), ("count", count)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"torchtpu.bucketing: {name} must be a positive integer, not {value!r}")
    options = {"bucketing": "required", "bucket_size": size, "num_dynamic_buckets": count}
    chosen = {name: value for name, value in options.items() if value is not None}
    return torch.compile(fn, backend="tpu", dynamic=True, fullgraph=True, options=chosen)
