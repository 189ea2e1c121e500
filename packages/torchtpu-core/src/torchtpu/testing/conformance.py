"""The kit that the author of a pack runs: values, shapes, gradients, dtypes, predicates and documentation."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from torchtpu.dispatch import lower
from torchtpu.dispatch.fallback import fallbacks
from torchtpu.dispatch.schema import overload
from torchtpu.plugins import (
    CallSpec,
    Kernel,
    Lowering,
    Namespace,
    Pack,
    TensorSpec,
    newop,
    opvalues,
    registry,
    selection,
)
from torchtpu.testing.samples import Sample, fuzz
from torchtpu.testing.samples import samples as samples_of

FUZZED = 300
# relative and absolute error of a kernel, whose sums may be ordered otherwise than the lowering's
TOLERANCE = {"float64": (1e-9, 1e-9), "float32": (1e-4, 1e-5)}
_COARSE = (2e-2, 2e-2)  # 16 bits and fewer


@dataclass
class Report:
    """What was checked: ``checked`` by operator or kernel; ``unsampled`` names operators that no sample fits."""

    checked: list[str] = field(default_factory=list)
    unsampled: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def about(self, what: str) -> Iterator[None]:
        """Turn what a check raises into a fault, so that the next one runs."""
        try:
            yield
            self.checked.append(what)
        except Exception as error:
            self.faults.append(f"{what}: {type(error).__name__}: {error}")


def conformance(
    pack: Pack | str, samples: Mapping[str, Sequence[Sample]] | None = None, fuzzed: int = FUZZED
) -> Report:
    """Check a pack, given as a `Pack` or as the name of an installed one.

    ``samples`` maps operators to calls on CPU tensors, ``(args, kwargs)``, for those that need arguments of
    their own. Raises AssertionError with every fault that was found.
    """
    report = Report()
    with _chosen(pack) as records:
        for lowering in records["torchtpu_lowerings"]:
            with report.about(f"operator {lowering.op}"):
                _operator(lowering, (samples or {}).get(lowering.op), report)
        for kernel in records["torchtpu_kernels"]:
            with report.about(f"kernel {kernel.name} of {kernel.op}"):
                _kernel(kernel, (samples or {}).get(kernel.op), fuzzed)
        for hook, items in records.items():
            for record in items:
                with report.about(f"{hook.removeprefix('torchtpu_')} {_title(record)}"):
                    _documented(record)
    if report.faults:
        raise AssertionError(f"{len(report.faults)} faults:\n" + "\n".join(report.faults))
    return report


@contextmanager
def _chosen(pack: Pack | str) -> Iterator[dict[str, list[Any]]]:
    name = pack if isinstance(pack, str) else "pack"
    with nullcontext() if isinstance(pack, str) else registry.use({name: pack}):
        found = next((s for s in registry.statuses() if s.name == name), None)
        if found is None:
            raise AssertionError(f"no pack is called {name!r}; reinstall the distribution if it is new")
        if found.state != "loaded":
            raise AssertionError(f"pack {name!r} is {found.state}: {found.reason} ({found.remedy})")
        yield found.records


def _op(lowering: Lowering) -> Any:
    new = lowering.schema is not None
    op = newop.define(newop.Definition.of(lowering)) if new else overload(lowering.op)
    if op is None:
        raise AssertionError("this torch has no such operator")
    return op


def _operator(lowering: Lowering, given: Sequence[Sample] | None, report: Report) -> None:
    """One lowering against CPU torch, or a new operator against itself on the CPU."""
    op = _op(lowering)
    if lowering.host or lowering.rng:
        return  # runs on the CPU itself; random numbers have no truth to compare with
    names = lowering.dtypes or ("float32", "bfloat16")
    tried = 0
    for name in names:
        for sample in given or samples_of(op, getattr(torch, name)):
            cast = _cast(sample, getattr(torch, name)) if given else sample
            if _runs(op, cast):
                tried += 1
                _same_as_cpu(op, lowering, cast)
                if lowering.schema is not None:
                    _fake(op, cast)
    if not tried and (given or lowering.schema is not None):
        raise AssertionError("no sample can be run; give some with samples={op: [(args, kwargs)]}")
    if not tried:
        report.unsampled.append(lowering.op)
    if lowering.schema is not None:
        _gradients(op, lowering, given)


def _cast(sample: Sample, dtype: torch.dtype) -> Sample:
    def change(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    return tree_map(change, sample)  # type: ignore[no-any-return]


def _runs(op: Any, sample: Sample) -> bool:
    try:
        op(*_copied(sample[0]), **_copied(sample[1]))
    except Exception:
        return False
    return True


def _copied(tree: Any, device: str = "cpu") -> Any:
    return tree_map(lambda v: v.to(device, copy=True) if isinstance(v, torch.Tensor) else v, tree)


def _same_as_cpu(op: Any, lowering: Lowering, sample: Sample) -> None:
    args, kwargs = sample
    want = op(*_copied(args), **_copied(kwargs))
    before = fallbacks().get(lowering.op, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = op(*_copied(args, "tpu"), **_copied(kwargs, "tpu"))
    if fallbacks().get(lowering.op, 0) != before:
        raise AssertionError("the CPU served it, not the lowering")
    for a, b in zip(_tensors(got), _tensors(want), strict=True):
        rtol, atol = TOLERANCE.get(str(b.dtype)[6:], _COARSE)
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=atol, equal_nan=True)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [v for v in tree_flatten(tree)[0] if isinstance(v, torch.Tensor)]


def _fake(op: Any, sample: Sample) -> None:
    """Shapes and dtypes without data are those of the results."""
    real = _tensors(op(*sample[0], **sample[1]))
    with FakeTensorMode() as mode:
        args, kwargs = tree_map(lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, sample)
        fake = _tensors(op(*args, **kwargs))
    told, true = ([(tuple(t.shape), t.dtype, t.device) for t in ts] for ts in (fake, real))
    if told != true:
        raise AssertionError(f"without data the results are {told}, with data {true}")


def _gradients(op: Any, lowering: Lowering, given: Sequence[Sample] | None) -> None:
    """The gradients against finite differences, in float64 where the operator takes it."""
    names = lowering.dtypes or ("float64",)
    name = next((n for n in ("float64", "float32") if n in names), None)
    if name is None:
        return  # too coarse for differences
    loose = {} if name == "float64" else {"eps": 1e-2, "atol": 5e-2, "rtol": 5e-2}
    dtype = getattr(torch, name)
    for sample in given or samples_of(op, dtype, ((2, 3), (3, 3))):
        if not _runs(op, _cast(sample, dtype)):
            continue
        leaves, tree = tree_flatten(_cast(sample, dtype))
        places = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.is_floating_point()]

        def call(*tensors: Any, leaves: Any = leaves, tree: Any = tree, places: Any = places) -> Any:
            full = list(leaves)
            for i, value in zip(places, tensors, strict=True):
                full[i] = value
            args, kwargs = tree_unflatten(full, tree)
            return tuple(t for t in _tensors(op(*args, **kwargs)) if t.is_floating_point())

        inputs = [leaves[i].detach().clone().requires_grad_() for i in places]
        if inputs and call(*inputs):
            torch.autograd.gradcheck(call, inputs, **loose)


def _kernel(kernel: Kernel, given: Sequence[Sample] | None, fuzzed: int) -> None:
    """A kernel's predicate on any call, and its values in interpret mode against the lowering's."""
    lowering = registry.registry().lowerings.get(registry.normal(kernel.op))
    if lowering is None:
        raise AssertionError("there is no lowering to fall back to and to compare with")
    op = _op(lowering)
    for spec in fuzz(kernel.op, op, fuzzed):
        try:
            reason = kernel.unsuitable(spec)
        except Exception as error:
            raise AssertionError(f"unsuitable raised {error!r} for {spec}") from error
        if not (reason is None or (isinstance(reason, str) and reason)):
            raise AssertionError(f"unsuitable gave {reason!r}, not a sentence or None, for {spec}")
    fn, compared = selection.function(kernel), 0
    if not kernel.interpret:
        return
    for name in ("float32", "bfloat16"):
        for sample in given or samples_of(op, getattr(torch, name)):
            cast = _cast(sample, getattr(torch, name))
            if _runs(op, cast) and kernel.unsuitable(_spec(kernel, op, cast)) is None:
                _same_as_lowering(fn, lowering, op, cast)
                compared += 1
    if not compared:
        raise AssertionError("it is suitable for no sample; give one with samples={op: [(args, kwargs)]}")


def _spec(kernel: Kernel, op: Any, sample: Sample) -> CallSpec:
    def shown(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype)[6:])
        return str(value)[6:] if isinstance(value, torch.dtype) else value

    bound = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    bound.update(lower.bind(op, *sample))
    generation = kernel.generations[0] if kernel.generations else None
    args = {name: tree_map(shown, value) for name, value in bound.items()}
    return CallSpec(op=kernel.op, args=args, target=kernel.platforms[0], generation=generation)


def _same_as_lowering(fn: Callable[..., Any], lowering: Lowering, op: Any, sample: Sample) -> None:
    from jax.experimental.pallas import tpu

    args, kwargs = tree_map(lambda v: opvalues.to_array(v) if isinstance(v, torch.Tensor) else v, sample)
    metas = lower.bind(op, *sample)
    with jax.enable_x64(True):
        values = lower.bind(op, args, kwargs)
        want = lower.apply(op, lowering, metas, values, None)
        with tpu.force_tpu_interpret_mode():
            got = lower.apply(op, replace(lowering, fn=fn), metas, values, None)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        rtol, atol = TOLERANCE.get(b.dtype.name, _COARSE)
        torch.testing.assert_close(
            opvalues.to_tensor(a), opvalues.to_tensor(b), rtol=rtol, atol=atol, equal_nan=True
        )


def _title(record: Any) -> str:
    return str(getattr(record, "op", None) or getattr(record, "name", None) or getattr(record, "kind", ""))


_FUNCTIONS = ("fn", "unsuitable", "run", "build")


def _documented(record: Any) -> None:
    """Every function of a record says what it does, and everything given by name can be imported."""
    if isinstance(record, Namespace):
        importlib.import_module(record.module)
    for name in _FUNCTIONS:
        function = getattr(record, name, None)
        if callable(function) and not (inspect.getdoc(function) or "").strip():
            raise AssertionError(f"its {name} has no docstring")
