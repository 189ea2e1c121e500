"""`parity`: a model on the CPU and on the device side by side; which layer is the first that differs."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

# The device may err this much more than the CPU does in the same dtype: it adds in another order.
FACTOR = 8
FLOOR = 64  # in units of the dtype's rounding error, for layers in which the CPU happens to be exact


@dataclass(frozen=True)
class Row:
    """One tensor of both runs.

    ``error`` and ``host_error`` are the largest differences of the device and of the CPU from the
    reference, as parts of the reference's largest value; ``allowed`` is what ``error`` may be.
    """

    kind: str  # "forward", "backward" or "gradient"
    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    error: float
    host_error: float
    allowed: float
    finite: bool

    @property
    def ok(self) -> bool:
        """Whether the device's values are as good as the CPU's."""
        return self.finite and self.error <= self.allowed


@dataclass(frozen=True)
class Report:
    """The rows in the order in which the CPU computed them; a text by ``str()``."""

    rows: list[Row]
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return all(row.ok for row in self.rows)

    @property
    def first(self) -> Row | None:
        """The first that differs, None if none does."""
        return next((row for row in self.rows if not row.ok), None)

    def __str__(self) -> str:
        first, bad = self.first, sum(not row.ok for row in self.rows)
        if first is None:
            lines = [f"parity: {len(self.rows)} tensors agree"]
        else:
            what = "not finite" if not first.finite else f"differs by {first.error:.1e}"
            lines = [
                f"parity: {bad} of {len(self.rows)} tensors differ; first: {first.kind} of {first.name} "
                f"({first.layer}), {what}"
            ]
        lines += [self.note] if self.note else []
        width = max((len(row.name) for row in self.rows), default=0)
        lines += [_line(row, width) for row in self.rows]
        return "\n".join(lines)


def _line(row: Row, width: int) -> str:
    mark = "  " if row.ok else "->"
    numbers = f"error {row.error:8.1e}  CPU's {row.host_error:8.1e}  allowed {row.allowed:8.1e}"
    about = f"{row.layer} {list(row.shape)} {str(row.dtype)[6:]}"
    return f"{mark} {row.kind:8} {row.name:{width}}  {numbers}  {about}{'' if row.finite else '  NOT FINITE'}"


@dataclass
class _Run:
    """What one run gave: values by (kind, name, number of the result)."""

    values: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    inside: list[str] = field(default_factory=list)

    def keep(self, kind: str, name: str, output: Any) -> None:
        """A copy of each tensor in ``output``: it may be overwritten later."""
        for i, leaf in enumerate(tree_leaves(output)):
            if isinstance(leaf, Tensor):
                self.values[kind, name, i] = leaf.detach().clone()


def parity(
    model: Callable[..., Any],
    *args: Any,
    backward: bool = True,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Report:
    """Run ``model(*args, **kwargs)`` on the CPU and on the device, forward and backward, and compare each layer.

    The truth is a run on the CPU in float64. A tensor differs if its largest error, as a part of the truth's
    largest value, is above 8 times that of the CPU in the model's own dtype and above 64 roundings of that
    dtype (1024 of a model that is float64 itself), or above ``tolerance`` in place of these; or if it is finite
    where the truth is not, or the other way round. The backward pass starts
    from the same random gradients of every result. Compared are the results of every module, by its name and
    number of call, the gradients of these, and those of the parameters.

    ``model`` may be a function too, then only its results are compared. Copies are run, so the model, its
    gradients and the arguments stay as they are. Dropout layers are switched off in them, as no two devices draw
    the same numbers; other random operators do differ. An error of the device's run gets a note with the layer.
    """
    seed = torch.initial_seed() % 2**31
    host, failure = _run(model, args, kwargs, "cpu", None, backward, seed), ""
    try:
        truth = _run(model, args, kwargs, "cpu", torch.float64, backward, seed)
    except Exception as error:
        truth = host
        failure = f"  no truth in float64 ({type(error).__name__}: {str(error).splitlines()[0]}); compared with the CPU"
    device = _run(model, args, kwargs, "tpu", None, backward, seed)
    largest: dict[str, float] = {}
    for (kind, *_), value in truth.values.items():
        largest[kind] = max(largest.get(kind, 0.0), _largest(value))
    rows = []
    for key, want in truth.values.items():
        if key not in device.values or key not in host.values:
            raise RuntimeError(f"parity: {key[0]} of {key[1]} is there on the CPU and not on the device")
        values = host.values[key], device.values[key].cpu()
        rows.append(_row(key, want, *values, largest[key[0]], tolerance, host.layers))
    return Report(rows, failure)


def _row(
    key: tuple[str, str, int], want: Tensor, host: Tensor, got: Tensor, largest: float, tolerance: float | None,
    layers: dict[str, str],
) -> Row:  # fmt: skip
    kind, name, number = key
    inexact = host.dtype.is_floating_point or host.dtype.is_complex
    scale, floor = _largest(want), FLOOR * torch.finfo(host.dtype).eps if inexact else 0.0
    if inexact and want.dtype == host.dtype:
        # the truth has rounding errors too, which are all there is of a gradient that cancels out
        scale, floor = max(scale, largest), 16 * floor
    own = _error(host, want, scale)
    allowed = max(FACTOR * own, floor if tolerance is None else tolerance)
    finite = not inexact or got.shape != want.shape or torch.equal(got.isfinite(), want.isfinite())
    return Row(
        kind, name if number == 0 else f"{name}[{number}]", layers.get(name, "parameter"), tuple(got.shape), got.dtype,
        _error(got, want, scale), own, allowed, finite,
    )  # fmt: skip


def _largest(value: Tensor) -> float:
    """The largest finite magnitude."""
    value = value[value.isfinite()].abs()
    return value.max().item() if value.numel() else 0.0


def _error(got: Tensor, want: Tensor, scale: float) -> float:
    """The largest difference of finite values as a part of ``scale``."""
    if got.shape != want.shape:
        return math.inf
    wide = torch.complex128 if want.is_complex() or got.is_complex() else torch.float64
    return _largest(got.to(wide) - want.to(wide)) / (scale or 1.0)


def _run(
    model: Callable[..., Any],
    args: Any,
    kwargs: Any,
    device: str,
    dtype: torch.dtype | None,
    backward: bool,
    seed: int,
) -> _Run:
    run, moved = _Run(), model
    if isinstance(model, nn.Module):
        moved = copy.deepcopy(model).to(device=device, dtype=dtype)
        moved.zero_grad()
        for module in moved.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
    own_args, own_kwargs = tree_map(lambda v: _moved(v, device, dtype), (args, kwargs))
    with torch.set_grad_enabled(backward), _watched(run, moved, backward):
        try:
            output = moved(*own_args, **own_kwargs)
            if not isinstance(model, nn.Module):
                run.layers["result"] = getattr(model, "__name__", type(model).__name__)
                run.keep("forward", "result", output)
            if backward:
                _pull(output, seed)
        except Exception as error:
            layer = run.inside[-1] if run.inside else "the model"
            error.add_note(f"torchtpu.parity: on {device}, in {layer}")
            raise
    if isinstance(moved, nn.Module):
        for name, parameter in moved.named_parameters():
            if parameter.grad is not None:
                run.keep("gradient", name, parameter.grad)
    for i, leaf in enumerate(tree_leaves((own_args, own_kwargs))):
        if isinstance(leaf, Tensor) and leaf.grad is not None:
            run.layers[f"argument {i}"] = "argument"
            run.keep("gradient", f"argument {i}", leaf.grad)
    return run


def _moved(value: Any, device: str, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    wide = dtype if dtype is not None and value.is_floating_point() else None
    copied = value.detach().clone().to(device=device, dtype=wide)
    return copied.requires_grad_(value.requires_grad)


def _pull(output: Any, seed: int) -> None:
    """Start the backward pass from random gradients, the same in every run but for their dtype."""
    generator = torch.Generator().manual_seed(seed)
    leaves = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
    grads = [
        torch.randn(
            t.shape, generator=generator, dtype=torch.complex128 if t.is_complex() else torch.float64
        ).to(t)
        for t in leaves
    ]
    if leaves:
        torch.autograd.backward(leaves, grads)


@contextmanager
def _watched(run: _Run, model: Any, backward: bool) -> Iterator[None]:
    """Keep what each module gives, and the gradients of that."""
    if not isinstance(model, nn.Module):
        yield
        return
    calls: Counter[str] = Counter()
    handles = []

    def enter(name: str) -> None:
        calls[name] += 1
        run.inside.append(name if calls[name] == 1 else f"{name}#{calls[name]}")

    def leave(module: nn.Module, output: Any) -> None:
        name = run.inside.pop()
        run.layers[name] = type(module).__name__
        run.keep("forward", name, output)
        for i, leaf in enumerate(tree_leaves(output)):
            if backward and isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda grad, key=("backward", name, i): _seen(run, key, grad))

    for path, module in model.named_modules():
        name = path or type(model).__name__
        handles.append(module.register_forward_pre_hook(lambda _m, _a, name=name: enter(name)))
        handles.append(module.register_forward_hook(lambda m, _a, output: leave(m, output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _seen(run: _Run, key: tuple[str, str, int], grad: Tensor) -> None:
    run.values[key] = grad.detach().clone()
