"""What the programs say about the script: shapes, types, syncs and numbers that cost time on a TPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torchtpu.runtime.legalize import equations
from torchtpu.runtime.target import TARGETS
from torchtpu.runtime.topology import Collected

from .record import Advice, ProgramReport, Report

LARGE = 1024  # elements that make an array worth a remark
WORK = 1e6  # operations that make a product worth one
FULL = 0.9  # share of the matrix unit above which nothing is said
MOST = 5  # remarks of one kind
_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "rem", "dot_general", "reduce_sum", "cumsum", "sort", "max", "min", "pow")
)


def advise(report: Report, traced: Sequence[Collected]) -> list[Advice]:
    """All remarks, the weightiest kinds first."""
    pairs = list(zip(report.programs, traced, strict=True))
    step = [(p, t) for p, t in pairs if p.launches.get(report.steps)] if report.steps else pairs
    found = [*_memory(report), *_values(report), *_recompilations(report), *_lines(report)]
    return [*found, *_wide(step), *_products(report, step)]


def _memory(report: Report) -> Iterator[Advice]:
    worst = max(report.too_large, key=lambda p: p.hbm, default=None)
    if worst is None:
        return
    size, need = report.chip["hbm_bytes"], max(worst.hbm, worst.held)
    message = f"does not fit: {worst.name} runs while {need / 1e9:.1f} GB are held"
    if worst.error:
        message = f"does not fit: the compiler finds no room for {worst.name}, {need / 1e9:.1f} GB held"
    least = math.ceil(need / size)
    message += f", a device has {size / 1e9:.1f} GB. " + (
        f"Shard over at least {least}, " if least > 1 else ""
    )
    message += "keep weights in bfloat16, lower the batch, or recompute activations (torch.utils.checkpoint)"
    yield Advice("memory", message, worst.where)


def _values(report: Report) -> Iterator[Advice]:
    if not report.programs and report.failure is None:
        yield Advice("device", 'nothing ran on the device: the script never uses "tpu" or "cuda"')
    if report.failure is not None and report.values == "zeros" and report.reads:
        message = "every computed value was 0 in this run; if that is why the script failed, try --values cpu"
        yield Advice("values", message, report.failure.where)
    if report.failure is not None and report.failure.kind in ("MemoryError", "OutOfMemoryError"):
        message = "this host's own memory ended: make tensors on the device (with torch.device('tpu'):)"
        yield Advice("memory", message, report.failure.where)
    if report.programs and not report.steps:
        yield Advice("steps", "no optimizer step was seen, so recompilations could not be predicted")
    if report.steps == 2:
        yield Advice("steps", "a second step may still differ from all later ones; --steps 3 predicts better")


def _recompilations(report: Report) -> Iterator[Advice]:
    new = report.recompilations
    for program in new[:MOST]:
        before = [p for p in report.programs if p.number < program.number and p.name == program.name]
        last = next((p for p in reversed(before) if p.where == program.where), before[-1] if before else None)
        yield Advice("recompilation", f"{program.name} is new in step {report.steps}: {_why(last, program)}",
                     program.where)  # fmt: skip
    if len(new) > MOST:
        yield Advice("recompilation", f"{len(new) - MOST} more programs are new in step {report.steps}")


def _why(last: ProgramReport | None, program: ProgramReport) -> str:
    if last is None:
        return "nothing like it ran before"
    changed = [(a, b) for a, b in zip(last.inputs, program.inputs, strict=False) if a != b]
    if changed:
        return (
            f"an input was {changed[0][0]} and is {changed[0][1]}; keep shapes fixed (pad, or drop_last=True)"
        )
    if len(last.inputs) != len(program.inputs):
        return "it has another number of inputs"
    return "its inputs are alike, so a Python number is part of the program: a size, a slice or a static argument"


def _lines(report: Report) -> Iterator[Advice]:
    for place in [p for p in report.reads if p.repeats][:MOST]:
        message = f"each step waits here for the device (.item(), .cpu(), print, if): {place.source}"
        yield Advice("sync", f"{message}; read every n-th step, or after the loop", place.where)
    for place in [p for p in [*report.hosts, *report.fallbacks] if p.repeats][:MOST]:
        yield Advice("host", f"{place.what} runs on the host in each step: {place.source}", place.where)


def _wide(pairs: Sequence[tuple[ProgramReport, Collected]]) -> Iterator[Advice]:
    said: set[str] = set()
    for program, traced in pairs:
        for eqn in equations(traced.closed.jaxpr):
            for var in eqn.outvars:
                kind = str(getattr(var.aval, "dtype", ""))
                if kind in said or math.prod(getattr(var.aval, "shape", ())) < LARGE:
                    continue
                if kind in ("float64", "complex128"):
                    text = "is emulated, many times slower than float32; say dtype=torch.float32"
                elif kind == "int64" and eqn.primitive.name in _ARITHMETIC:
                    text = "takes two 32-bit operations for each; int32 is enough for indices"
                else:
                    continue
                said.add(kind)
                yield Advice(
                    "dtype", f"{kind} arithmetic on the hot path ({program.name}) {text}", program.where
                )


def _products(report: Report, pairs: Sequence[tuple[ProgramReport, Collected]]) -> Iterator[Advice]:
    """Matrix products that leave much of the matrix unit empty, the most wasteful first."""
    unit = TARGETS[report.chip["name"]].matrix_unit
    wasted: dict[tuple[int, ...], tuple[float, str]] = {}
    exact = ""
    for program, traced in pairs:
        for eqn in equations(traced.closed.jaxpr):
            if eqn.primitive.name != "dot_general":
                continue
            size = dims(eqn)
            work, full = 2.0 * math.prod(size), 2.0 * math.prod(_padded(size, unit))
            if work >= WORK and work < FULL * full:
                before, where = wasted.get(size, (0.0, program.where))
                wasted[size] = before + full - work, where
            if work >= WORK and _exact(eqn):
                exact = exact or program.where
    for shape, (_, where) in sorted(wasted.items(), key=lambda item: -item[1][0])[:MOST]:
        yield Advice("shape", _shape(shape, unit), where)
    if exact:
        message = (
            "float32 matrix products are exact here, in six bfloat16 passes: the roofline is that of one. "
            "Use torch.autocast('tpu', torch.bfloat16), or torch.set_float32_matmul_precision('high')"
        )
        yield Advice("precision", message, exact)


def dims(eqn: Any) -> tuple[int, int, int, int]:
    """Batch, rows, columns and inner size of a ``dot_general``."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    a, b = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    batch, inner = math.prod(a[i] for i in left_batch), math.prod(a[i] for i in left)
    rows = math.prod(n for i, n in enumerate(a) if i not in (*left, *left_batch))
    columns = math.prod(n for i, n in enumerate(b) if i not in (*right, *right_batch))
    return batch, rows, columns, inner


