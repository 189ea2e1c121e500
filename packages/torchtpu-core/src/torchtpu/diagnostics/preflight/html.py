"""The report as one page that needs no other file: tables, and plots as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from . import text
from .record import ProgramReport, Report

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6b7280; --paper: #fff; --line: #d6dae0;
  --mark: #3451b2; --good: #18794e; --bad: #c62a2f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ae; --paper: #14171a; --line: #343a41;
  --mark: #8da4ef; --good: #4cc38a; --bad: #ff8589; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.good { color: var(--good) } .bad { color: var(--bad) } .soft { color: var(--soft) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } figcaption { color: var(--soft); font-size: .85rem }
svg { width: 100%; height: auto } svg text { fill: var(--soft); font: 11px system-ui, sans-serif }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap }
th { color: var(--soft); font-weight: 600 } td.n, th.n { text-align: right }
pre { overflow-x: auto; white-space: pre-wrap; border-left: 3px solid var(--bad); padding-left: .8rem }
"""
WIDTH, HEIGHT, LEFT, BOTTOM = 480, 260, 56, 34
_COLUMNS = ["#", "program", "state", "launches", "HBM", "FLOP", "bytes", "roofline", "MFU", "line"]


def page(report: Report) -> str:
    """The whole page."""
    return "\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    title = f"Preflight of {escape(report.script)} for {escape(report.topology)}"
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    kind = "good" if report.ok else "bad"
    yield f'<h1>{title}</h1><p class="{kind}"><strong>{escape(text.headline(report))}</strong></p>'
    rows = "".join(f"<tr><th>{escape(k)}<td>{escape(v)}" for k, v in text.facts(report))
    yield f'<div class="scroll"><table>{rows}</table></div>'
    yield from _failures(report)
    yield from _plots(report)
    advice = [(a.kind, a.message, a.where) for a in report.advice]
    yield from _table("Advice", ("kind", "remark", "line"), advice, wrap=True)
    yield from _table("Programs", _COLUMNS, [text.row(p) for p in report.programs], numbers=range(3, 9))
    for heading, places in text.places(report):
        rows_ = [(str(sum(p.steps.values())), p.what, p.where, p.source) for p in places]
        yield from _table(heading, ("times", "what", "line", "source"), rows_)
    names = [(r.where, r.found, r.used) for r in report.replacements]
    yield from _table("CUDA's names", ("line", "found", "use"), names)
    yield "</html>"


def _failures(report: Report) -> Iterator[str]:
    if report.failure is not None:
        f = report.failure
        yield f'<h2 class="bad">{escape(f.kind)} at {escape(f.where)}</h2>'
        yield f"<pre>{escape(f.trace)}{escape(f.kind)}: {escape(f.message)}</pre>"
    for p in report.programs:
        if p.error:
            yield f'<h2 class="bad">{escape(p.name)} ({escape(p.state)}) at {escape(p.where)}</h2>'
            yield f"<pre>{escape(p.error)}</pre>"


def _table(
    heading: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: range = range(0),
    wrap: bool = False,
) -> Iterator[str]:
    if not rows:
        return
    marks = [' class="n"' if i in numbers else "" for i in range(len(names))]
    if wrap:
        marks[1] = ' style="white-space: normal"'
    head = "".join(f"<th{mark}>{escape(name)}" for name, mark in zip(names, marks, strict=True))
    body = ("<tr>" + "".join(f"<td{m}>{escape(v)}" for v, m in zip(row, marks, strict=True)) for row in rows)
    yield f'<h2>{escape(heading)}</h2><div class="scroll"><table><tr>{head}{"".join(body)}</table></div>'


def _plots(report: Report) -> Iterator[str]:
    done = [p for p in report.programs if p.state == "compiled"]
    if done:
        yield '<h2>Plots</h2><div class="plots">'
        yield _figure(_memory(report, done), "Memory held while each program runs; the line is the device's.")
        yield _figure(_roofline(report, done), "Operations for each byte against the bound of the chip.")
        yield _figure(_steps(report), "Programs that are new in each step; 0 is before the first.")
        yield "</div>"


