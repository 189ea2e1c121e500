"""``torch.compile(backend="tpu")``: Dynamo's graphs through AOTAutograd into XLA programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import fx

# Known to scripts written for torch_tpu; they change how that package compiles, not what is computed.
IGNORED = frozenset({"async_compile", "serializable"})
OPTIONS = frozenset({"bucket_size", "bucketing", "debug_callback", "num_dynamic_buckets", "xla_options"})
Callback = Callable[[fx.GraphModule, Sequence[Any]], None]


def backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph.

    ``options``: ``debug_callback(graph_module, example_inputs)`` sees each ATen graph as it is
    lowered; ``xla_options`` and names that begin with ``xla_`` are handed to XLA. ``mode`` (torch's preset of
    Inductor options) changes nothing.
    A size that varies is rounded up to a multiple of ``bucket_size``, else to a power of two; after
    ``num_dynamic_buckets`` of these (4) a size goes into a larger one that is there. With ``bucketing``
    ``"required"`` a graph that cannot be padded raises `BucketingError`; with ``"auto"`` each size has a
    program then.
    """
    from torch._dynamo.backends.common import aot_autograd

    from torchtpu.compile.decompose import decompositions

    torch.empty(0, device="tpu")  # starts the device
    register()
    chosen = _checked(options or {})
    buckets = _buckets(chosen)  # one for all graphs, as values go from forward to backward padded
    compiler = partial(_compile, options=chosen, buckets=buckets)
    return aot_autograd(  # type: ignore[no-any-return]
        fw_compiler=partial(compiler, "forward"),
        bw_compiler=partial(compiler, "backward"),
        inference_compiler=partial(compiler, "inference"),
        partition_fn=_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )(module, inputs)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options, those of XLA in ``xla_options``."""
    direct = {
        name: value for name, value in options.items() if name.startswith("xla_") and name not in OPTIONS
    }
    unknown = options.keys() - OPTIONS - IGNORED - direct.keys()
    if unknown:
        raise ValueError(
            f"torchtpu: torch.compile got unknown options {sorted(unknown)}; known: {sorted(OPTIONS | IGNORED)}, "
            "and XLA's own, which begin with xla_"
        )
    return {**options, "xla_options": {**(options.get("xla_options") or {}), **direct}}


def _buckets(options: dict[str, Any]) -> Any:
    from torchtpu.compile.buckets import Buckets

    found = {name: options.get(name) for name in ("num_dynamic_buckets", "bucket_size")}
    for name, value in found.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"torchtpu: {name} must be a positive integer, not {value!r}")
    how = options.get("bucketing", "auto")
    if how not in ("auto", "required"):
        raise ValueError(f"torchtpu: bucketing must be 'auto' or 'required', not {how!r}")
    return Buckets(found["num_dynamic_buckets"], found["bucket_size"], how == "required")


def _partition(joint: fx.GraphModule, inputs: Sequence[Any], **rest: Any) -> tuple[Any, Any]:
    """Cut forward from backward where the least has to be kept between them."""
    from functorch.compile import min_cut_rematerialization_partition

    from torchtpu.compile import passes

    passes.run("joint", "joint", joint)
    return min_cut_rematerialization_partition(joint, inputs, **rest)  # type: ignore[no-any-return]


def _compile(
    kind: str, module: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any], buckets: Any
) -> Callable[[list[Any]], list[Any]]:
    # these import jax, which the device's start must choose a platform for
    from torchtpu.compile import passes
    from torchtpu.compile.graph import Graph

    passes.run("aten", kind, module)
    callback: Callback | None = options.get("debug_callback")
    if callback is not None:
        callback(module, inputs)
    return Graph(module, kind, options["xla_options"], buckets)


# Eager kernels run under Dynamo's frame evaluation after a graph break; it must not look into them.
_OPAQUE = (
    "torchtpu.backend", "torchtpu.compile", "torchtpu.dispatch", "torchtpu.export", "torchtpu.modes",
    "torchtpu.runtime", "torchtpu.tensors", "torchtpu.interop", "jax", "jaxlib", "ml_dtypes",
)  # fmt: skip


@cache
def register() -> None:
    """Tell Dynamo the name "tpu", also where it does not see our entry point, and what not to trace."""
    import torch._dynamo
    from torch._dynamo import trace_rules

    for name in _OPAQUE:
        trace_rules.add(name)
    try:
        torch._dynamo.register_backend(backend, name="tpu")
    except AssertionError:  # the entry point was first
        return
