"""How each ATen operator is served on the device: the table behind ``torchtpu ops``."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from functools import cache

import torch
from torch._ops import OpOverload

STATUSES = {
    "lowered": "one XLA program per call, from a lowering or a kernel of core",
    "decomposed": "torch builds it from other operators",
    "host": "declared to run on the host: the result's shape depends on data, or XLA has no algorithm",
    "fallback": "runs on the CPU, counted and told once",
    "unsupported": "torch has no CPU kernel for dense tensors either, or the device has no such layout",
}
_ORDER = list(STATUSES)
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
# other layouts and other libraries' private operators
_FOREIGN = (
    "sparse", "quantize", "mkldnn", "mkl_", "cudnn", "miopen", "_mps", "fbgemm", "nested", "xnnpack", "_cuda",
    "cslt", "vulkan", "fake_quant", "qscheme", "_cufft", "_use_cudnn", "to_padded_tensor", "_flash_attention",
    "_efficient_attention", "_triton", "_test_",
)  # fmt: skip
_FOREIGN_LAYOUTS = (
    "_coalesce", "coalesce", "_indices", "indices", "_values", "values", "ccol_indices", "col_indices",
    "crow_indices", "row_indices", "is_coalesced", "_nnz", "dense_dim", "_dimI", "_dimV", "to_dense", "int_repr",
    "dequantize", "q_scale", "q_zero_point", "q_per_channel_axis", "q_per_channel_scales",
    "q_per_channel_zero_points", "copy_sparse_to_sparse",
)  # fmt: skip


def _has(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _foreign(base: str) -> bool:
    short = base.removeprefix("aten::")
    return short.removesuffix("_") in _FOREIGN_LAYOUTS or any(word in short for word in _FOREIGN)


def _family_status(op: OpOverload) -> str | None:
    """What the packs and core say of an overload, or None."""
    from torchtpu.dispatch.schema import family, op_name
    from torchtpu.plugins.registry import registry

    lowering = family(op, registry().lowerings).lowering
    if lowering is None:  # core's own kernels: views, copies, allocations
        return "lowered" if _has(op_name(op), "PrivateUse1") else None
    return "host" if lowering.host else "lowered"


def _overload(name: str) -> OpOverload | None:
    from torchtpu.dispatch.schema import overload

    return overload(name)


def status(name: str) -> str:
    """How one overload, named as the dispatcher does, is served."""
    from torchtpu.dispatch.fallback import _decomposition, instead

    op = _overload(name)
    if op is None or _foreign(name.partition(".")[0]):
        return "unsupported"
    if instead(op) is not None:
        return "decomposed"
    known = _family_status(op)
    if known is not None and not _has(name, "CompositeImplicitAutograd"):
        return known
    if any(_has(name, key) for key in _COMPOSITE) or _decomposition(op) is not None:
        return "decomposed"
    if _has(name, "CompositeExplicitAutogradNonFunctional"):
        return _through_out(op)
    return "fallback" if _has(name, "CPU") else "unsupported"


def _through_out(op: OpOverload) -> str:
    """torch's functional kernel allocates and calls the ``out=`` form."""
    from torchtpu.dispatch.schema import functional, op_name

    packet = op._overloadpacket
    for variant in packet.overloads():
        other = getattr(packet, variant)
        if any(a.is_out for a in other._schema.arguments) and functional(other) == op_name(op):
            return status(op_name(other))
    return "fallback"


def _is_form(name: str) -> bool:
    """Whether an overload is the in-place, ``out=`` or named form of another."""
    op = _overload(name)
    if op is None:
        return True
    schema = op._schema
    named = any("Dimname" in str(a.type) or a.name in ("dimname", "names") for a in schema.arguments)
    return named or "Dimname" in name or any(a.is_out for a in schema.arguments)


@cache
def report() -> dict[str, str]:
    """The status of every ATen operator, in-place and ``out=`` forms counted with their operator.

    An operator with several overloads has the status of the least well served.
    """
    torch.empty(0, device="tpu")  # registers the kernels
    overloads: dict[str, list[str]] = defaultdict(list)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and not _is_form(name):
            overloads[name.partition(".")[0]].append(name)
    found: dict[str, str] = {}
    for base, names in sorted(overloads.items()):
        twin = base.replace("::__i", "::__") if base.endswith("__") else base.removesuffix("_")
        if twin != base and twin in overloads:
            continue
        known = [status(name) for name in names]
        served = [s for s in known if s != "unsupported"] or known
        found[base.removeprefix("aten::")] = max(served, key=_ORDER.index)
    return found


def counts() -> dict[str, int]:
    """How many operators have each status."""
    found = Counter(report().values())
    return {name: found[name] for name in STATUSES}


def markdown() -> str:
    """The coverage table as a page of the documentation."""
    rows = report()
    lines = [
        "# Operators", "",
        f"Written by `torchtpu ops --markdown` for torch {torch.__version__.partition('+')[0]}; not to be edited.",
        "In-place, `out=` and foreach forms are served with their operator.", "",
        "| status | operators | meaning |", "| --- | ---: | --- |",
    ]  # fmt: skip
    lines += [f"| {name} | {counts()[name]} | {meaning} |" for name, meaning in STATUSES.items()]
    for name in STATUSES:
        members = ", ".join(f"`{op}`" for op, what in rows.items() if what == name)
        lines += ["", f"## {name.capitalize()}", "", *textwrap.wrap(members, 118, break_long_words=False)]
    return "\n".join(lines) + "\n"
