"""Runs one sample of torch's operator database on the CPU and on the device, and says how they differ."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

KINDS = ("forward", "method", "inplace", "out", "backward", "gradgrad")
# what they draw differs between devices by design; shapes, dtypes and strides must agree
_RANDOM = """bernoulli cauchy exponential geometric log_normal multinomial normal uniform randint randint_like
    randn randn_like rand_like randperm empty empty_like empty_permuted empty_strided new_empty new_empty_strided
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
    nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d pca_lowrank svd_lowrank"""
RANDOM = frozenset(_RANDOM.split())
# position of ``dim`` among the arguments after the input; which of equal elements comes first is open
UNSTABLE = {"sort": 0, "argsort": 0, "mode": 0, "topk": 1, "kthvalue": 1}
# which unit vector stands for an eigenspace is open: its sign, or phase
PHASED = frozenset({"linalg.eigh"})
# for half precision the CPU saves statistics in it; the device, as CUDA and torch's meta kernels, in float32
WIDE_STATISTICS = frozenset(
    {"native_batch_norm", "native_layer_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}
)
# torch wants this tensor on the CPU whatever the device of the input
HOST_ARGUMENTS = frozenset({"tensor_split"})
SECONDS = 60


class TimedOut(Exception):
    """A sample took longer than `SECONDS`."""


@dataclass(frozen=True)
class Case:
    """One operator of the database, one dtype, one way of calling it."""

    op: Any
    dtype: torch.dtype
    kind: str

    @property
    def name(self) -> str:
        """The database's name with the variant: ``nn.functional.pad-reflect``."""
        variant = self.op.variant_test_name
        return f"{self.op.name}-{variant}" if variant else str(self.op.name)

    def __str__(self) -> str:
        return f"{self.name}-{str(self.dtype)[6:]}-{self.kind}"


def cases(dtypes: Any, kinds: Any = KINDS) -> Iterator[Case]:
    """The cases that the database declares for the CPU."""
    for op, dtype, kind in itertools.product(op_db, dtypes, kinds):
        if dtype in op.supported_dtypes("cpu") and _declared(op, dtype, kind):
            yield Case(op, dtype, kind)


def _declared(op: Any, dtype: torch.dtype, kind: str) -> bool:
    if kind == "method":
        return op.method_variant is not None
    if kind == "inplace":
        return op.inplace_variant is not None
    if kind == "out":
        return bool(op.supports_out)
    if kind in ("backward", "gradgrad"):
        fits = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        return fits and (kind == "backward" or bool(op.supports_gradgrad))
    return True


def samples(case: Case, limit: int | None = None) -> Iterator[Any]:
    """The database's samples on the CPU, the same in every process."""
    torch.manual_seed(0)
    grad = case.kind in ("backward", "gradgrad")
    found = case.op.sample_inputs("cpu", case.dtype, requires_grad=grad)
    return itertools.islice(found, limit)


@contextmanager
def alarm() -> Iterator[None]:
    """Raises `TimedOut` in a block that takes longer than `SECONDS`."""

    def stop(*_: Any) -> None:
        raise TimedOut(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def moved(case: Case, sample: Any, device: str, exact: bool = False) -> Any:
    """A deep copy of the sample on ``device``; with ``exact`` in double precision."""

    def wide(dtype: torch.dtype) -> torch.dtype:
        if not exact or not (dtype.is_floating_point or dtype.is_complex):
            return dtype
        return torch.complex128 if dtype.is_complex else torch.float64

    def move(t: Any, to: str = device) -> Any:
        if isinstance(t, torch.dtype):
            return wide(t)
        if t == "cpu" or (isinstance(t, torch.device) and t.type == "cpu"):
            return to
        if not isinstance(t, torch.Tensor):
            return t
        return t.detach().clone().to(to).to(wide(t.dtype)).requires_grad_(t.requires_grad)

    def stay(t: Any) -> Any:
        return move(t, "cpu")

    rest = stay if case.op.name in HOST_ARGUMENTS else move
    return tree_map(move, sample.input), tree_map(rest, tuple(sample.args)), tree_map(rest, sample.kwargs)


def _function(case: Case) -> Any:
    if case.kind == "method":
        return case.op.method_variant
    return case.op.inplace_variant if case.kind == "inplace" else case.op.op


def call(case: Case, sample: Any, device: str, exact: bool = False) -> Any:
    """The values that the kind of case compares."""
    torch.manual_seed(1)
    first, args, kwargs = moved(case, sample, device, exact)
    fn = _function(case)
    if case.kind == "out":
        like = fn(*moved(case, sample, device, exact)[:1], *args, **kwargs)
        # not empty: the CPU leaves the target of a one-dimensional ihfftn as it is
        outs = tree_map(lambda t: torch.ones_like(t) if isinstance(t, torch.Tensor) else t, like)
        return fn(first, *args, **kwargs, out=outs), outs
    if case.kind == "inplace":
        first = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, first)
        return fn(first, *args, **kwargs), first
    result = fn(first, *args, **kwargs)
    if case.kind not in ("backward", "gradgrad"):
        return result
    return _gradients(case, sample, result, (first, args, kwargs))


