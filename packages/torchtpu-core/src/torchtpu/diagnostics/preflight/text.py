"""The report as text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from .record import Place, ProgramReport, Report

MOST = 20  # rows of a table


def size(count: float) -> str:
    """Bytes or operations with a unit."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}P"


def duration(seconds: float) -> str:
    """Seconds with a unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def headline(report: Report) -> str:
    """The verdict in one line."""
    states = [p.state for p in report.programs]
    parts = [f"{states.count('compiled')} of {len(states)} distinct programs compile for {report.topology}"]
    if report.failure is not None:
        parts.append(f"the script fails: {report.failure.kind}")
    if report.stopped:
        parts.append(report.stopped)
    if report.too_large:
        parts.append("it does not fit the memory")
    return ("OK: " if report.ok else "NOT OK: ") + "; ".join(parts)


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Names and values of the summary."""
    chip = report.chip
    yield (
        "device",
        f"{chip['name']}: {size(chip['hbm_bytes'])}B HBM, {size(chip['bf16_flops'])}FLOP/s bfloat16",
    )
    yield (
        "memory",
        f"{size(report.hbm)}B of {size(chip['hbm_bytes'])}B ({report.hbm / chip['hbm_bytes']:.1%})",
    )
    yield "run", f"{report.mode} mode, {report.steps} whole steps, values: {report.values}"
    if report.steps:
        launches = sum(count for _, count in report.step_programs)
        yield "step", (f"{launches} launches of {len(report.step_programs)} programs; at least "
                       f"{duration(report.step_seconds)}, MFU at most {report.step_mfu:.1%}")  # fmt: skip
        yield "recompilations", f"{len(report.recompilations)} new programs in the last step"


def _programs(report: Report) -> Table:
    table = Table(
        "#", "program", "state", "runs", "HBM", "FLOP", "bytes", "roofline", "MFU ≤", "line", box=None
    )
    ranked = sorted(report.programs, key=lambda p: (p.state in ("compiled", "host"), -p.roofline))
    for p in ranked[:MOST]:
        table.add_row(*map(escape, row(p)))
    table.caption = f"{len(ranked) - MOST} more" if len(ranked) > MOST else None
    return table


def row(p: ProgramReport) -> list[str]:
    """A program's cells of the table."""
    start = [str(p.number), p.name, p.state, str(sum(p.launches.values()))]
    if p.state != "compiled":
        return [*start, "", "", "", "", "", p.where]
    numbers = [size(p.hbm), size(p.flops), size(p.bytes_accessed), duration(p.roofline), f"{p.mfu:.0%}"]
    return [*start, *numbers, p.where]


def places(report: Report) -> Iterator[tuple[str, list[Place]]]:
    """Headings, and the places of the host's work below them."""
    yield "On the host by design", report.hosts
    yield "On the host, as no lowering serves it", report.fallbacks
    yield "Reads of the host", report.reads


def _places(title: str, found: list[Place]) -> Iterator[Any]:
    if found:
        yield f"\n[bold]{title}[/]"
        for p in found[:MOST]:
            yield escape(f"  {sum(p.steps.values()):4}x {p.what}  {p.where}  {p.source}")


def render(report: Report) -> Group:
    """What rich prints."""
    return Group(*_parts(report))


def _parts(report: Report) -> Iterator[Any]:
    yield f"[bold {'green' if report.ok else 'red'}]{escape(headline(report))}[/]"
    yield from (escape(f"  {name:15}{value}") for name, value in facts(report))
    if report.failure is not None:
        f = report.failure
        yield f"\n[bold red]{escape(f.kind)}[/] at {escape(f.where)}"
        yield escape(f"  {f.source}\n  {f.message}")
    for p in [p for p in report.programs if p.error]:
        yield f"\n[bold]{escape(p.name)}[/] ({p.state}) at {escape(p.where)}"
        yield escape(f"  {p.error[:1000]}")
    if report.programs:
        yield "\n[bold]Programs[/]"
        yield _programs(report)
    for title, found in places(report):
        yield from _places(title, found)
    if report.replacements:
        yield "\n[bold]CUDA's names[/]"
        yield from (escape(f"  {r.where}  {r.found}  ->  {r.used}") for r in report.replacements)
    if report.advice:
        yield "\n[bold]Advice[/]"
        yield from (
            escape(f"  {a.kind}: {a.message}" + f"  ({a.where})" * bool(a.where)) for a in report.advice
        )


def plain(report: Report) -> str:
    """The text without colours, each row in one line."""
    out = io.StringIO()
    Console(file=out, width=400, no_color=True).print(render(report), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