def _padded(size: tuple[int, ...], unit: int) -> tuple[int, ...]:
    batch, rows, columns, inner = size
    if rows > columns:  # the compiler may exchange the operands; the longer side is the streamed one
        rows, columns = columns, rows
    return batch, -(-columns // 8) * 8, -(-rows // unit) * unit, -(-inner // unit) * unit


def _shape(size: tuple[int, ...], unit: int) -> str:
    batch, rows, columns, inner = size
    share = math.prod(size) / math.prod(_padded(size, unit))
    text = f"product {rows}x{inner} by {inner}x{columns}" + (f", {batch} times" if batch > 1 else "")
    head = next((n for n in (inner, rows, columns) if n < unit and n % 8 == 0), None) if batch > 1 else None
    if head is not None and min(size[1:]) == head:
        return (f"{text}: a head dimension of {head} fills {share:.0%} of the {unit}x{unit} matrix unit; "
                f"fewer heads of {unit} do the same work in less time")  # fmt: skip
    odd = [n for n in (rows, inner, columns) if n % unit]
    return f"{text}: fills {share:.0%} of the matrix unit; make {odd or 'sizes'} multiples of {unit} (or 8)"


def _exact(eqn: Any) -> bool:
    wanted = str(eqn.params.get("precision")).upper()
    return "HIGHEST" in wanted and str(eqn.invars[0].aval.dtype) == "float32"