def _figure(inside: str, caption: str) -> str:
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">{inside}</svg>'
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - 10)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 14)


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(points: Sequence[tuple[float, float]], color: str, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="var(--{color})" stroke-width="1.5"{dash}/>'


def _bar(x: float, width: float, share: float, color: str, words: str) -> str:
    top = _y(share)
    return (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{max(width, 0.8):.1f}" height="{_y(0) - top:.1f}" '
        f'fill="var(--{color})"><title>{escape(words)}</title></rect>'
    )


def _axes(bottom: str, top: str) -> str:
    lines = _line([(LEFT, _y(1)), (LEFT, _y(0)), (WIDTH - 10, _y(0))], "line")
    return lines + _text(_x(0.5), HEIGHT - 6, bottom) + _text(LEFT - 6, _y(1) + 4, top, "end")


def _memory(report: Report, done: Sequence[ProgramReport]) -> str:
    chip = report.chip["hbm_bytes"]
    most = max(chip, report.hbm) * 1.05
    step = (_x(1) - _x(0)) / len(done)
    bars = [
        _bar(_x(0) + i * step, step * 0.8, p.hbm / most, "bad" if p.hbm > chip else "mark",
             f"{p.number} {p.name}: {text.size(p.hbm)}B")
        for i, p in enumerate(done)
    ]  # fmt: skip
    limit = _line([(LEFT, _y(chip / most)), (WIDTH - 10, _y(chip / most))], "bad", dashed=True)
    words = _text(LEFT - 6, _y(report.hbm / most) + 4, f"{text.size(report.hbm)}B", "end")
    return (
        "".join(bars)
        + limit
        + words
        + _axes("programs in the order of their first launch", f"{text.size(most)}B")
    )


def _roofline(report: Report, done: Sequence[ProgramReport]) -> str:
    peak, bandwidth = report.chip["bf16_flops"], report.chip["hbm_bandwidth"]
    shown = [p for p in done if p.flops > 0 and p.bytes_accessed > 0]
    knee = peak / bandwidth
    ratios = [p.flops / p.bytes_accessed for p in shown] + [knee]
    low, high = math.log10(min(ratios) / 2), math.log10(max(ratios) * 4)
    ceiling, floor = math.log10(peak) + 0.3, math.log10(bandwidth) + low

    def at(ratio: float) -> tuple[float, float]:
        reached = math.log10(min(peak, ratio * bandwidth))
        return _x((math.log10(ratio) - low) / (high - low)), _y((reached - floor) / (ceiling - floor))

    dots = []
    for p in shown:
        x, y = at(p.flops / p.bytes_accessed)
        name = escape(f"{p.number} {p.name}: {p.mfu:.0%}")
        dots.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--mark)" fill-opacity=".6"><title>{name}</title></circle>'
        )
    roof = _line([at(10**low), at(knee), at(10**high)], "soft")
    ends = _text(_x(0), HEIGHT - 20, f"{10**low:.2g}", "start") + _text(
        _x(1), HEIGHT - 20, f"{10**high:.2g}", "end"
    )
    return roof + "".join(dots) + ends + _axes("FLOP per byte (log)", f"{text.size(10**ceiling)}")


def _steps(report: Report) -> str:
    last = max([report.steps, *(p.first_step for p in report.programs)])
    new = [sum(p.first_step == step for p in report.programs) for step in range(last + 1)]
    most, step = max(new) or 1, (_x(1) - _x(0)) / (last + 1)
    parts = []
    for i, count in enumerate(new):
        parts.append(_bar(_x(0) + (i + 0.15) * step, step * 0.7, count / most, "mark", f"step {i}: {count}"))
        parts.append(_text(_x(0) + (i + 0.5) * step, HEIGHT - 20, str(i)))
        parts.append(_text(_x(0) + (i + 0.5) * step, _y(count / most) - 3, str(count)))
    return "".join(parts) + _axes("step", "programs")