def _gradients(case: Case, sample: Any, result: Any, inputs: Any) -> Any:
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    leaves = [t for t in tree_flatten(inputs)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    if not leaves or not outputs:
        return None
    again = case.kind == "gradgrad"
    grads = torch.autograd.grad(
        outputs, leaves, _weights(case, outputs), create_graph=again, allow_unused=True
    )
    if not again:
        return grads
    seconds = [g for g in grads if g is not None and g.requires_grad]
    if not seconds:
        return None
    return torch.autograd.grad(seconds, leaves, _weights(case, seconds), allow_unused=True)


def _weights(case: Case, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fixed cotangents, not all equal where the order of equal elements is defined."""
    if case.op.name in (*UNSTABLE, "msort"):
        return [torch.ones_like(t) for t in tensors]
    out = []
    for t in tensors:
        wave = torch.arange(t.numel(), dtype=torch.float64).mul(0.7).cos().add(1.5).reshape(t.shape)
        out.append(wave.to(t.dtype).to(t.device))
    return out


def _host(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, tree)


def _alike(got: Any, want: Any) -> None:
    """Compare all but the values."""
    got, want = (
        tree_map(lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) else t, x) for x in (got, want)
    )
    torch.testing.assert_close(got, want)


def _same(case: Case, sample: Any, got: Any, want: Any) -> None:
    if case.op.name in RANDOM:
        return _alike(got, want)
    if case.op.name in UNSTABLE and case.kind not in ("backward", "gradgrad") and sample.input.ndim:
        got, want = (_indexed(case, sample, tree) for tree in (got, want))
    if case.op.name in PHASED and case.kind not in ("backward", "gradgrad"):
        got, want = (_turned(tree) for tree in (got, want))
    torch.testing.assert_close(got, want, equal_nan=True)


def _indexed(case: Case, sample: Any, tree: Any) -> list[Any]:
    """The results with each index tensor replaced by what it points at, and the count of its values."""
    name, position = case.op.name, UNSTABLE[case.op.name]
    arguments = dict(enumerate(sample.args))
    dim = sample.kwargs.get("dim", arguments.get(position, -1))
    leaves = tree_flatten(tree)[0]
    if sample.kwargs.get("stable"):
        return leaves
    for i in range(0, len(leaves), 1) if name == "argsort" else range(1, len(leaves), 2):
        index = leaves[i] if leaves[i].ndim == sample.input.ndim else leaves[i].unsqueeze(dim)
        ordered = index.sort(dim).values
        distinct = (ordered.diff(dim=dim) > 0).sum()
        leaves[i] = (sample.input.detach().gather(dim, index), distinct, leaves[i].shape)
    return leaves


def _turned(tree: Any) -> list[Any]:
    """Values and vectors, each vector turned so that its largest component is real and positive."""
    values, vectors = tree_flatten(tree)[0][:2]
    if vectors.numel():
        largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
        vectors = vectors * (largest.abs() / largest)
    return [values, vectors]


def _unlike(got: Any, want: Any) -> str | None:
    """How two draws differ in shape or dtype."""
    try:
        _alike(got, want)
    except AssertionError as error:
        return str(error)[:300]
    return None


class _Draws(TorchDispatchMode):
    """Notes whether an operator draws from the random stream; attention does so by dropout alone."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at one call and make it."""
        self.found |= torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func)
        return func(*args, **(kwargs or {}))


def _random(case: Case, sample: Any) -> bool:
    """Whether the CPU draws, as for dropout; what is drawn differs between devices by design."""
    with _Draws() as draws:
        call(case, sample, "cpu")
    return draws.found


def _strides(got: Any, want: Any) -> str | None:
    for g, w in zip(tree_flatten(got)[0], tree_flatten(want)[0], strict=True):
        if isinstance(w, torch.Tensor) and w.layout is torch.strided and isinstance(g, torch.Tensor):
            numel = w.numel() > 1 and any(n > 1 for n in w.shape)
            ours = [s for s, n in zip(g.stride(), g.shape, strict=True) if n > 1]
            theirs = [s for s, n in zip(w.stride(), w.shape, strict=True) if n > 1]
            if not is_non_overlapping_and_dense_or_false(w):
                # a slice of a workspace, the size of which is the CPU's own affair
                ours, theirs = (sorted(range(len(x)), key=x.__getitem__) for x in (ours, theirs))
            if numel and ours != theirs:
                return f"strides {g.stride()}, CPU has {w.stride()}"
    return None


def check(case: Case, sample: Any, run: Callable[..., Any] = call) -> str | None:
    """None if the device does what the CPU does, else how it differs.

    A value may agree with the CPU's or, for floats, with the CPU's in double precision rounded to the
    dtype, or be as near to that as the CPU's: its half-precision kernels round at every step. ``run``
    calls the device.
    """
    try:
        want = call(case, sample, "cpu")
    except Exception as error:
        return _both_fail(case, sample, error)
    try:
        with alarm():
            result = run(case, sample, "tpu")
            got = _host(result)
    except Exception as error:
        # the database marks such samples, and addbmm_ on the CPU resizes its target
        if case.kind == "inplace" and sample.broadcasts_input and "broadcast shape" in str(error):
            return None
        return f"{type(error).__name__}: {str(error)[:300]}"
    want_here = _host(want)
    if case.op.name in WIDE_STATISTICS and case.dtype.itemsize == 2:
        got = tree_map(lambda g, w: g if g is None else g.to(w.dtype), got, want_here)
    try:
        _same(case, sample, got, want_here)
    except Exception as error:
        why = f"values: {' '.join(str(error).split())[:300]}"
        if not _exact(case, sample, got, want_here):
            return why if not _random(case, sample) else _unlike(got, want_here)
        return None
    return _strides(result, want) if case.kind == "forward" else None


def _exact(case: Case, sample: Any, got: Any, want: Any) -> bool:
    """Whether ``got`` is the double precision result, rounded or as near to it as the CPU's."""
    if not (case.dtype.is_floating_point or case.dtype.is_complex):
        return False
    try:
        truth = _host(call(case, sample, "cpu", exact=True))
    except Exception:
        return False
    rounded = tree_map(lambda t, w: t.to(w.dtype) if isinstance(t, torch.Tensor) else t, truth, want)
    try:
        _same(case, sample, got, rounded)
    except Exception:
        return all(
            _as_near(*trio) for trio in zip(*(tree_flatten(x)[0] for x in (got, want, truth)), strict=True)
        )
    return True


def _as_near(got: Any, want: Any, truth: Any) -> bool:
    """Whether the largest error is at most four times the CPU's; infinities and NaN must be the same."""
    if not isinstance(got, torch.Tensor):
        return bool(got == want)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return False
    if not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, want)
    finite = torch.isfinite(truth)
    if not torch.isfinite(want[finite]).all():  # the CPU failed, as its bfloat16 matrix_exp does
        size = truth[finite].abs().max()
        return bool(((got.to(truth.dtype) - truth).abs() <= 4 * torch.finfo(got.dtype).eps * size).all())
    finite &= torch.isfinite(want)
    if not torch.equal(got[~finite].nan_to_num(7.0), want[~finite].nan_to_num(7.0)):
        return False
    ours, theirs = ((x.to(truth.dtype) - truth)[finite].abs() for x in (got, want))
    return bool((ours <= 4 * theirs.max()).all()) if ours.numel() else True


def _both_fail(case: Case, sample: Any, error: Exception) -> str | None:
    try:
        with alarm():
            _host(call(case, sample, "tpu"))
    except TimedOut as late:
        return str(late)
    except Exception:
        return None
    # CPU lacks a kernel that the device has, which is no fault
    return (
        None
        if "not implemented for" in str(error) or "not supported" in str(error)
        else f"no error; CPU: {error}"
    )
